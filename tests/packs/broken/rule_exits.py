"""Its rule calls sys.exit(), which is no Exception."""

import sys

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Exits(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "EXI001"
    name = "rule-exits"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        sys.exit(0)  # here


@hookimpl
def shardlint_pack():
    return PackInfo(name="rule_exits", prefix="EXI", api=1)


@hookimpl
def shardlint_rules():
    return [Exits]
