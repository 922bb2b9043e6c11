"""A hook takes an argument that the hook does not have."""

from shardlint import PackInfo, hookimpl


@hookimpl
def shardlint_pack():
    return PackInfo(name="wrong_argument", prefix="WAR", api=1)


@hookimpl  # here
def shardlint_rules(context):
    return []
