"""Declared ties: which names a model's classes say share one tensor. Public; no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import cycle

from attrs import frozen

from ..facts import ClassDeclaration, ModelFacts
from ..names import joined


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
    declarations = [declaration for declaration in model.declarations if declaration.tied_weights]
    if not declarations:
        return ()
    names = [alias for tensor in model.tensors for alias in tensor.aliases]
    return tuple(tie for declaration in declarations for tie in _ties_of(declaration, model, names))


def tie_wanted(declaration: ClassDeclaration, model: ModelFacts) -> bool | None:
    """Whether the configuration that belongs to the declaring module asks for tied weights; None when nothing says."""
    if declaration.tie_word_embeddings is not None:
        return declaration.tie_word_embeddings
    if declaration.active_ties:
        return True
    flag = model.config.get("tie_word_embeddings") if model.config and not declaration.fqn else None
    if isinstance(flag, bool):
        return flag
    return None if declaration.active_ties is None else False


def wanted_pairs(model: ModelFacts) -> dict[str, str]:
    """
    Live {target: source} of the ties that are asked for.

    What the library keeps as the ties in force counts (a loader takes those pairs away that it keeps apart on
    purpose); where it keeps no such record, what the classes declare and their configurations ask for.
    """
    active = _outermost([declaration for declaration in model.declarations if declaration.active_ties is not None])
    if not active:
        return {target: source for tie in declared_ties(model) if tie.wanted for target, source in tie.pairs}
    names = model.tensor_by_name()
    pairs = {
        joined(item.fqn, target): joined(item.fqn, str(source))
        for item in active
        for target, source in (item.active_ties or {}).items()
    }
    return {left: right for left, right in pairs.items() if left != right and left in names and right in names}


def _outermost(declarations: Iterable[ClassDeclaration]) -> list[ClassDeclaration]:
    """Those that no other one encloses: an outer record holds what the inner ones say."""
    found: list[ClassDeclaration] = []
    for item in sorted(declarations, key=lambda item: item.fqn.count(".") if item.fqn else -1):
        if not any(outer.fqn == "" or item.fqn.startswith(f"{outer.fqn}.") for outer in found):
            found.append(item)
    return found


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
