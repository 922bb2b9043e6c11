"""D511 scale-missing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from attrs import field, frozen

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import LoadRemark
from shardlint_rules._files import READ_FILES

from ._schemes import FP8, PACKED, Scheme, carriers, missing_parts, part_name, scale_of, scheme_of


@frozen(slots=False)
class _Stored:
    """The dtypes of all stored tensors, how they are quantised, and parts that are there under another spelling."""

    scheme: Scheme
    how: str
    dtypes: dict[str, str]
    misspelt: set[str] = field(factory=set)

    @cached_property
    def keys(self) -> set[str]:
        return set(self.dtypes)

    @property
    def evidence(self) -> dict[str, object]:
        return {"scheme": self.scheme.name, "scheme_from": self.how}


@frozen
class _Carrier:
    """A stored tensor with quantised values, whose parts are named after `base`."""

    key: str
    base: str
    stored: _Stored


@frozen
class _Scale:
    """A stored scale, and the tensor whose scale it is by its name."""

    key: str
    tensor: str
    stored: _Stored


class ScaleMissing(Rule):
    """
    A quantised tensor lacks a part that its scheme needs, or a scale has no tensor.

    ## What it does
    Takes the scheme that `config.json` declares (or the one that the stored parts show), and says which one it took:
    fp8 block and channel scales, mxfp8, mxfp4, nvfp4, compressed-tensors, GPTQ, AWQ, bitsandbytes. Reports quantised
    tensors of which a part is not stored or is spelled as another scheme spells it, scales whose tensor is not stored
    or is not quantised, and integers that the load plan casts into floating-point tensors. Scales of the KV cache and
    of activations are optional.

    ## Why it is unsafe
    Without its scale a quantised weight is loaded as if it were the weight itself: hundreds of times too large, and
    nothing fails.

    ## What to do
    Export the checkpoint again with all parts of one scheme, or correct the scheme in `quantization_config`.
    """

    code = "D511"
    name = "scale-missing"
    phase = Phase.D5
    severity = Severity.ERROR
    needs = (Section.CHECKPOINT,)
    tags = (READ_FILES,)
    related_config = ("quantization_config",)

    noun = "quantised tensor or scale"

    def subjects(self, facts: Facts) -> Iterator[LoadRemark | _Carrier | _Scale]:
        """Integers that are cast, quantised tensors, and then scales: what is misspelt is told of its tensor."""
        checkpoint = facts.require(Section.CHECKPOINT)
        if facts.plan is not None:
            yield from (remark for remark in facts.plan.remarks if remark.kind == "integer-cast")
        dtypes = {entry.key: entry.dtype for entry in checkpoint.entries}
        if not {*dtypes.values()}.intersection((*FP8, *PACKED)):
            return
        scheme, how = scheme_of(checkpoint)
        if scheme is None:
            if checkpoint.config is not None and "quantization_config" in checkpoint.config:
                raise NotEvaluated(f"{how}: which parts its tensors need is unknown")
            return
        stored = _Stored(scheme, how, dtypes)
        yield from (_Carrier(entry.key, base, stored) for entry, base in carriers(scheme, checkpoint.entries))
        yield from (_Scale(key, tensor, stored) for key in dtypes if (tensor := scale_of(key)) is not None)

    def judge(self, subject: LoadRemark | _Carrier | _Scale, facts: Facts) -> Iterator[Finding]:
        if isinstance(subject, _Carrier):
            yield from self._carrier(subject)
        elif isinstance(subject, _Scale):
            yield from self._scale(subject)
        else:
            text = f"{subject.name} is {subject.detail}"
            yield self._finding(subject.name, text, "integer-cast", {"keys": subject.keys})

    def _carrier(self, carrier: _Carrier) -> Iterator[Finding]:
        stored = carrier.stored
        absent = missing_parts(stored.scheme, carrier.base, stored.keys)
        if not absent:
            return
        others = [key for key in _other_spellings(carrier.base) if key in stored.keys]
        stored.misspelt.update(others)
        found = f"found {', '.join(others)} instead" if others else "found none"
        text = (
            f"{carrier.key} ({stored.dtypes[carrier.key]}): scheme {stored.scheme.name} ({stored.how}) needs "
            f"{', '.join(absent)}, {found}"
        )
        yield self._finding(carrier.key, text, "missing", {**stored.evidence, "absent": absent, "found": others})

    def _scale(self, scale: _Scale) -> Iterator[Finding]:
        stored = scale.stored
        if scale.key in stored.misspelt or _has_values(stored.scheme, scale.tensor, stored.dtypes):
            return
        state = f"is stored as {stored.dtypes[scale.tensor]}" if scale.tensor in stored.keys else "is not stored"
        text = f"{scale.key} is a scale (scheme {stored.scheme.name}, {stored.how}) whose tensor {scale.tensor} {state}"
        yield self._finding(scale.key, text, "orphan", {**stored.evidence, "tensor": scale.tensor})

    def _finding(self, subject: str, text: str, key: str, evidence: dict[str, object]) -> Finding:
        return self.finding(subject=subject, kind=SubjectKind.KEY, message=text, evidence=evidence, key=key)


_SPELLINGS = ("_scale_inv", "_scale", "_scales", "_global_scale", "_scale_2", "@.scale", "@.scales", "@.qscale_weight")


def _other_spellings(base: str) -> Iterator[str]:
    yield from (part_name(base, suffix) for suffix in _SPELLINGS)


def _has_values(scheme: Scheme, base: str, dtypes: dict[str, str]) -> bool:
    """Whether quantised values are stored for the tensor `base`, in this scheme or, for mixed files, any other."""
    if any(f"{base}.quant_state.bitsandbytes__{kind}" in dtypes for kind in ("nf4", "fp4")):
        return True  # codes, which `bnb_4bit_quant_storage` may store under any dtype
    names = (base, f"{base}_packed", f"{base}_blocks", part_name(base, "@.qweight"), part_name(base, "@.weight"))
    return any(dtypes.get(name) in (*scheme.dtypes, *FP8, *PACKED) for name in names)
