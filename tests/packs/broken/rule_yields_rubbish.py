"""Its rule yields a string among its findings."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Rubbish(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "RUB001"
    name = "rule-yields-rubbish"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        yield self.finding(subject="layers.0.weight", message="found before the rubbish")
        yield "layers.1.weight is bad, too"  # here


@hookimpl
def shardlint_pack():
    return PackInfo(name="rule_yields_rubbish", prefix="RUB", api=1)


@hookimpl
def shardlint_rules():
    return [Rubbish]
