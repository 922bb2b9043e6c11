"""D703 all-gather-pending."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import RuntimeFacts, TracedUnit
from shardlint.names import listed


class AllGatherPending(Rule):
    """
    An all-gather of a unit's parameters was still unconsumed when the optimizer stepped.

    ## What it does
    Looks at every unit before each traced optimizer step (without one: at the end of the trace, when a backward ran)
    for an all-gather that was started and that no forward or backward waited for. One that FSDP2 itself threw away when
    it finished the backward is a warning: nothing is stale, and the gather was for nothing. It is none when FSDP2 had
    chosen it by itself, without a prefetch list, as it does ahead of a frozen unit.

    ## Why it is unsafe
    The gathered copy holds the parameters of before the step. Whoever waits for it next computes with stale weights,
    without any error, and until then the copy occupies the size of the whole unit.

    ## What to do
    Remove the unit from the prefetch targets of units after which it does not run, or run it. After an explicit
    `unshard()` use the unit, or `reshard()` it.
    """

    code = "D703"
    name = "all-gather-pending"
    phase = Phase.D7
    severity = Severity.ERROR
    needs = (Section.RUNTIME,)
    related_config = ("forward_prefetch", "backward_prefetch")

    noun = "unit"

    def subjects(self, facts: Facts) -> Iterable[tuple[str, TracedUnit | None, list[int]]]:
        runtime = facts.require(Section.RUNTIME)
        units = {unit.name: unit for unit in runtime.units if unit.sharded}
        if not units:
            return ()
        if not runtime.optimizer_stepped and runtime.raised:
            raise NotEvaluated(f"no optimizer step was traced; the traced block raised {runtime.raised}")
        if not runtime.optimizer_stepped and not runtime.backwards:
            raise NotEvaluated("neither a backward nor an optimizer step was traced")
        looks: dict[str, list[int]] = {name: [] for name in units}
        for gather in runtime.pending:
            looks.setdefault(gather.unit, []).append(gather.look)
        return [(name, units.get(name), numbers) for name, numbers in looks.items()]

    def judge(self, subject: tuple[str, TracedUnit | None, list[int]], facts: Facts) -> Iterator[Finding]:
        name, unit, looks = subject
        runtime = facts.require(Section.RUNTIME)
        if looks:
            when = "at the optimizer step" if runtime.looks[looks[0]] == "optimizer-step" else "after the backward"
            yield self._unconsumed(runtime, name, f"was still unconsumed {when}", Severity.ERROR, looks)
        elif unit is not None and unit.discarded:
            text = "was thrown away unconsumed at the end of the backward"
            yield self._unconsumed(runtime, name, text, Severity.WARNING, [])

    def _unconsumed(self, runtime: RuntimeFacts, name: str, text: str, severity: Severity, looks: list[int]) -> Finding:
        by = [unit.name for unit in runtime.units if name in (*unit.forward_prefetch, *unit.backward_prefetch)]
        return self.finding(
            subject=name,
            kind=SubjectKind.UNIT,
            owner=name,
            severity=severity,
            message=f"its all-gather {text}" + (f"; prefetched by {listed(by)}" if by else ""),
            evidence={"looks": looks, "prefetched_by": by},
        )
