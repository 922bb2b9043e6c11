"""Its rule raises after its first finding."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Raises(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "RAI001"
    name = "rule-raises"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        yield self.finding(subject="layers.0.weight", message="found before the crash")
        raise ZeroDivisionError("all\nis\nlost")  # here


@hookimpl
def shardlint_pack():
    return PackInfo(name="rule_raises", prefix="RAI", api=1)


@hookimpl
def shardlint_rules():
    return [Raises]
