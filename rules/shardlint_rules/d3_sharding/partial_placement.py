"""D310 partial-placement."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.boxes import PARTIAL
from shardlint.facts import OwnershipFacts

from ._layouts import axis_name, live, once, refuse_strange


class PartialPlacement(Rule):
    """
    A parameter has a Partial placement: each rank holds a summand of its value.

    ## What it does
    Looks for `Partial` among the placements of every parameter.

    ## Why it is unsafe
    A Partial tensor is an unfinished result, no weight: its value is the sum over the ranks. Used as a parameter it is
    summed in every forward, its gradient and its optimizer state mean something else on every rank, and a checkpoint
    holds whichever part was written.

    ## What to do
    Redistribute it before it becomes a parameter: `redistribute(placements=[Replicate()])`, or a shard.
    """

    code = "D310"
    name = "partial-placement"
    phase = Phase.D3
    severity = Severity.ERROR
    needs = (Section.SHARDING,)

    noun = "distributed parameter"

    def subjects(self, facts: Facts) -> Iterator[OwnershipFacts]:
        sharding = facts.require(Section.SHARDING)
        for record in once(live(sharding.parameters)):
            layout = sharding.layout_of(record)
            if layout.placements or layout.source_placements:
                yield record

    def judge(self, record: OwnershipFacts, facts: Facts) -> Iterator[Finding]:
        sharding = facts.require(Section.SHARDING)
        layout = sharding.layout_of(record)
        for index, placements in ((layout.mesh, layout.placements), (layout.source_mesh, layout.source_placements)):
            mesh = sharding.mesh(index)
            axes = [at for at, axis_placement in enumerate(placements) if axis_placement.kind == PARTIAL]
            if axes and mesh is not None:
                names = [axis_name(mesh, at) for at in axes]
                yield self.finding(
                    subject=record.fqn,
                    owner=record.owner,
                    message=f"expected shards and replicas, found a Partial placement along {', '.join(names)}",
                    evidence={"mesh": mesh.text(), "placements": [placement.text for placement in placements]},
                )
                return
        refuse_strange(layout)
