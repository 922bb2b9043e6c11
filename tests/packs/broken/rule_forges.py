"""Its rule yields a finding that claims to be another rule's."""

from attrs import evolve

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Forges(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "FOR001"
    name = "rule-forges"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        yield evolve(self.finding(subject="model", message="forged"), code="HEA001")  # here


@hookimpl
def shardlint_pack():
    return PackInfo(name="rule_forges", prefix="FOR", api=1)


@hookimpl
def shardlint_rules():
    return [Forges]
