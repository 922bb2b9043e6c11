"""Its rule breaks the rules for rules: its class cannot be made."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Undefined(Rule):  # here
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "UND001"
    name = "Not_A_Name"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        return ()


@hookimpl
def shardlint_pack():
    return PackInfo(name="bad_rule_definition", prefix="UND", api=1)


@hookimpl
def shardlint_rules():
    return [Undefined]
