"""Trainable tensors of the shape of a tied pair that nothing uses: what is left when a tie was made beside them."""

from __future__ import annotations

import re

from attrs import frozen

from shardlint import Facts
from shardlint.analysis.ties import wanted_pairs
from shardlint.facts import TensorFacts

_POSITIONS = re.compile(r"pos|wpe")
"""In the names of embeddings of positions, which stand beside that of tokens and may have as many rows."""


@frozen
class Shadows:
    """`found` are certainly dead; of `undecided` nobody knows whether the checkpoint has a source for them."""

    found: tuple[TensorFacts, ...] = ()
    undecided: tuple[TensorFacts, ...] = ()


def shadow_candidates(facts: Facts) -> list[tuple[TensorFacts, list[TensorFacts]]]:
    """
    Each live tied tensor, and what stands beside it in its shape, trainable and under one name alone.

    Square ones are left out, and so is everything when no pair is tied: one end alone is what a pipeline stage holds.
    """
    model = facts.model
    if model is None:
        return []
    names = model.tensor_by_name()
    homes: dict[tuple[tuple[int, ...], str], str] = {}
    tied: dict[str, tuple[TensorFacts, list[TensorFacts]]] = {}
    for target, source in wanted_pairs(model, facts.contract).items():
        tensor = names.get(target)
        if tensor is None or tensor is not names.get(source):
            continue
        tied.setdefault(tensor.fqn, (tensor, []))
        homes |= {(tensor.shape, _beside(name)): tensor.fqn for name in (target, source)}
    for tensor in model.parameters if tied else ():
        matrix = tensor.requires_grad and len(tensor.aliases) == 1 and len(tensor.shape) == len(set(tensor.shape)) == 2
        home = homes.get((tensor.shape, _beside(tensor.fqn)))
        if matrix and home is not None and not _POSITIONS.search(tensor.fqn):
            tied[home][1].append(tensor)
    return list(tied.values())


def dead_shadows(facts: Facts) -> Shadows:
    """
    Trainable matrices of the shape of a tied pair, beside one of its ends, without alias and source in the checkpoint.

    Square ones are left out, and so is everything when no pair is tied: one end alone is what a pipeline stage holds.
    """
    candidates = tuple(candidate for _, beside in shadow_candidates(facts) for candidate in beside)
    if not candidates:
        return Shadows()
    missing = without_source(facts)
    if missing is None:
        return Shadows(undecided=candidates)
    return Shadows(found=tuple(candidate for candidate in candidates if candidate.fqn in missing))


def _beside(name: str) -> str:
    """The FQN of what holds the module of the tensor."""
    return ".".join(name.split(".")[:-2])


def without_source(facts: Facts) -> set[str] | None:
    """The live names without a source: by the load report, else by the plan; None when neither is there."""
    if facts.load is not None and facts.load.reported:
        return set(facts.load.missing)
    if facts.plan is not None:
        return {tensor.name for tensor in facts.plan.tensors if tensor.status.startswith("missing")}
    return None
