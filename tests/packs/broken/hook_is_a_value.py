"""A hook's name stands for something that is no function, so that it would never be asked."""

from shardlint import PackInfo, hookimpl
from shardlint.contract import Contract


@hookimpl
def shardlint_pack():
    return PackInfo(name="hook_is_a_value", prefix="HIA", api=1)


shardlint_contracts = Contract()  # here
