"""Its rule gives a finding a subject that is no text."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class BadField(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "BAD001"
    name = "rule-bad-field"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        yield self.finding(subject=3, message="numbers are no subjects")  # here


@hookimpl
def shardlint_pack():
    return PackInfo(name="rule_bad_field", prefix="BAD", api=1)


@hookimpl
def shardlint_rules():
    return [BadField]
