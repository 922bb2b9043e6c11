"""It takes the prefix of the engine."""

from shardlint import PackInfo, hookimpl


@hookimpl  # here
def shardlint_pack():
    return PackInfo(name="reserved_prefix", prefix="SL", api=1)
