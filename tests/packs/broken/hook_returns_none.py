"""Its rules hook returns nothing."""

from shardlint import PackInfo, hookimpl


@hookimpl
def shardlint_pack():
    return PackInfo(name="hook_returns_none", prefix="NON", api=1)


@hookimpl  # here
def shardlint_rules():
    return None
