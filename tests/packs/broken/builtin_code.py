"""Its rule has a code that only the built-in pack may have."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Builtin(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "D201"
    name = "builtin-code"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        return ()


@hookimpl
def shardlint_pack():
    return PackInfo(name="builtin_code", prefix="BLT", api=1)


@hookimpl  # here
def shardlint_rules():
    return [Builtin]
