"""D511 scale-missing."""

from __future__ import annotations

from collections.abc import Iterator

from shardlint import Facts, Finding, NotEvaluated, Phase, Rule, Section, Severity, SubjectKind
from shardlint.facts import CheckpointFacts
from shardlint_rules._files import READ_FILES

from ._schemes import FP8, PACKED, Scheme, carriers, missing_parts, part_name, scale_of, scheme_of


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

    def check(self, facts: Facts) -> Iterator[Finding]:
        checkpoint = facts.require(Section.CHECKPOINT)
        if facts.plan is not None:
            yield from (
                self._finding(remark.name, f"{remark.name} is {remark.detail}", "integer-cast", {"keys": remark.keys})
                for remark in facts.plan.remarks
                if remark.kind == "integer-cast"
            )
        if not {entry.dtype for entry in checkpoint.entries}.intersection((*FP8, *PACKED)):
            return
        scheme, how = scheme_of(checkpoint)
        if scheme is not None:
            yield from self._parts(checkpoint, scheme, how)
        elif checkpoint.config is not None and "quantization_config" in checkpoint.config:
            raise NotEvaluated(f"{how}: which parts its tensors need is unknown")

    def _parts(self, checkpoint: CheckpointFacts, scheme: Scheme, how: str) -> Iterator[Finding]:
        dtypes = {entry.key: entry.dtype for entry in checkpoint.entries}
        keys = set(dtypes)
        evidence = {"scheme": scheme.name, "scheme_from": how}
        misspelt: set[str] = set()
        for entry, base in carriers(scheme, checkpoint.entries):
            absent = missing_parts(scheme, base, keys)
            if not absent:
                continue
            others = [key for key in _other_spellings(base) if key in keys]
            misspelt.update(others)
            found = f"found {', '.join(others)} instead" if others else "found none"
            text = f"{entry.key} ({entry.dtype}): scheme {scheme.name} ({how}) needs {', '.join(absent)}, {found}"
            yield self._finding(entry.key, text, "missing", {**evidence, "absent": absent, "found": others})
        for key in dtypes:
            tensor = scale_of(key)
            if tensor is None or key in misspelt or _has_values(scheme, tensor, dtypes):
                continue
            state = f"is stored as {dtypes[tensor]}" if tensor in keys else "is not stored"
            text = f"{key} is a scale (scheme {scheme.name}, {how}) whose tensor {tensor} {state}"
            yield self._finding(key, text, "orphan", {**evidence, "tensor": tensor})

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
