"""Variants of one checkpoint in one folder (`model.fp16.safetensors` beside `model.safetensors`), told by names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from attrs import frozen

from ..facts import AsideFacts

_SHARD = r"-\d+-of-\d+"
_FORMS = (
    re.compile(rf"(?P<stem>.+)\.(?P<variant>[A-Za-z0-9_]+)(?:{_SHARD})?\.safetensors"),
    re.compile(rf"(?P<stem>.+){_SHARD}\.(?P<variant>[A-Za-z0-9_]+)\.safetensors"),
    re.compile(r"(?P<stem>.+)\.safetensors\.index\.(?P<variant>[A-Za-z0-9_]+)\.json"),
)
_PLAIN = re.compile(rf"(?P<stem>.+?)(?:{_SHARD})?\.safetensors(?:\.index\.json)?")
_DTYPE = re.compile(r"(non_)?ema|half|(fp|bf|f|nf|int|uint|mxfp|nvfp)\d+\w*", re.IGNORECASE)
_LOADERS_STEMS = ("model", "diffusion_pytorch_model", "pytorch_lora_weights", "adapter_model")
_WIDEST_FIRST = ("fp64", "fp32", "bf16", "fp16")


@frozen
class _Named:
    """A file of weights or an index by its name: of which stem, and which variant of it (empty for the plain one)."""

    name: str
    stem: str
    variant: str


def variants_aside(names: Iterable[str], wanted: str | None = None) -> tuple[AsideFacts, ...]:
    """
    The files in `names` that belong to another variant than the one that is read, each with the reason.

    Loaders take the files without a variant in their name unless they are asked for one, which is `wanted`. Where every
    file is a variant, the widest dtype is taken.
    """
    by_stem: dict[str, dict[str, list[str]]] = {}
    for named in filter(None, map(_named, names)):
        by_stem.setdefault(named.stem, {}).setdefault(named.variant, []).append(named.name)
    aside: list[AsideFacts] = []
    for stem, variants in by_stem.items():
        taken = wanted or ("" if "" in variants else min(variants, key=_rank))
        aside += _others(stem, variants, taken) if taken in variants else []
    return tuple(sorted(aside, key=lambda file: file.name))


def _others(stem: str, variants: Mapping[str, list[str]], taken: str) -> list[AsideFacts]:
    what = f"the variant {taken}" if taken else "the one without a variant in its name"
    detail = f"{what} is read of {stem}, as by a loader that is not asked for another"
    return [
        AsideFacts(name=name, kind="variant", detail=detail)
        for variant, files in variants.items()
        if variant != taken
        for name in files
    ]


def _named(name: str) -> _Named | None:
    for form in _FORMS:
        match = form.fullmatch(name)
        if match and (_DTYPE.fullmatch(match["variant"]) or match["stem"] in _LOADERS_STEMS):
            return _Named(name, match["stem"], match["variant"])
    match = _PLAIN.fullmatch(name)
    return _Named(name, match["stem"], "") if match else None


def _rank(variant: str) -> tuple[int, str]:
    known = variant.lower()
    return (_WIDEST_FIRST.index(known) if known in _WIDEST_FIRST else len(_WIDEST_FIRST), variant)
