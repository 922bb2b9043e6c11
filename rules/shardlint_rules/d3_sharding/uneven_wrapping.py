"""D317 uneven-wrapping."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import field, frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.facts import OwnershipFacts, ShardingFacts, known
from shardlint.names import counted, glob_matches, listed, ordered, pattern_of

from ._layouts import live

_SHARDING_KINDS = ("fsdp2", "hsdp", "replicate", "fsdp1", "hyperparallel")
_Contents = frozenset[tuple[str, tuple[int, ...]]]


@frozen(kw_only=True)
class WrappingOptions:
    """`left`: globs of modules that are left to the unit around them on purpose."""

    left: tuple[str, ...] = ()


@frozen
class _Blocks:
    """Modules of one pattern of names: those that are units, and the owners of the parameters of the others."""

    name: str
    contents: dict[str, _Contents]
    units: frozenset[str]
    owners: dict[str, tuple[str, ...]]
    shapes_known: bool = field(default=True)


class UnevenWrapping(Rule):
    """
    Of alike repeated blocks some are units, and the parameters of others fell into the unit around them.

    ## What it does
    Brings modules together whose names differ in numbers only (`layers.0.experts`, `layers.1.experts`, ...) and which
    hold parameters of the same names and shapes. Where some are units by themselves, and another is not and has its
    parameters in the unit of a module around it, it is reported. Blocks that are left out on purpose are named in the
    option `left`; a block that differs from all that are units is not reported, nor one whose parts are units.

    ## Why it is unsafe
    The block is gathered with everything that the unit around it holds, for as long as that lives: memory peaks, and
    its communication no longer overlaps. Where the unit around it reduces over other ranks (experts that fell into the
    dense root), its gradients are averaged over the wrong ranks.

    ## What to do
    Wrap every block of the kind before the module around it is wrapped; look for a condition or an index in the code
    that wraps, and for a class that was replaced in one layer only.
    """

    code = "D317"
    name = "uneven-wrapping"
    phase = Phase.D3
    severity = Severity.WARNING
    needs = (Section.SHARDING,)
    related_config = ("fsdp_plan", "fsdp_wrap_modules")
    options_type = WrappingOptions
    noun = "group of repeated blocks"

    def subjects(self, facts: Facts) -> Iterator[_Blocks]:
        sharding = facts.require(Section.SHARDING)
        units = [unit for unit in sharding.units if unit.kind in _SHARDING_KINDS]
        wrapped = frozenset(name for unit in units for name in unit.modules)
        # The children of a root that is itself a sequence are its parts and no repeated blocks.
        patterns = {pattern_of(name) for name in wrapped if any(part.isdigit() for part in name.split(".")[1:])}
        members = _members(sharding, patterns)
        for pattern in sorted(members):
            blocks = members[pattern]
            inside = {name: ordered({record.owner for record, _ in parts}) for name, parts in blocks.items()}
            contents = {name: _contents(sharding, parts) for name, parts in blocks.items()}
            unread = any(
                "global_shape" in sharding.layout_of(one).unknown for parts in blocks.values() for one, _ in parts
            )
            if len(blocks) > 1:
                yield _Blocks(pattern, contents, wrapped.intersection(blocks), inside, not unread)

    def judge(self, blocks: _Blocks, facts: Facts) -> Iterator[Finding]:
        if not blocks.shapes_known:
            raise NotEvaluated("the shapes of their parameters are not known")
        alike = {blocks.contents[name] for name in blocks.units}
        fallen = [
            name
            for name, contents in blocks.contents.items()
            if name not in blocks.units
            and contents in alike
            and all(_is_around(owner, name) for owner in blocks.owners[name])
            and not any(glob_matches(glob, name) for glob in self.options.left)
        ]
        if fallen:
            names = ordered(fallen)
            owners = ordered({owner for name in names for owner in blocks.owners[name]})
            yield self.finding(
                subject=names[0],
                owner=owners[0],
                message=f"{counted(len(blocks.units), 'alike block')} of {blocks.name} "
                f"{'is a unit' if len(blocks.units) == 1 else 'are units'}, "
                f"{listed(names)} {'is' if len(names) == 1 else 'are'} none and fell into {listed(owners)}",
                evidence={"units": ordered(blocks.units), "fallen": names, "owners": owners},
            )


def _members(sharding: ShardingFacts, patterns: set[str]) -> dict[str, dict[str, list[tuple[OwnershipFacts, str]]]]:
    """The managed parameters below modules of those patterns, by pattern and module, with their names inside it."""
    members: dict[str, dict[str, list[tuple[OwnershipFacts, str]]]] = {}
    depths = {pattern.count(".") + 1 for pattern in patterns}
    for record in live(sharding.parameters):
        parts = record.fqn.split(".")
        for depth in depths:
            module = ".".join(parts[:depth])
            if known(record.unit) is not None and depth < len(parts) and pattern_of(module) in patterns:
                inside = ".".join(parts[depth:])
                members.setdefault(pattern_of(module), {}).setdefault(module, []).append((record, inside))
    return members


def _contents(sharding: ShardingFacts, parts: list[tuple[OwnershipFacts, str]]) -> _Contents:
    return frozenset((inside, sharding.layout_of(record).global_shape) for record, inside in parts)


def _is_around(owner: str, name: str) -> bool:
    """Whether the unit is that of a module around the block: the root, or one whose name the block's begins with."""
    return any(module == "<root>" or name.startswith(f"{module}.") for module in owner.split("+"))
