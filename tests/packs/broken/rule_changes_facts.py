"""Its rule changes the frozen facts, past their protection."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Changes(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "CHA001"
    name = "rule-changes-facts"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):  # here
        for tensor in facts.model.tensors:
            object.__setattr__(tensor, "dtype", "changed")
        yield self.finding(subject="model", message="the rules after this one see other facts")


@hookimpl
def shardlint_pack():
    return PackInfo(name="rule_changes_facts", prefix="CHA", api=1)


@hookimpl
def shardlint_rules():
    return [Changes]
