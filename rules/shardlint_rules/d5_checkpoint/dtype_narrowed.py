"""D513 dtype-narrowed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from attrs import frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import TensorPlan
from shardlint.names import counted
from shardlint_rules._files import READ_FILES
from shardlint_rules._sides import side_of

_STORED_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16}
_CODES = ("quantize", "deserialize")  # operations whose dtypes are those of codes and scales
_LIVE_BITS = {
    "float64": 64,
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "int64": 64,
    "int32": 32,
    "int16": 16,
    "int8": 8,
}


@frozen
class _Pair:
    """The dtypes of the sources of some tensors, their dtype after loading, and the tensors."""

    stored: tuple[str, ...]
    live: str
    tensors: tuple[TensorPlan, ...]


class DtypeNarrowed(Rule):
    """
    Tensors are stored in a wider dtype than the live tensors have.

    ## What it does
    Compares the stored dtype of every plain source with the dtype after loading and sums up, for every pair of dtypes,
    how many tensors lose digits. What a quantiser codes or decodes is left out.

    ## Why it is unsafe
    It is intended more often than not. It is not a copy of the checkpoint, though: what is saved from this model is not
    what was loaded, and sums over small values (router biases, norms, states) may change visibly.

    ## What to do
    Nothing, if intended. Otherwise load with `dtype="auto"`, or keep the tensors that need it in float32.
    """

    code = "D513"
    name = "dtype-narrowed"
    phase = Phase.D5
    severity = Severity.INFO
    needs = (Section.PLAN,)
    tags = (READ_FILES,)

    noun = "pair of dtypes"

    def subjects(self, facts: Facts) -> Iterator[_Pair]:
        pairs: dict[tuple[tuple[str, ...], str], list[TensorPlan]] = defaultdict(list)
        for tensor in facts.require(Section.PLAN).tensors:
            if tensor.status == "loaded":
                pairs[tensor.stored_dtypes, tensor.dtype].append(tensor)
        return (_Pair(dtypes, live, tuple(tensors)) for (dtypes, live), tensors in pairs.items())

    def judge(self, pair: _Pair, facts: Facts) -> Iterator[Finding]:
        stored = max(pair.stored, key=lambda name: _STORED_BITS.get(name, 0), default="")
        if _STORED_BITS.get(stored, 0) <= _LIVE_BITS.get(pair.live, 64):
            return
        names = [tensor.name for tensor in pair.tensors if not _decodes(tensor)]
        if names:
            many = counted(len(names), "tensor is", "tensors are")
            yield self.finding(
                subject=f"{stored}->{pair.live}",
                kind=SubjectKind.MODEL,
                message=f"{many} stored as {stored} {side_of(facts).is_as} {pair.live}: "
                f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}",
                evidence={"stored": stored, "live": pair.live, "count": len(names), "names": names[:50]},
            )


def _decodes(tensor: TensorPlan) -> bool:
    """Whether a conversion makes numbers of codes: then the stored dtype says nothing about precision."""
    return any(name.lower().endswith(_CODES) for name in tensor.operations)
