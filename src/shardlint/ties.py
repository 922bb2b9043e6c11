"""Declared ties: which names a model's classes say share one tensor. Public; no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import cycle

from attrs import frozen

from .facts import ClassDeclaration, ModelFacts


@frozen(kw_only=True)
class DeclaredTie:
    """
    One item of a class's tied-weights declaration: `target` shares the tensor of `source`.

    `owner` is the FQN of the declaring module (empty for the root). The patterns are as the class writes them,
    relative to the owner; `targets` and `sources` are the live names that they match, `pairs` (target, source).
    `wanted` tells whether the owner's configuration asks for tying; None when it does not say.
    `error` says why a pattern cannot be read.
    """

    owner: str
    target_pattern: str
    source_pattern: str
    targets: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    wanted: bool | None = None
    error: str | None = None


def declared_ties(model: ModelFacts) -> tuple[DeclaredTie, ...]:
    """
    Every tie that a class of the model declares, expanded over the live names of parameters and buffers.

    A pattern is a name, a module's name or a regular expression that is searched from the start of the name. Where
    a pattern has several matches, the sources are dealt out to the targets in turn, both sorted.
    """
    declarations = [item for item in model.declarations if item.tied_weights]
    if not declarations:
        return ()
    names = [alias for tensor in model.tensors for alias in tensor.aliases]
    return tuple(tie for item in declarations for tie in _ties_of(item, model, names))


def tie_wanted(declaration: ClassDeclaration, model: ModelFacts) -> bool | None:
    """Whether the configuration that belongs to the declaring module asks for tied word embeddings."""
    if declaration.tie_word_embeddings is not None or declaration.fqn or model.config is None:
        return declaration.tie_word_embeddings
    flag = model.config.get("tie_word_embeddings")
    return flag if isinstance(flag, bool) else None


def wanted_pairs(model: ModelFacts) -> dict[str, str]:
    """Live {target: source} of the ties that the configuration asks for."""
    return {target: source for tie in declared_ties(model) if tie.wanted for target, source in tie.pairs}


def _ties_of(item: ClassDeclaration, model: ModelFacts, names: Iterable[str]) -> Iterable[DeclaredTie]:
    prefix = f"{item.fqn}." if item.fqn else ""
    below = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    known = set(below)
    wanted = tie_wanted(item, model)
    for target, source in item.tied_weights.items():
        try:
            targets, sources = _matching(target, below, known), _matching(str(source), below, known)
            error = None
        except re.error as problem:
            targets, sources, error = [], [], f"{problem} in {problem.pattern!r}"
        pairs = zip(targets, cycle(sources), strict=False) if sources else ()
        yield DeclaredTie(
            owner=item.fqn,
            target_pattern=target,
            source_pattern=str(source),
            targets=tuple(prefix + name for name in targets),
            sources=tuple(prefix + name for name in sources),
            pairs=tuple((prefix + left, prefix + right) for left, right in pairs if left != right),
            wanted=wanted,
            error=error,
        )


def _matching(pattern: str, names: Iterable[str], known: set[str]) -> list[str]:
    if pattern in known:
        return [pattern]
    compiled = re.compile(pattern)
    return sorted(name for name in names if compiled.match(name))
