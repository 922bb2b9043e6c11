"""Two packs claim one code and one name: the b twin."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Twinb(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "TWN001"
    name = "twin"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        return ()


class Ownb(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "TWN003"
    name = "own-b"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        yield self.finding(subject="model", message="not claimed by anybody else")


@hookimpl
def shardlint_pack():
    return PackInfo(name="twin_b", prefix="TWN", api=1)


@hookimpl
def shardlint_rules():
    return [Twinb, Ownb]
