"""D314 monolithic-root-unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import OwnershipFacts, ShardingFacts, UnitFacts

from ._layouts import live, once

_SHARDING_KINDS = ("fsdp2", "hsdp", "fsdp1", "hyperparallel")


@frozen(kw_only=True)
class MonolithOptions:
    """`min-elements`: models with fewer parameter elements are small; `share`: the part of them that is most."""

    min_elements: int = 50_000_000
    share: float = 0.5


class MonolithicRootUnit(Rule):
    """
    Most parameters are managed by the root unit, although the model has repeated blocks.

    ## What it does
    Adds up the elements that the root unit manages. More than half of all (option `share`), with blocks among them that
    repeat (`layers.0`, `layers.1`, ...), is reported, unless the model is small (option `min-elements`).

    ## Why it is unsafe
    The root unit is gathered at the start of the forward and kept until the backward ends: the whole model is on every
    rank at once, which is what sharding was to avoid. It shows as an out-of-memory, or as no overlap of communication.

    ## What to do
    Wrap each repeated block as a unit before wrapping the root; check that the wrap declaration names its class.
    """

    code = "D314"
    name = "monolithic-root-unit"
    phase = Phase.D3
    severity = Severity.WARNING
    needs = (Section.SHARDING,)
    related_config = ("fsdp_wrap_modules", "fsdp_plan")
    options_type = MonolithOptions

    noun = "root unit"

    def subjects(self, facts: Facts) -> Iterator[tuple[UnitFacts, list[OwnershipFacts]]]:
        sharding = facts.require(Section.SHARDING)
        for index, unit in enumerate(sharding.units):
            if unit.at_root and unit.kind in _SHARDING_KINDS:
                yield unit, list(sharding.of_unit(index))

    def judge(self, subject: tuple[UnitFacts, list[OwnershipFacts]], facts: Facts) -> Iterator[Finding]:
        sharding, (unit, records) = facts.require(Section.SHARDING), subject
        if any("global_shape" in layout.unknown for layout in sharding.layouts):
            raise NotEvaluated("the shapes of some parameters are not known")
        total = _elements(sharding, sharding.parameters)
        if total < self.options.min_elements:
            return
        elements, blocks = _elements(sharding, records), _repeated(record.fqn for record in records)
        if elements > total * self.options.share and blocks:
            yield self.monolith(unit, elements, total, blocks)

    def monolith(self, unit: UnitFacts, elements: int, total: int, blocks: dict[str, int]) -> Finding:
        names = ", ".join(f"{name}.* ({count})" for name, count in sorted(blocks.items())[:4])
        return self.finding(
            subject=unit.name,
            kind=SubjectKind.UNIT,
            owner=unit.owner,
            message=(
                f"the root unit manages {elements:,} of {total:,} elements ({elements * 100 // total} %), "
                f"with the repeated blocks {names}"
            ),
            evidence={"elements": elements, "total": total, "blocks": blocks},
        )


def _elements(sharding: ShardingFacts, records: Iterable[OwnershipFacts]) -> int:
    return sum(_numel(sharding.layout_of(record).global_shape) for record in once(live(records)))


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _repeated(names: Iterable[str]) -> dict[str, int]:
    """How many numbered children each list of blocks has, for the outermost lists with more than one."""
    blocks: dict[str, set[str]] = {}
    for name in names:
        segments = name.split(".")
        position = next((at for at, part in enumerate(segments) if part.isdigit()), None)
        if position:
            blocks.setdefault(".".join(segments[:position]), set()).add(segments[position])
    return dict(Counter({name: len(indices) for name, indices in blocks.items() if len(indices) > 1}))
