"""Its rule never comes back from a recursion."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Recurses(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "REC001"
    name = "rule-recurses"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        return self.check(facts)  # here


@hookimpl
def shardlint_pack():
    return PackInfo(name="rule_recurses", prefix="REC", api=1)


@hookimpl
def shardlint_rules():
    return [Recurses]
