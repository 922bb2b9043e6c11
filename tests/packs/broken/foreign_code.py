"""Its rule has a code that does not begin with the prefix of its pack."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Foreign(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "OTH001"
    name = "foreign-code"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        return ()


@hookimpl
def shardlint_pack():
    return PackInfo(name="foreign_code", prefix="FRN", api=1)


@hookimpl  # here
def shardlint_rules():
    return [Foreign]
