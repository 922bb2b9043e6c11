"""Its rule cannot be made."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Constructor(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "CON001"
    name = "constructor-raises"
    phase = Phase.D2
    severity = Severity.ERROR

    def __init__(self, options=None):
        raise KeyError("made of nothing")  # here

    def check(self, facts):
        return ()


@hookimpl
def shardlint_pack():
    return PackInfo(name="constructor_raises", prefix="CON", api=1)


@hookimpl
def shardlint_rules():
    return [Constructor]
