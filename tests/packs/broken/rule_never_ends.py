"""Its rule never stops yielding."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class NeverEnds(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "NEV001"
    name = "rule-never-ends"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        while True:
            yield self.finding(subject="model", message="and another one")  # here


@hookimpl
def shardlint_pack():
    return PackInfo(name="rule_never_ends", prefix="NEV", api=1)


@hookimpl
def shardlint_rules():
    return [NeverEnds]
