"""Its rule throws a section away and puts something into the facts that is no fact."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Empties(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "EMP001"
    name = "rule-empties-facts"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):  # here
        object.__setattr__(facts, "model", None)
        object.__setattr__(facts, "target", object())
        return ()


@hookimpl
def shardlint_pack():
    return PackInfo(name="rule_empties_facts", prefix="EMP", api=1)


@hookimpl
def shardlint_rules():
    return [Empties]
