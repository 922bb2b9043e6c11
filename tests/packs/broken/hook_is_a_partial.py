"""A hook's name stands for something that is no function, so that it would never be asked."""

import functools

from shardlint import PackInfo, hookimpl


@hookimpl
def shardlint_pack():
    return PackInfo(name="hook_is_a_partial", prefix="HIA", api=1)


def answer(contract, query):
    return contract

shardlint_contracts = functools.partial(answer, None)  # here
