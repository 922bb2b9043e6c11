"""Its rules hook raises."""

from shardlint import PackInfo, hookimpl


@hookimpl
def shardlint_pack():
    return PackInfo(name="hook_raises", prefix="HOO", api=1)


@hookimpl
def shardlint_rules():
    raise LookupError("where did I put them?")  # here
