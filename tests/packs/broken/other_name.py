"""It calls itself something else than its entry point does."""

from shardlint import PackInfo, hookimpl


@hookimpl  # here
def shardlint_pack():
    return PackInfo(name="somebody_else", prefix="ELS", api=1)
