"""Its collector adds to a section that facts do not have; its rule is sound."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Sound(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "SOU001"
    name = "sound-rule"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        yield self.finding(subject="model", message="a sound hook of a pack with a broken one")


@hookimpl
def shardlint_pack():
    return PackInfo(name="bad_collector", prefix="SOU", api=1)


@hookimpl
def shardlint_rules():
    return [Sound]


class Collector:
    name = "nowhere"
    section = "nowhere"

    def collect(self, target, walk, facts):
        return None


@hookimpl  # here
def shardlint_collectors():
    return [Collector()]
