"""Its rules hook returns things that are no rule classes."""

from shardlint import PackInfo, hookimpl


@hookimpl
def shardlint_pack():
    return PackInfo(name="hook_returns_rubbish", prefix="RBH", api=1)


@hookimpl  # here
def shardlint_rules():
    return [dict]
