"""D711 forward-twice-before-backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import RuntimeFacts, TracedUnit

from ._traces import complete, seen


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

    noun = "checkpointed unit"

    def subjects(self, facts: Facts) -> Iterable[tuple[TracedUnit, set[int]]]:
        runtime = facts.require(Section.RUNTIME)
        units = [unit for unit in runtime.units if unit.sharded and unit.checkpointed and not unit.at_root]
        if not units:
            return ()
        complete(runtime)
        if not any(runtime.training_steps()):
            raise NotEvaluated("no forward of the model with gradients was traced")
        worst = _most_open(runtime)
        return [(unit, worst.get(unit.name, set())) for unit in units]

    def judge(self, subject: tuple[TracedUnit, set[int]], facts: Facts) -> Iterator[Finding]:
        unit, steps = subject
        seen(unit)
        if len(steps) > 1:
            yield self.finding(
                subject=unit.name,
                kind=SubjectKind.UNIT,
                owner=unit.name,
                message=f"ran forward in {len(steps)} checkpointed micro-steps before any backward",
                evidence={"steps": sorted(steps), "checkpointed": unit.checkpointed},
            )


def _most_open(runtime: RuntimeFacts) -> dict[str, set[int]]:
    """For each unit the micro-steps of most forwards with gradients that had no backward of the unit in between."""
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
    return worst
