"""Its rule returns a number where findings are wanted."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Number(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "NUM001"
    name = "rule-returns-number"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):  # here
        return 3


@hookimpl
def shardlint_pack():
    return PackInfo(name="rule_returns_number", prefix="NUM", api=1)


@hookimpl
def shardlint_rules():
    return [Number]
