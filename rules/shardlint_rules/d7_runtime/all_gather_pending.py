"""D703 all-gather-pending."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import RuntimeFacts


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

    def check(self, facts: Facts) -> Iterator[Finding]:
        runtime = facts.require(Section.RUNTIME)
        if not any(unit.sharded for unit in runtime.units):
            return
        if not runtime.optimizer_stepped and runtime.raised:
            raise NotEvaluated(f"no optimizer step was traced; the traced block raised {runtime.raised}")
        if not runtime.optimizer_stepped and not runtime.backwards:
            raise NotEvaluated("neither a backward nor an optimizer step was traced")
        moments: dict[str, list[int]] = {}
        for gather in runtime.pending:
            moments.setdefault(gather.unit, []).append(gather.look)
        for name, looks in moments.items():
            when = "at the optimizer step" if runtime.looks[looks[0]] == "optimizer-step" else "after the backward"
            yield self._unconsumed(runtime, name, f"was still unconsumed {when}", Severity.ERROR, looks)
        for unit in runtime.units:
            if unit.discarded and unit.name not in moments:
                text = "was thrown away unconsumed at the end of the backward"
                yield self._unconsumed(runtime, unit.name, text, Severity.WARNING, [])

    def _unconsumed(self, runtime: RuntimeFacts, name: str, text: str, severity: Severity, looks: list[int]) -> Finding:
        by = [unit.name for unit in runtime.units if name in (*unit.forward_prefetch, *unit.backward_prefetch)]
        return self.finding(
            subject=name,
            kind=SubjectKind.UNIT,
            owner=name,
            severity=severity,
            message=f"its all-gather {text}" + (f"; prefetched by {by[0]}" if by else ""),
            evidence={"looks": looks, "prefetched_by": by},
        )
