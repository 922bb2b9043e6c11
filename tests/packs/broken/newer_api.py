"""It was written for a plugin API that does not exist yet, with a hook that does not exist yet."""

from shardlint import PackInfo, hookimpl


@hookimpl  # here
def shardlint_pack():
    return PackInfo(name="newer_api", prefix="NEW", api=99)


@hookimpl
def shardlint_visions(crystal_ball):
    return []
