"""D316 layout-lies."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.boxes import Box
from shardlint.facts import LayoutFacts, OwnershipFacts, known

from ._layouts import live, once, refuse_strange


class LayoutLies(Rule):
    """
    The placements of a parameter do not say where its data is.

    ## What it does
    Replays the placements in integers and compares the boxes of the global tensor that follow with those that the order
    of construction gave (tensor or expert parallelism first, then data-parallel sharding of that local tensor), and the
    local shape that follows with the one at hand.

    ## Why it is unsafe
    Whatever trusts the placements moves the wrong elements: `full_tensor()` returns permuted weights, a distributed
    checkpoint is written with overlapping or exchanged shards, a load fills the wrong rows. Known causes are packed
    (strided) tensor-parallel shards with data-parallel sharding on the same dim, an uneven dim sharded twice over three
    or more data-parallel ranks, and `DTensor.from_local` of a shard with another shape.

    ## What to do
    Shard data-parallel along another dim (`shard_placement_fn`), make the dim divisible by the product of both degrees,
    or redistribute to plain shards before saving.
    """

    code = "D316"
    name = "layout-lies"
    phase = Phase.D3
    severity = Severity.ERROR
    needs = (Section.SHARDING,)

    noun = "parameter"

    def subjects(self, facts: Facts) -> Iterator[OwnershipFacts]:
        sharding = facts.require(Section.SHARDING)
        for record in once(live(sharding.parameters)):
            layout = sharding.layout_of(record)
            on_mesh = known(layout.mesh) is not None or known(layout.source_mesh) is not None
            if "boxes" in layout.unknown or (on_mesh and layout.replayed_shape is not None):
                yield record

    def judge(self, record: OwnershipFacts, facts: Facts) -> Iterator[Finding]:
        layout = facts.require(Section.SHARDING).layout_of(record)
        if "boxes" in layout.unknown or "local_shape" in layout.unknown:
            refuse_strange(layout)
            raise NotEvaluated("its layout is not known")
        return self.compare(record, layout)

    def compare(self, record: OwnershipFacts, layout: LayoutFacts) -> Iterator[Finding]:
        if layout.replayed_shape != layout.local_shape:
            said, real = str(list(layout.replayed_shape or ())), str(list(layout.local_shape))
            what = "local shape"
        elif (boxes := known(layout.boxes)) is not None and layout.built is not None and boxes != layout.built:
            said, real = _text(boxes), _text(layout.built)
            what = "part of the tensor"
        else:
            return
        yield self.finding(
            subject=record.fqn,
            owner=record.owner,
            message=f"{what}: the placements say {said}, this rank holds {real}",
            evidence={
                "placements": [placement.text for placement in layout.placements],
                "global_shape": layout.global_shape,
                "said": said,
                "held": real,
            },
        )


def _text(boxes: tuple[Box, ...]) -> str:
    return " and ".join(box.text() for box in boxes) or "nothing"
