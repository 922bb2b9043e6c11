"""Its rule raises an error that cannot even say what it is."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Mute(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "MUT001"
    name = "error-without-text"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        raise MuteError  # here


class MuteError(Exception):
    def __str__(self):
        raise SystemExit(4)


@hookimpl
def shardlint_pack():
    return PackInfo(name="error_without_text", prefix="MUT", api=1)


@hookimpl
def shardlint_rules():
    return [Mute]
