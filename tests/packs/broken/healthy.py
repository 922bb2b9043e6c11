"""The control: a pack that does what it should, whatever its neighbours do."""

from shardlint import PackInfo, Phase, Rule, Severity, hookimpl


class Healthy(Rule):
    """
    A rule of a pack that misbehaves.

    ## What it does
    Nothing good.

    ## Why it is unsafe
    It is a test.

    ## What to do
    Nothing.
    """

    code = "HEA001"
    name = "always-found"
    phase = Phase.D2
    severity = Severity.ERROR

    def check(self, facts):
        for tensor in facts.model.tensors:
            yield self.finding(subject=tensor.fqn, message="found, as always", evidence={"dtype": tensor.dtype})


@hookimpl
def shardlint_pack():
    return PackInfo(name="healthy", prefix="HEA", api=1)


@hookimpl
def shardlint_rules():
    return [Healthy]
