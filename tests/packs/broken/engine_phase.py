"""Its rule says that it is one of the engine's own."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Engine(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "ENG001"
    name = "engine-phase"
    phase = Phase.ENGINE
    severity = Severity.ERROR

    def check(self, facts):
        return ()


@hookimpl
def shardlint_pack():
    return PackInfo(name="engine_phase", prefix="ENG", api=1)


@hookimpl  # here
def shardlint_rules():
    return [Engine]
