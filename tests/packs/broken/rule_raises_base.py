"""Its rule raises a BaseException of its own, as torch and pytest do."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class RaisesBase(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "BAS001"
    name = "rule-raises-base"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        raise Stop("enough")  # here
        yield


class Stop(BaseException):
    pass


@hookimpl
def shardlint_pack():
    return PackInfo(name="rule_raises_base", prefix="BAS", api=1)


@hookimpl
def shardlint_rules():
    return [RaisesBase]
