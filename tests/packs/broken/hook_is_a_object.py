"""A hook's name stands for something that is no function, so that it would never be asked."""

from shardlint import PackInfo, hookimpl


@hookimpl
def shardlint_pack():
    return PackInfo(name="hook_is_a_object", prefix="HIA", api=1)


class Answer:
    def __call__(self, query):
        return None

shardlint_contracts = Answer()  # here
