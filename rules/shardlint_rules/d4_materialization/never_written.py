"""D405 never-written."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.analysis.wrapper_names import is_saved_copy
from shardlint.facts import TensorFacts, TensorValues
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
    wrote: each is an error. Without the watch, matrices that are one constant everywhere, or that hold absurdly large
    numbers, are reported as what they look like: a warning when a loader reported that it filled them, else a remark.
    Vectors, biases, whole numbers (packed weights), adapter tensors that are zero and the globs of the option
    `by-design` are left out of that.

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

    def check(self, facts: Facts) -> Iterator[Finding]:
        values = facts.require(Section.VALUES)
        model = facts.require(Section.MODEL)
        tensors = model.tensor_by_name()
        ranks = (facts.environment.rank,) if facts.environment.world_size > 1 else ()
        adapted = {key for adapter in model.adapters for key in adapter.keys if not is_saved_copy(key)}
        full = facts.load is not None and facts.load.reported and not facts.load.missing
        for seen in values.tensors:
            if values.watched:
                if seen.unwritten:
                    yield self.unwritten(seen, ranks)
            elif seen.zero and seen.fqn in adapted:
                continue  # every kind of adapter begins with one factor of zeros, not all with the same one
            elif seen.fqn in tensors and self.is_due(tensors[seen.fqn]) and (what := _looks(seen)):
                yield self.hint(seen, what, full)

    def is_due(self, tensor: TensorFacts) -> bool:
        """Whether an initialiser gives the tensor different numbers: a matrix that is not meant to begin constant."""
        globs = (*_ZERO_BY_DESIGN, *self.options.by_design)
        declared = any(glob_matches(glob, name) for glob in globs for name in tensor.aliases)
        if tensor.fqn.rpartition(".")[2].endswith("bias"):  # the biases of stacked experts are a matrix
            return False
        matrix = len(tensor.shape) > 1 and min(tensor.shape) > 1 and "float" in tensor.dtype
        return tensor.is_parameter and matrix and not declared

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

    def hint(self, seen: TensorValues, what: str, full: bool) -> Finding:
        report = "; the load report misses nothing" if full else ""
        return self.finding(
            subject=seen.fqn,
            severity=Severity.WARNING if full else Severity.INFO,
            message=f"seems never to have been written: {what}{report}",
            evidence={"minimum": seen.minimum, "maximum": seen.maximum, "elements": seen.elements},
            owner=owner_of(seen.fqn),
        )


def _looks(seen: TensorValues) -> str:
    if seen.zero:
        return "it is zero everywhere"
    if seen.constant and seen.elements > 1:
        return f"it is {seen.minimum} everywhere"
    largest = max(abs(seen.minimum or 0.0), abs(seen.maximum or 0.0))
    return f"it holds numbers as large as {largest:.3g}" if largest > _LARGE else ""
