"""D318 topology-violated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shardlint import Facts, Finding, FrozenDict, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.model_config import config_number, is_whole_number
from shardlint.facts import MeshFacts
from shardlint.names import did_you_mean

_FIELDS = ("name", "axis", "divides", "minimum", "maximum")


class TopologyViolated(Rule):
    """
    A mesh axis has a size that the contract's topology constraints rule out.

    ## What it does
    Compares each constraint under `contract.topology` with the device meshes of the run: the size of the named axis is
    at least `minimum`, at most `maximum`, and divides `divides`, which is a number or a key of the model's
    configuration. A constraint whose axis or key is not there, or that says something else, is not evaluated.

    ## Why it is unsafe
    The owner of the model declared where its sharding is known to be right. Beyond that experts or heads are cut in
    the middle, or ranks hold nothing, and no message says so.

    ## What to do
    Start the run with another size of that axis, or correct the constraint.
    """

    code = "D318"
    name = "topology-violated"
    phase = Phase.D3
    severity = Severity.ERROR
    needs = (Section.CONTRACT, Section.SHARDING)
    related_config = ("contract.topology",)

    noun = "topology constraint"

    def subjects(self, facts: Facts) -> Iterable[FrozenDict]:
        return facts.require(Section.CONTRACT).topology

    def judge(self, constraint: FrozenDict, facts: Facts) -> Iterator[Finding]:
        meshes = facts.require(Section.SHARDING).meshes
        config = facts.model.config if facts.model else None
        for size in sorted(_sizes(meshes, constraint.get("axis"))):
            if reasons := list(_broken(constraint, size, config)):
                yield self._violated(constraint, size, reasons)
        if unclear := list(_unclear(constraint, meshes, config)):
            raise NotEvaluated(f"it cannot be judged: {'; '.join(unclear)}")

    def subject_name(self, constraint: FrozenDict) -> str:
        return str(constraint["name"])

    def _violated(self, constraint: FrozenDict, size: int, reasons: list[str]) -> Finding:
        return self.finding(
            subject=str(constraint["name"]),
            kind=SubjectKind.CONFIG,
            message=f"the mesh axis {constraint['axis']} has size {size}, expected {' and '.join(reasons)}",
            evidence={"constraint": constraint, "size": size},
            key=str(size),
        )


def _sizes(meshes: tuple[MeshFacts, ...], axis: object) -> set[int]:
    """The sizes that the axis has: one, unless two meshes give one name to different axes."""
    return {size for mesh in meshes for name, size in zip(mesh.axes, mesh.shape, strict=False) if name == axis}


def _broken(constraint: FrozenDict, size: int, config: Mapping[str, Any] | None) -> Iterator[str]:
    """What the constraint demands and `size` is not."""
    minimum, maximum = constraint.get("minimum"), constraint.get("maximum")
    if is_whole_number(minimum) and size < minimum:
        yield f"at least {minimum}"
    if is_whole_number(maximum) and size > maximum:
        yield f"at most {maximum}"
    whole, divides = _divided(constraint, config), constraint.get("divides")
    if whole is not None and whole % size:
        yield f"a divisor of {whole}" + ("" if whole == divides else f" ({divides})")


def _divided(constraint: FrozenDict, config: Mapping[str, Any] | None) -> int | None:
    """The number that the axis must divide; None when nothing says it."""
    divides = constraint.get("divides")
    return config_number(config, divides) if isinstance(divides, str) else divides if is_whole_number(divides) else None


def _unclear(constraint: FrozenDict, meshes: tuple[MeshFacts, ...], config: Mapping[str, Any] | None) -> Iterator[str]:
    """Why (a part of) the constraint cannot be judged."""
    axis, axes = constraint.get("axis"), sorted({name for mesh in meshes for name in mesh.axes})
    if axis not in axes:
        known = ", ".join(axes) or "none that has a name"
        yield f"the run has no mesh axis {axis!r}{did_you_mean(str(axis), axes)}; its axes: {known}"
    if "divides" in constraint and _divided(constraint, config) is None:
        yield f"the configuration has no whole number {constraint['divides']!r}"
    yield from (f"no whole number: {name}" for name in ("minimum", "maximum") if _no_number(constraint.get(name)))
    if strange := [name for name in constraint if name not in _FIELDS]:
        yield f"not understood: {', '.join(strange)}"


def _no_number(value: object) -> bool:
    return value is not None and not is_whole_number(value)
