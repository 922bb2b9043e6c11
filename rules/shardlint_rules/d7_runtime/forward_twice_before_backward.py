"""D711 forward-twice-before-backward."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind

from ._traces import complete


class ForwardTwiceBeforeBackward(Rule):
    """
    A checkpointed unit inside the model ran forward in two micro-steps before any backward.

    ## What it does
    Follows forwards and backwards of the sharded units whose activations are checkpointed, the root aside. Two or more
    forwards of the model with gradients, and no backward of the unit in between, are reported. A unit that runs
    several times in one forward of the model is not.

    ## Why it is unsafe
    The first backward recomputes the unit, gathers its parameters and frees them again while the graph of the other
    forward still expects them; in some versions the second backward then fails, or reads freed storage.

    ## What to do
    Run the backward of each forward before the next forward, or concatenate the batches into one forward (as paired
    and contrastive losses can). Keep such units gathered (`reshard_after_forward=False`) where neither will do.
    """

    code = "D711"
    name = "forward-twice-before-backward"
    phase = Phase.D7
    severity = Severity.WARNING
    needs = (Section.RUNTIME,)

    def check(self, facts: Facts) -> Iterator[Finding]:
        runtime = facts.require(Section.RUNTIME)
        complete(runtime)
        counted = {step.index for step in runtime.training_steps()}
        open_steps: dict[str, set[int]] = {}
        worst: dict[str, set[int]] = {}
        for event in runtime.events:
            if event.kind == "forward" and event.step in counted:
                steps = open_steps.setdefault(event.unit, set())
                steps.add(event.step)
                if len(steps) > len(worst.get(event.unit, ())):
                    worst[event.unit] = set(steps)
            elif event.kind in ("backward", "recompute"):
                open_steps.pop(event.unit, None)
        for unit in runtime.units:
            steps = worst.get(unit.name, set())
            if unit.sharded and unit.checkpointed and not unit.at_root and len(steps) > 1:
                yield self.finding(
                    subject=unit.name,
                    kind=SubjectKind.UNIT,
                    owner=unit.name,
                    message=f"ran forward in {len(steps)} checkpointed micro-steps before any backward",
                    evidence={"steps": sorted(steps), "checkpointed": unit.checkpointed},
                )
