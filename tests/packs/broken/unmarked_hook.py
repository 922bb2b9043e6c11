"""It forgets the marker on a hook, so that its rules would be missing without a word."""

from shardlint import PackInfo, hookimpl


@hookimpl
def shardlint_pack():
    return PackInfo(name="unmarked_hook", prefix="UNM", api=1)


def shardlint_rules():  # here
    return []
