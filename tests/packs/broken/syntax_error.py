"""It is no Python."""

def shardlint_pack(:  # here
    pass
