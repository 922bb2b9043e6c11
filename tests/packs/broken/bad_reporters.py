"""Its reporters hook returns a list."""

from shardlint import PackInfo, hookimpl


@hookimpl
def shardlint_pack():
    return PackInfo(name="bad_reporters", prefix="REP", api=1)


@hookimpl  # here
def shardlint_reporters():
    return ["text"]
