"""D504 shape-mismatch."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.analysis.coverage import retained_report
from shardlint.analysis.keys import KeyResolver, identity_reason, unread_files
from shardlint.facts import CheckpointFacts, LoadRemark, ModelFacts, PlanFacts, TensorPlan
from shardlint.names import counted
from shardlint_rules._files import READ_FILES

Shape = tuple[int, ...]


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

    def check(self, facts: Facts) -> Iterator[Finding]:
        report = retained_report(facts)
        told = set()
        for mismatch in report.mismatched if report else ():
            told.add(mismatch.key)
            yield self._finding(mismatch.key, mismatch.key, mismatch.stored_shape, mismatch.live_shape)
        if facts.plan is not None:
            yield from self._from_plan(facts.plan, told)
            if facts.plan.unread:
                raise NotEvaluated(f"no shapes could be read from {', '.join(facts.plan.unread)}")
            return
        reason = _reason(facts)
        if reason and report is None:
            raise NotEvaluated(reason)
        if reason or facts.checkpoint is None or facts.model is None:
            return
        yield from self._from_headers(facts.model, facts.checkpoint, told)
        if unread := unread_files(facts.checkpoint):
            raise NotEvaluated(f"no shapes could be read from {', '.join(unread)}")

    def _from_plan(self, plan: PlanFacts, told: set[str]) -> Iterator[Finding]:
        for tensor in plan.tensors:
            if tensor.status != "mismatched" or tensor.name in told or tensor.converted_shape is None:
                continue
            if tensor.operations:
                yield self._converted(tensor, tensor.converted_shape)
            else:
                yield self._finding(tensor.name, tensor.sources[0], tensor.converted_shape, tensor.shape)
        tensors = plan.tensor_by_name() if plan.remarks else {}
        for remark in plan.remarks:
            if remark.kind == "odd-shape":
                yield self._odd(remark, tensors[remark.name])

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

    def _from_headers(self, model: ModelFacts, checkpoint: CheckpointFacts, told: set[str]) -> Iterator[Finding]:
        resolver, tensors = KeyResolver(model), model.tensor_by_name()
        elsewhere = 0
        for key, entry in checkpoint.entry_by_key().items():
            name = resolver.live_name(key)
            if name is None or name in told or tensors[name].shape == entry.shape or tensors[name].unreadable:
                continue
            if tensors[name].numel == 0 and 0 not in entry.shape:
                elsewhere += 1
            else:
                yield self._finding(name, key, entry.shape, tensors[name].shape)
        if elsewhere:
            raise NotEvaluated(f"{elsewhere} live tensors are empty here: their elements are held elsewhere")

    def _finding(self, name: str, key: str, stored: Shape, live: Shape) -> Finding:
        text = f"expected the stored shape to be {list(live)}, found {list(stored)}{_hint(stored, live)}"
        if stored == live:  # a loader that says that a key mismatches, and not how
            text = "the loader reports another shape, and not which"
        return self.finding(
            subject=name,
            message=f"{name}: {text}",
            evidence={"key": key, "stored_shape": stored, "live_shape": live, "relation": _relation(stored, live)},
        )


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
    return hints.get(_relation(stored, live), "")
