"""Tensors of one checkpoint that another one stores as one, as the owner declares it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch

from ..loading.loader import PlanUnknownError
from ..target import Fusion
from .symbolic.tensor import SymbolicTensor

Regions = Mapping[str, SymbolicTensor]


def fused(one: Regions, two: Regions, fusions: Sequence[Fusion]) -> tuple[dict[str, SymbolicTensor], ...]:
    """
    Both sides with the declared tensors put together, on the side that stores them apart.

    Raises `PlanUnknownError` for tensors that do not fit together, and for a fusion of which neither side has both
    ends: it is misspelt, or the checkpoints are others.
    """
    sides = dict(one), dict(two)
    for fusion in fusions:
        counts = [_fuse(sides[at], sides[1 - at], fusion) for at in (0, 1)]
        if not any(counts):
            raise PlanUnknownError(
                f"checkpoint.fuse: no tensors {', '.join(fusion.sources)} of one checkpoint are {fusion.target} in the "
                "other"
            )
    return sides


def _fuse(apart: dict[str, SymbolicTensor], whole: Regions, fusion: Fusion) -> int:
    pattern = re.compile(".*".join(map(re.escape, fusion.sources[0].split("*"))).replace(".*", "(.*)"))
    count = 0
    for match in [match for name in apart if (match := pattern.fullmatch(name))]:
        texts = match.groups()
        names, target = [_filled(source, texts) for source in fusion.sources], _filled(fusion.target, texts)
        if target not in whole or not all(name in apart for name in names):
            continue
        try:
            joined = torch.cat([apart[name] for name in names], fusion.dim)
        except (RuntimeError, IndexError) as error:
            raise PlanUnknownError(f"checkpoint.fuse: {', '.join(names)} do not fit together: {error}") from error
        for name in names:
            del apart[name]
        apart[target] = joined  # type: ignore[assignment] # of symbolic tensors it is a symbolic one
        count += 1
    return count


def _filled(pattern: str, texts: Sequence[str]) -> str:
    """The pattern with each `*` replaced by the text that it stands for; the last text serves any further ones."""
    first, *rest = pattern.split("*")
    return first + "".join((texts[min(at, len(texts) - 1)] if texts else "*") + part for at, part in enumerate(rest))
