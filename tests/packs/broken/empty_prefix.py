"""It takes the empty prefix of the built-in pack."""

from shardlint import PackInfo, hookimpl


@hookimpl  # here
def shardlint_pack():
    return PackInfo(name="empty_prefix", prefix="", api=1)
