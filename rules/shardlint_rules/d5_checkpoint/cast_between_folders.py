"""D526 cast-between-folders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from shardlint import (
    Examined,
    Facts,
    Finding,
    HeavyRule,
    LiveTarget,
    NotEvaluated,
    Phase,
    Severity,
    Unfinished,
)
from shardlint.names import collapse, counted, natural_key, pattern_of
from shardlint.weights import Cast, CastsUnknownError, compare_casts
from shardlint_rules._files import READ_FILES


class CastBetweenFolders(HeavyRule):
    """
    A tensor of the checkpoint has another dtype than in the reference.

    ## What it does
    Runs when a checkpoint is compared with another one (`--reference`). Between two folders nothing casts: where the
    dtypes differ, somebody wrote the tensors anew. It reads both sides of these tensors, and of no others, and counts
    the elements that changed, by how much at most, those that became zero and those that reached the end of the range.
    Numbers that became integers or truth values, and a tensor of which every element became zero, are errors; another
    or a narrower dtype is a warning; a dtype that holds every value of the other one is information. A dtype that
    `--allow-cast` or `checkpoint.allow-cast` names is meant: then only a tensor that was erased is told.

    ## Why it is unsafe
    The two folders are not the same weights any more, and each loads without a word. Whoever continues from the
    narrower one loses small values for good; integers without a scale are no weights at all.

    ## What to do
    Export again in the dtype of the reference. If the cast is meant, say so with `--allow-cast bfloat16` or
    `checkpoint.allow-cast`.
    """

    code = "D526"
    name = "cast-between-folders"
    phase = Phase.D5
    severity = Severity.WARNING
    tags = (READ_FILES,)
    noun = "tensor"
    related_config = ("checkpoint.allow-cast", "checkpoint.fuse")

    def check_live(self, facts: Facts, live: LiveTarget) -> Iterator[Finding | Examined]:
        if live.checkpoint is None or live.reference is None:
            raise NotEvaluated("it compares two checkpoints, and no reference was given")
        try:
            report = compare_casts(
                live.checkpoint, live.reference, allow=live.allow_cast, fusions=live.fusions, stop=live.stop
            )
        except CastsUnknownError as error:
            raise NotEvaluated(str(error)) from error
        groups: dict[tuple[str, str, str, Severity], list[Cast]] = defaultdict(list)
        for cast in report.casts:
            severity = _severity(cast)
            if severity is not None:
                groups[pattern_of(cast.name), cast.reference_dtype, cast.dtype, severity].append(cast)
        for (_, _, _, level), members in groups.items():
            yield self._finding(sorted(members, key=lambda cast: natural_key(cast.name)), level)
        yield Examined(judged=report.tensors, evidence=_evidence(report.casts, report.tensors))
        if report.interrupted:
            raise Unfinished("the run was interrupted")

    def _finding(self, members: Sequence[Cast], severity: Severity) -> Finding:
        first = members[0]
        return self.finding(
            subject=collapse([cast.name for cast in members]),
            severity=severity,
            message=_message(members),
            evidence={
                "dtype": first.dtype,
                "reference_dtype": first.reference_dtype,
                "tensors": len(members),
                "elements": sum(cast.elements for cast in members),
                "changed": sum(cast.changed for cast in members),
                "flushed_to_zero": sum(cast.flushed for cast in members),
                "saturated": sum(cast.saturated for cast in members),
                "max_abs": _largest(members),
            },
            key=f"{first.reference_dtype}:{first.dtype}",
        )


def _severity(cast: Cast) -> Severity | None:
    if cast.erased or (cast.integral and not cast.allowed):
        return Severity.ERROR
    if cast.allowed:
        return None
    return Severity.INFO if cast.lossless else Severity.WARNING


def _message(members: Sequence[Cast]) -> str:
    first = members[0]
    changed, elements = sum(cast.changed for cast in members), sum(cast.elements for cast in members)
    several = f" in {len(members)} tensors" if len(members) > 1 else ""
    text = (
        f"{first.reference_dtype} in the reference, {first.dtype} here: {changed:,} of {elements:,} elements{several}"
    )
    largest = _largest(members)
    text += " changed" + (f", by at most {largest:.3g}" if changed and largest is not None else "")
    flushed, saturated = sum(cast.flushed for cast in members), sum(cast.saturated for cast in members)
    text += f"; {flushed:,} became zero" if flushed else ""
    text += f"; {saturated:,} lie outside of its range" if saturated else ""
    return text + ("; nothing but zeros is left" if any(cast.erased for cast in members) else "")


def _largest(members: Sequence[Cast]) -> float | None:
    errors = [cast.max_abs for cast in members]
    return None if any(error is None for error in errors) else max(error or 0.0 for error in errors)


def _evidence(found: Sequence[Cast], tensors: int) -> str:
    if not found:
        return f"{counted(tensors, 'tensor')}, each in the dtype of the reference"
    kinds = dict.fromkeys(f"{cast.reference_dtype} -> {cast.dtype}" for cast in found)
    return f"{len(found):,} of {counted(tensors, 'tensor')} cast: {', '.join(kinds)}"
