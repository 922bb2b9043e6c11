"""Tensors that need 32 bits, by their class or by what they are, and what a narrower dtype did to their values."""

from __future__ import annotations

import re
from pathlib import Path

from attrs import evolve

from ..analysis.keys import KeyResolver
from ..checkpoint.files import FileRefusedError, inside, opened
from ..checkpoint.safetensors_header import read_at
from ..facts import ClassDeclaration, EntryFacts, Facts, ModelFacts, PrecisionCritical, TensorFacts

_NARROW = ("bfloat16", "float16")
_KNOWN = {
    "e_score_correction_bias": "a router's correction bias",
    "score_correction_bias": "a router's correction bias",
    "expert_bias": "a router's correction bias",
    "A_log": "the decay of a state-space model",
}
_LARGEST = 2**22  # elements
STORED = {"F32": ("float32", 4), "F64": ("float64", 8), "BF16": ("bfloat16", 2), "F16": ("float16", 2)}


def critical_tensors(facts: Facts, checkpoint: Path | None) -> tuple[PrecisionCritical, ...]:
    """
    The live tensors that need 32 bits and have fewer, each with the checkpoint's tensor that it comes from.

    Of small ones the source values are read, to count those that become equal in the narrower dtype.
    """
    if facts.model is None:
        return ()
    reasons = [_reason(tensor, facts.model) for tensor in facts.model.tensors if tensor.dtype in _NARROW]
    critical = [critical_tensor for critical_tensor in reasons if critical_tensor is not None]
    if not critical or facts.checkpoint is None:
        return tuple(critical)
    entries = sources_of(facts, converted=False)
    return tuple(
        _with_source(critical_tensor, next(iter(entries.get(critical_tensor.fqn, ())), None), facts, checkpoint)
        for critical_tensor in critical
    )


def _reason(tensor: TensorFacts, model: ModelFacts) -> PrecisionCritical | None:
    for name in tensor.aliases:
        for declaration in model.declarations:
            for strict, patterns in ((True, declaration.keep_in_fp32_strict), (False, declaration.keep_in_fp32)):
                if pattern := _matching(name, declaration, patterns):
                    if not strict and tensor.dtype != "float16" and tensor.fqn.rpartition(".")[2] in _KNOWN:
                        continue  # the library keeps it for float16 alone, and it needs it all the same
                    because = f"{declaration.qualified_type.rpartition('.')[2]} keeps {pattern!r} in float32"
                    return PrecisionCritical(
                        fqn=tensor.fqn, dtype=tensor.dtype, because=because, declared=True, strict=strict
                    )
    last = tensor.fqn.rpartition(".")[2]
    because = _KNOWN.get(last, "")
    if last == "D" and f"{tensor.fqn.removesuffix('D')}A_log" in model.tensor_by_name():
        because = "the skip of a state-space model"
    return PrecisionCritical(fqn=tensor.fqn, dtype=tensor.dtype, because=because) if because else None


def _matching(name: str, declaration: ClassDeclaration, patterns: tuple[str, ...]) -> str:
    """The pattern that covers the name, as the loader reads it: a run of whole segments."""
    prefix = f"{declaration.fqn}." if declaration.fqn else ""
    if not name.startswith(prefix):
        return ""
    for pattern in patterns:
        try:
            if re.search(rf"(?:^|\.)(?:{pattern})(?:\.|$)", name.removeprefix(prefix)):
                return pattern
        except re.error:
            continue
    return ""


def sources_of(facts: Facts, *, converted: bool = True) -> dict[str, tuple[EntryFacts, ...]]:
    """The stored tensors that each live one is filled by; without `converted` those filled by one, unchanged."""
    assert facts.checkpoint is not None
    entries = facts.checkpoint.entry_by_key()
    if facts.plan is not None:
        return {
            plan.name: tuple(entries[key] for key in plan.sources)
            for plan in facts.plan.tensors
            if plan.sources
            and all(key in entries for key in plan.sources)
            and (converted or (len(plan.sources) == 1 and not plan.operations))
        }
    assert facts.model is not None
    resolver = KeyResolver(facts.model)
    named = ((resolver.live_name(entry.key), entry) for entry in entries.values())
    return {name: (entry,) for name, entry in named if name is not None}


def _with_source(
    tensor: PrecisionCritical, entry: EntryFacts | None, facts: Facts, checkpoint: Path | None
) -> PrecisionCritical:
    if entry is None or entry.dtype not in STORED:
        return tensor
    dtype, size = STORED[entry.dtype]
    tensor = evolve(tensor, source_key=entry.key, source_dtype=dtype)
    if size < 4 or checkpoint is None or entry.end - entry.begin > _LARGEST * size:
        return tensor
    try:
        data = stored_bytes(checkpoint, entry, facts, 0, entry.end - entry.begin)
        distinct, collapsed = _collapse(data, dtype, tensor.dtype)
    except (FileRefusedError, OSError, KeyError, ValueError):
        return tensor
    return evolve(tensor, distinct=distinct, collapsed=collapsed)


def stored_bytes(checkpoint: Path, entry: EntryFacts, facts: Facts, begin: int, end: int) -> bytes:
    """
    Bytes of a stored tensor, counted from its first one.

    Raises `KeyError` for a file that was not opened, `ValueError` for one that is too short, and what reading raises.
    """
    starts = (
        {file.name: file.header_bytes for file in facts.checkpoint.files if file.opened} if facts.checkpoint else {}
    )
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    with opened(inside(folder, entry.file)) as descriptor:
        data = read_at(descriptor, end - begin, starts[entry.file] + entry.begin + begin)
    if len(data) != end - begin:
        raise ValueError("the file is shorter than its header says")
    return data


def _collapse(data: bytes, stored: str, live: str) -> tuple[int, int]:
    """How many distinct values there are, and how many of them are lost in the narrower dtype."""
    import torch

    values = torch.unique(torch.frombuffer(bytearray(data), dtype=getattr(torch, stored)))
    narrow = torch.unique(values.to(getattr(torch, live)).double())
    return values.numel(), values.numel() - narrow.numel()
