"""It was written for a plugin API that is gone."""

from shardlint import PackInfo, hookimpl


@hookimpl  # here
def shardlint_pack():
    return PackInfo(name="older_api", prefix="OLD", api=0)
