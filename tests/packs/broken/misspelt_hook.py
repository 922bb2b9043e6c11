"""It misspells a hook, so that its rules would be missing without a word."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Lost(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "MIS001"
    name = "lost"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        return ()


@hookimpl
def shardlint_pack():
    return PackInfo(name="misspelt_hook", prefix="MIS", api=1)


@hookimpl  # here
def shardlint_rule():
    return [Lost]
