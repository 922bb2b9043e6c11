"""D501 coverage-incomplete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Severity, SubjectKind
from shardlint.analysis.coverage import (
    Coverage,
    CoverageStatus,
    SourceClass,
    TargetClass,
    coverage_of,
)
from shardlint.analysis.keys import ShapedCandidates
from shardlint.analysis.renamings import renames_entry
from shardlint.facts import TORCH_DTYPES, Renaming
from shardlint.names import counted
from shardlint_rules._files import WHOLE_CHECKPOINT
from shardlint_rules._sides import SideWords, side_of

_Form = tuple[tuple[int, ...], str]
_FORMLESS: _Form = ((-1,), "")


@frozen(slots=False)
class _Whole:
    """The coverage, and what findings about its keys need beside; made when the first of them does."""

    coverage: Coverage
    facts: Facts

    @cached_property
    def cures(self) -> tuple[Renaming, ...]:
        """The renamings that would cure keys that nothing else explains."""
        plan, open_keys = self.facts.plan, {*self.coverage.missing, *self.coverage.unexpected}
        if plan is None or self.coverage.basis != "plan":
            return ()
        return tuple(cure for cure in plan.cures if open_keys.issuperset((*cure.names, *cure.keys)))

    @cached_property
    def cured(self) -> frozenset[str]:
        """The names and keys of these."""
        return frozenset(name for cure in self.cures for name in (*cure.names, *cure.keys))

    @cached_property
    def near_source(self) -> ShapedCandidates:
        return ShapedCandidates({key: self.stored.get(key, _FORMLESS) for key in self.coverage.sources})

    @cached_property
    def near_target(self) -> ShapedCandidates:
        return ShapedCandidates({name: self.live.get(name, _FORMLESS) for name in _open(self.coverage)})

    @cached_property
    def stored(self) -> dict[str, _Form]:
        """Shape and dtype of the stored keys that found no place."""
        entries = self.facts.checkpoint.entries if self.facts.checkpoint else ()
        wanted = self.coverage.sources
        return {
            entry.key: (entry.shape, TORCH_DTYPES.get(entry.dtype, entry.dtype))
            for entry in entries
            if entry.key in wanted
        }

    @cached_property
    def live(self) -> dict[str, _Form]:
        """Shape and dtype of what has no source."""
        if self.facts.plan is not None:
            return {item.name: (item.shape, item.dtype) for item in self.facts.plan.tensors if not item.sources}
        tensors = self.facts.model.tensor_by_name() if self.facts.model else {}
        return {name: (tensors[name].shape, tensors[name].dtype) for name in _open(self.coverage) if name in tensors}

    @cached_property
    def beside(self) -> dict[str, str]:
        """Keys of files that lie beside those that loaders read, with the file."""
        entries = self.facts.checkpoint.extra_entries if self.facts.checkpoint else ()
        return {entry.key: entry.file for entry in entries}

    @cached_property
    def failed(self) -> dict[str, str]:
        """Tensors whose conversion fails, with the reason."""
        plan = self.facts.plan
        return (
            {} if plan is None else {tensor.name: tensor.reason for tensor in plan.tensors if tensor.status == "error"}
        )

    @cached_property
    def assumed(self) -> str:
        """Which class was assumed because the checkpoint names none; empty when it names one."""
        heads = self.facts.plan.heads if self.facts.plan else None
        if heads is None or not heads.assumed:
            return ""
        return f" (config.json names no architecture; {heads.stored_class} was assumed)"

    @cached_property
    def side(self) -> SideWords:
        return side_of(self.facts)


class _Key(NamedTuple):
    """A live or stored key, and what became of it."""

    key: str
    kind: TargetClass | SourceClass
    whole: _Whole


class CoverageIncomplete(Rule):
    """
    Live tensors without a source in the checkpoint, or checkpoint keys without a live tensor.

    ## What it does
    Classifies every key of `state_dict()` and every stored key that found no place: from the retained load report, or,
    without one, from the load plan, which follows the renamings and conversions of the loader over the headers. Ties,
    buffers that are not stored, old derived buffers, layers cut by the configuration, heads of another class and the
    contract's exclusions are accounted for. The finding names the nearest candidates on the other side: of the same
    shape first, then in the same layer, then by the name. Where one renaming would cure several keys, that is one
    finding, with the entry for the settings, which was tried by planning with it.

    ## Why it is unsafe
    A live tensor without a source keeps its random initialisation; a stored key without a target is trained knowledge
    that is thrown away. Loaders report both as a warning, or not at all, and training goes on.

    ## What to do
    Correct the names (a renamed module, a wrong prefix, the wrong class), or declare what is intended with
    `training_only_targets` and `inference_only_sources` in the contract.
    """

    code = "D501"
    name = "coverage-incomplete"
    phase = Phase.D5
    severity = Severity.ERROR
    tags = (WHOLE_CHECKPOINT,)
    related_config = ("contract.training-only-targets", "contract.inference-only-sources")

    noun = "key"

    def subjects(self, facts: Facts) -> Iterator[_Key | Renaming]:
        """Every key of `state_dict()`, and every stored key that found no place; those of one renaming together."""
        coverage = coverage_of(facts)
        if coverage.status is CoverageStatus.NOT_LOADED:
            raise NotEvaluated(coverage.reason)
        whole = _Whole(coverage, facts)
        yield from whole.cures
        for key, kind in coverage.targets.items():
            if key not in whole.cured:
                yield _Key(key, kind, whole)
        for key, source_kind in coverage.sources.items():
            if key not in whole.cured:
                yield _Key(key, source_kind, whole)

    def judge(self, subject: _Key | Renaming, facts: Facts) -> Iterable[Finding]:
        if isinstance(subject, Renaming):
            return (self._curable(subject, facts),)
        return (self._judged(*subject),) if subject.kind in _SAYINGS else ()

    def _judged(self, key: str, kind: TargetClass | SourceClass, whole: _Whole) -> Finding:
        missing = isinstance(kind, TargetClass)
        candidates = whole.near_source if missing else whole.near_target
        form = (whole.live if missing else whole.stored).get(key)
        text = _SAYINGS[kind][1].format(key=key, side=whole.side)
        text += f": its conversion fails ({whole.failed[key]})" if key in whole.failed else ""
        text += "" if missing else whole.assumed
        if kind is TargetClass.NEW_HEAD and whole.coverage.unread_parts:
            text = f"{key} has no source in what was read; not read: {', '.join(whole.coverage.unread_parts)}"
        text += f"; {whole.beside[key]}, which no loader reads, holds it" if missing and key in whole.beside else ""
        return self._finding(whole.coverage, key, kind, text, candidates.near(key, form))

    def subject_name(self, subject: _Key | Renaming) -> str:
        return subject.names[0] if isinstance(subject, Renaming) else subject.key

    def _curable(self, cure: Renaming, facts: Facts) -> Finding:
        side = side_of(facts)
        entry = renames_entry(cure)
        return self.finding(
            subject=cure.names[0],
            kind=SubjectKind.TENSOR,
            message=f"{counted(len(cure.names), side.tensor, side.tensors)} and as many stored keys differ by one "
            f"renaming: {cure.keys[0]} is for {cure.names[0]}; planned with this entry of checkpoint.renames all of "
            f"them are loaded: {entry}",
            evidence={"renames": entry, "keys": cure.keys[:50], "names": cure.names[:50]},
            key="renaming",
        )

    def _finding(
        self, coverage: Coverage, key: str, kind: TargetClass | SourceClass, text: str, near: tuple[str, ...]
    ) -> Finding:
        hint = f"; the nearest on the other side: {', '.join(near)}" if near else ""
        return self.finding(
            subject=key,
            kind=SubjectKind.TENSOR if isinstance(kind, TargetClass) else SubjectKind.KEY,
            severity=_SAYINGS[kind][0],
            message=f"{text}{hint}",
            evidence={"class": kind.value, "basis": coverage.basis, "nearest": near},
            key=kind.value,
        )


def _open(coverage: Coverage) -> tuple[str, ...]:
    wanted = (TargetClass.UNSUPPORTED_MISSING_TARGET, TargetClass.NEW_HEAD)
    return tuple(key for key, kind in coverage.targets.items() if kind in wanted)


_SAYINGS: dict[TargetClass | SourceClass, tuple[Severity, str]] = {
    TargetClass.UNSUPPORTED_MISSING_TARGET: (
        Severity.ERROR,
        "{side.named_tensor} {key} has no source in the checkpoint",
    ),
    TargetClass.NEW_HEAD: (
        Severity.WARNING,
        "{key} belongs to a head that the checkpoint's class does not have: nothing stored gives it",
    ),
    SourceClass.UNSUPPORTED_ARCHITECTURAL_MISMATCH: (Severity.ERROR, "the stored key {key} {side.no_place}"),
    SourceClass.UNUSED_HEAD: (Severity.INFO, "{key} belongs to a head that {side.of_class} does not have"),
    SourceClass.BEYOND_CONFIG: (Severity.INFO, "{key} belongs to a layer beyond those that the configuration asks for"),
}
