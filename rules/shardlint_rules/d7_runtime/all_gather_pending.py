"""D703 all-gather-pending."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind

from ._words import runtime_of


class AllGatherPending(Rule):
    """
    An all-gather of a unit's parameters was still unconsumed when the optimizer stepped.

    ## What it does
    Looks at every unit before each traced optimizer step (without one: at the end of the trace, when a backward ran)
    for an all-gather that was started and that no forward or backward waited for.

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
        runtime = runtime_of(facts)
        if not any(unit.sharded for unit in runtime.units):
            return
        if not runtime.optimizer_stepped and runtime.raised:
            raise NotEvaluated(f"no optimizer step was traced; the traced block raised {runtime.raised}")
        if not runtime.optimizer_stepped and not runtime.backwards:
            raise NotEvaluated("neither a backward nor an optimizer step was traced")
        moments: dict[str, list[int]] = {}
        for item in runtime.pending:
            moments.setdefault(item.unit, []).append(item.look)
        for name, looks in moments.items():
            when = "at the optimizer step" if runtime.looks[looks[0]] == "optimizer-step" else "after the backward"
            by = [unit.name for unit in runtime.units if name in (*unit.forward_prefetch, *unit.backward_prefetch)]
            yield self.finding(
                subject=name,
                kind=SubjectKind.UNIT,
                owner=name,
                message=f"its all-gather was still unconsumed {when}" + (f"; prefetched by {by[0]}" if by else ""),
                evidence={"looks": looks, "prefetched_by": by},
            )
