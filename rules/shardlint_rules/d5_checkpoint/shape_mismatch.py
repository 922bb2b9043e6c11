"""D504 shape-mismatch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, Unknown
from shardlint.analysis.coverage import retained_report
from shardlint.analysis.keys import KeyResolver, identity_reason, unread_files
from shardlint.facts import (
    CheckpointFacts,
    EntryFacts,
    LoadRemark,
    MismatchedKey,
    ModelFacts,
    PlanFacts,
    TensorFacts,
    TensorPlan,
    known,
)
from shardlint.names import counted
from shardlint_rules._files import READ_FILES

Shape = tuple[int, ...]


@frozen
class _Odd:
    """A tensor of which one of many sources has another shape than the rest."""

    remark: LoadRemark
    tensor: TensorPlan


@frozen
class _Stored:
    """A stored tensor, and the live one that it is for."""

    name: str
    entry: EntryFacts
    tensor: TensorFacts


@frozen
class _Loaded:
    """A key that the loader says it loaded."""

    key: str


_Subject = MismatchedKey | TensorPlan | _Odd | _Stored | _Loaded | Unknown


class ShapeMismatch(Rule):
    """
    A stored tensor has another shape than the live tensor that it is for.

    ## What it does
    Reports what the load report calls mismatched, and compares the global shapes of live tensors with the shapes that
    their sources have after the conversions of the load plan. It says so when the sizes are the same in another order.
    Of tensors that a conversion puts together (the experts of a layer), it names those that have another shape than
    the rest.

    ## Why it is unsafe
    A loader that is told to ignore mismatched sizes leaves the live tensor at its random initialisation. A transposed
    square matrix would not even be noticed: one that is not square is the only sign.

    ## What to do
    Load with the configuration that the checkpoint was saved with; transpose or reshape where the stored layout is
    another; resize the embedding before loading if the vocabulary was meant to differ.
    """

    code = "D504"
    name = "shape-mismatch"
    phase = Phase.D5
    severity = Severity.ERROR
    tags = (READ_FILES,)

    noun = "tensor"

    def subjects(self, facts: Facts) -> Iterator[_Subject]:
        """What the report calls mismatched, and every other tensor of the plan, or of the headers without a plan."""
        report = retained_report(facts)
        mismatched = report.mismatched if report else ()
        yield from mismatched
        told = {mismatch.key for mismatch in mismatched}
        if facts.plan is not None:
            yield from _planned(facts.plan, told)
            return
        reason = _reason(facts)
        if reason and report is None:
            raise NotEvaluated(reason)
        if report is not None:  # what the loader did not report has the right shape
            yield from (_Loaded(key) for key in known(report.loaded) or () if key not in told)
        if not reason and facts.checkpoint is not None and facts.model is not None:
            yield from _in_headers(facts.model, facts.checkpoint, told)

    def judge(self, subject: _Subject, facts: Facts) -> Iterable[Finding]:
        if isinstance(subject, TensorPlan):
            return self._planned(subject) if subject.status == "mismatched" else ()
        if isinstance(subject, _Stored):
            return self._stored(subject)
        if isinstance(subject, MismatchedKey):
            return (self._finding(subject.key, subject.key, subject.stored_shape, subject.live_shape),)
        if isinstance(subject, _Loaded):
            return ()
        odd = known(subject)
        return (self._odd(odd.remark, odd.tensor),)

    def _planned(self, tensor: TensorPlan) -> Iterator[Finding]:
        shape = known(tensor.converted_shape)
        if shape is not None:
            plain = not tensor.operations
            yield (
                self._finding(tensor.name, tensor.sources[0], shape, tensor.shape)
                if plain
                else self._converted(tensor, shape)
            )

    def _stored(self, stored: _Stored) -> Iterator[Finding]:
        tensor, shape = stored.tensor, stored.entry.shape
        if tensor.shape == shape:
            return
        if tensor.unreadable:
            raise NotEvaluated("its live tensor cannot be read")
        if tensor.numel == 0 and 0 not in shape:
            raise NotEvaluated("the live tensor is empty here: its elements are held elsewhere")
        yield self._finding(stored.name, stored.entry.key, shape, tensor.shape)

    def _odd(self, remark: LoadRemark, tensor: TensorPlan) -> Finding:
        return self.finding(
            subject=remark.name,
            message=f"{remark.name}: expected one shape for the {len(tensor.sources)} stored tensors that "
            f"{' and '.join(tensor.operations)} puts together into {list(tensor.shape)}, found: {remark.detail}",
            evidence={"keys": remark.keys[:50], "live_shape": tensor.shape, "relation": "odd"},
            key=f"odd:{remark.keys[0]}",
        )

    def _converted(self, tensor: TensorPlan, shape: Shape) -> Finding:
        how = " and ".join(tensor.operations)
        return self.finding(
            subject=tensor.name,
            message=f"{tensor.name}: expected {how} of {counted(len(tensor.sources), 'stored tensor')} to give "
            f"{list(tensor.shape)}, found {list(shape)}{_hint(shape, tensor.shape)}",
            evidence={
                "keys": tensor.sources[:50],
                "converted_shape": shape,
                "live_shape": tensor.shape,
                "relation": _relation(shape, tensor.shape),
            },
        )

    def _finding(self, name: str, key: str, stored: Shape, live: Shape) -> Finding:
        text = f"expected the stored shape to be {list(live)}, found {list(stored)}{_hint(stored, live)}"
        if stored == live:  # a loader that says that a key mismatches, and not how
            text = "the loader reports another shape, and not which"
        return self.finding(
            subject=name,
            message=f"{name}: {text}",
            evidence={"key": key, "stored_shape": stored, "live_shape": live, "relation": _relation(stored, live)},
        )


def _planned(plan: PlanFacts, told: set[str]) -> Iterator[TensorPlan | _Odd | Unknown]:
    yield from (tensor for tensor in plan.tensors if tensor.name not in told)
    tensors = plan.tensor_by_name() if plan.remarks else {}
    yield from (_Odd(remark, tensors[remark.name]) for remark in plan.remarks if remark.kind == "odd-shape")
    yield from map(_unread, plan.unread)


def _in_headers(model: ModelFacts, checkpoint: CheckpointFacts, told: set[str]) -> Iterator[_Stored | Unknown]:
    resolver, tensors = KeyResolver(model), model.tensor_by_name()
    for key, entry in checkpoint.entry_by_key().items():
        name = resolver.live_name(key)
        if name is not None and name not in told:
            yield _Stored(name, entry, tensors[name])
    yield from map(_unread, unread_files(checkpoint))


def _unread(file: str) -> Unknown:
    return Unknown(f"no shapes could be read from {file}")


def _reason(facts: Facts) -> str | None:
    """Why nothing can be compared without a plan."""
    if facts.model is None:
        return f"{facts.why_absent(Section.MODEL)}; {facts.why_absent(Section.PLAN)}"
    if facts.checkpoint is None and retained_report(facts) is None:
        return f"no load report was retained; {facts.why_absent(Section.CHECKPOINT)}"
    return identity_reason(facts)


def _relation(stored: Shape, live: Shape) -> str:
    if stored == live[::-1]:
        return "transposed"
    if sorted(stored) == sorted(live):
        return "permuted"
    if _elements(stored) == _elements(live):
        return "reshaped"
    return "different"


def _elements(shape: Shape) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _hint(stored: Shape, live: Shape) -> str:
    hints = {
        "transposed": ", which is the transpose",
        "permuted": ", the same sizes in another order",
        "reshaped": ", which has as many elements",
    }
    return hints.get(_relation(stored, live), "") or _shard_hint(stored, live)


def _shard_hint(stored: Shape, live: Shape) -> str:
    """Whether an even part of one dimension is stored, as a rank's own shard is."""
    if len(stored) != len(live):
        return ""
    odd = [place for place, (found, wanted) in enumerate(zip(stored, live, strict=True)) if found != wanted]
    if len(odd) != 1 or not 0 < stored[odd[0]] < live[odd[0]] or live[odd[0]] % stored[odd[0]]:
        return ""
    return f", 1 of {live[odd[0]] // stored[odd[0]]} parts of dimension {odd[0]}, as one rank's shard is"
