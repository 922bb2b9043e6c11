"""Its rules hook yields one rule and raises before the second."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Midway(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "MID001"
    name = "midway"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        yield self.finding(subject="model", message="half of a pack's rules look like all of them")


@hookimpl
def shardlint_pack():
    return PackInfo(name="hook_stops_midway", prefix="MID", api=1)


@hookimpl
def shardlint_rules():
    yield Midway
    raise OSError("the rest is on a disk that is gone")  # here
