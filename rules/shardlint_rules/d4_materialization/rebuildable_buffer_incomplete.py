"""D402 rebuildable-buffer-incomplete."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.facts import RebuildableBufferFacts
from shardlint.names import owner_of


class RebuildableBufferIncomplete(Rule):
    """
    A derived buffer that its module promises to rebuild was not rebuilt, or cannot be.

    ## What it does
    Takes every buffer for which a module carries a recipe and checks that it is there, is not persistent, is off the
    meta device, and that the recipe names a source or a factory.

    ## Why it is unsafe
    Such a buffer is stored in no checkpoint. If its recipe did not run, nothing else writes it, and positions or masks
    computed from it are silently wrong.

    ## What to do
    Run the module's rebuild after materialization, register the buffer with `persistent=False`, and give the recipe a
    source buffer or a factory.
    """

    code = "D402"
    name = "rebuildable-buffer-incomplete"
    phase = Phase.D4
    severity = Severity.ERROR
    needs = (Section.MODEL,)
    noun = "derived buffer"

    def subjects(self, facts: Facts) -> tuple[RebuildableBufferFacts, ...]:
        return facts.require(Section.MODEL).rebuildable_buffers

    def judge(self, buffer: RebuildableBufferFacts, facts: Facts) -> Iterator[Finding]:
        if reasons := _reasons(buffer):
            yield self.finding(
                subject=buffer.fqn,
                message=f"the derived buffer {buffer.fqn} {' and '.join(reasons)}",
                evidence={"reasons": reasons},
                owner=owner_of(buffer.fqn),
            )


def _reasons(buffer: RebuildableBufferFacts) -> list[str]:
    reasons = []
    if not buffer.present:
        reasons.append("is missing")
    if buffer.persistent:
        reasons.append("became persistent")
    if buffer.is_meta:
        reasons.append("is still meta")
    if not (buffer.has_source or buffer.has_factory):
        reasons.append("has a recipe with neither source nor factory")
    return reasons
