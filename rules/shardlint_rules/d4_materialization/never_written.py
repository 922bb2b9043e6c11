"""D405 never-written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from attrs import frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity
from shardlint.analysis.wrapper_names import is_saved_copy
from shardlint.facts import SkippedTensor, TensorFacts, TensorValues
from shardlint.names import counted, glob_matches, owner_of

_ZERO_BY_DESIGN = ("**.lora_B.**", "**.lora_embedding_B.**", "**.lora_magnitude_vector.**", "**.vera_lambda_*.**")
_LARGE = 1e8


@frozen(kw_only=True)
class NeverWrittenOptions:
    """`by_design`: further globs of parameters that begin as zeros or as another constant."""

    by_design: tuple[str, ...] = ()


class NeverWritten(Rule):
    """
    Nobody wrote a parameter or buffer since it got storage.

    ## What it does
    After `shardlint.watch_writes(model)` it is known exactly which tensors, and how many elements of others, nobody
    wrote: each is an error. So is a tensor of any shape that Transformers found nothing for in the checkpoint, when the
    initialiser of its model writes nothing to it, which is tried on a copy, and nobody wrote to it since (a warning
    when it is zero everywhere: zeros may have been put in its place). Without the
    watch, matrices that are one constant everywhere, or that hold absurdly large numbers, are reported as what they
    look like: a warning when a loader reported that it filled them, else a remark, and an error when every matrix of
    the model is constant. Vectors, biases, whole numbers
    (packed weights), adapter tensors that are zero, constants that the checkpoint holds just so and the globs of the
    option `by-design` are left out of that.

    ## Why it is unsafe
    Memory that was never written holds zeros or another process's numbers. A loader that matches by name can report a
    full match while one tensor was never reached; with zeros the layer is silent, and with garbage it is wrong only on
    some runs.

    ## What to do
    Initialise or load the tensor; look at what the loader says of its key. Call `watch_writes` after `to_empty` to be
    sure.
    """

    code = "D405"
    name = "never-written"
    phase = Phase.D4
    severity = Severity.ERROR
    needs = (Section.VALUES, Section.MODEL)
    options_type = NeverWrittenOptions

    noun = "tensor"

    def subjects(self, facts: Facts) -> Iterator[tuple[TensorValues | SkippedTensor, _Known]]:
        values, known_once = facts.require(Section.VALUES), _Known(facts)
        for seen in chain[TensorValues | SkippedTensor](values.tensors, values.skipped):
            yield seen, known_once

    def judge(self, subject: tuple[TensorValues | SkippedTensor, _Known], facts: Facts) -> Iterable[Finding]:
        seen, run = subject
        if seen.fqn in run.uninitialised:
            return (self.uninitialised(seen, run.ranks),)
        if isinstance(seen, SkippedTensor):
            raise NotEvaluated(seen.reason)
        if run.watched:
            if seen.unwritten is None:
                raise NotEvaluated("the watch could not follow its parts")
            return (self.unwritten(seen, run.ranks),) if seen.unwritten else ()
        if seen.as_stored or (seen.zero and seen.fqn in run.adapted):
            return ()  # every kind of adapter begins with one factor of zeros, not all with the same one
        tensor = run.tensors.get(seen.fqn)
        if tensor is not None and self.is_due(tensor) and (what := _looks(seen)):
            return (self.hint(seen, what, run.full, all(run.constant(self.is_due))),)
        return ()

    def is_due(self, tensor: TensorFacts) -> bool:
        """Whether an initialiser gives the tensor different numbers: a matrix that is not meant to begin constant."""
        globs = (*_ZERO_BY_DESIGN, *self.options.by_design)
        declared = any(glob_matches(glob, name) for glob in globs for name in tensor.aliases)
        if tensor.fqn.rpartition(".")[2].endswith("bias"):  # the biases of stacked experts are a matrix
            return False
        matrix = len(tensor.shape) > 1 and min(tensor.shape) > 1 and "float" in tensor.dtype
        return tensor.is_parameter and matrix and not declared

    def uninitialised(self, seen: TensorValues | SkippedTensor, ranks: tuple[int, ...]) -> Finding:
        zero = isinstance(seen, TensorValues) and seen.zero  # memory, or zeros that somebody put in its place
        return self.finding(
            subject=seen.fqn,
            severity=Severity.WARNING if zero else None,
            message="expected it to be written, found that it is zero everywhere, that the checkpoint gave nothing for "
            "it, and that the initialiser of its model writes nothing to it"
            if zero
            else "expected it to be written, found that the checkpoint gave nothing for it, that the initialiser of "
            "its model writes nothing to it, and that nobody else did: it is what the memory held",
            evidence={"minimum": seen.minimum, "maximum": seen.maximum} if isinstance(seen, TensorValues) else {},
            owner=owner_of(seen.fqn),
            ranks=ranks,
            key="uninitialised",
        )

    def unwritten(self, seen: TensorValues, ranks: tuple[int, ...]) -> Finding:
        whole = seen.unwritten == seen.elements
        found = "none of its elements" if whole else f"{seen.unwritten} of its {counted(seen.elements, 'element')} not"
        return self.finding(
            subject=seen.fqn,
            message=f"expected it to be written since the watch began, found {found} written",
            evidence={"unwritten": seen.unwritten, "elements": seen.elements},
            owner=owner_of(seen.fqn),
            ranks=ranks,
        )

    def hint(self, seen: TensorValues, what: str, full: bool, everywhere: bool) -> Finding:
        report = "; the load report misses nothing" if full else ""
        report += "; every other matrix of the model is constant too" if everywhere else ""
        return self.finding(
            subject=seen.fqn,
            severity=None if everywhere else Severity.WARNING if full else Severity.INFO,
            message=f"seems never to have been written: {what}{report}",
            evidence={"minimum": seen.minimum, "maximum": seen.maximum, "elements": seen.elements},
            owner=owner_of(seen.fqn),
        )


class _Known:
    """What is asked about every tensor, found out once."""

    def __init__(self, facts: Facts) -> None:
        values, model, load = facts.require(Section.VALUES), facts.require(Section.MODEL), facts.load
        self.watched = values.watched
        self.uninitialised = frozenset(values.uninitialised)
        self.tensors = model.tensor_by_name()
        self.ranks = (facts.environment.rank,) if facts.environment.world_size > 1 else ()
        self.adapted = {key for adapter in model.adapters for key in adapter.keys if not is_saved_copy(key)}
        self.full = load is not None and load.reported and not load.missing
        self.values = values.tensors
        self._constant: tuple[bool, ...] | None = None

    def constant(self, is_due: Callable[[TensorFacts], bool]) -> tuple[bool, ...]:
        """Of each matrix that should begin with different numbers, whether it is constant; of one alone nothing."""
        if self._constant is None:
            due = [seen for seen in self.values if seen.fqn in self.tensors and is_due(self.tensors[seen.fqn])]
            self._constant = tuple(seen.constant and not seen.as_stored for seen in due) if len(due) > 1 else (False,)
        return self._constant


def _looks(seen: TensorValues) -> str:
    if seen.zero:
        return "it is zero everywhere"
    if seen.constant and seen.elements > 1:
        return "it is one value everywhere" if seen.minimum is None else f"it is {seen.minimum} everywhere"
    largest = max(abs(seen.minimum or 0.0), abs(seen.maximum or 0.0))
    return f"it holds numbers as large as {largest:.3g}" if largest > _LARGE else ""
