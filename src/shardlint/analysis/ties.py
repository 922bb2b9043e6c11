"""Declared ties: which names a model's classes say share one tensor. Public; no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle

from attrs import frozen

from ..facts import ClassDeclaration, ContractFacts, ModelFacts, known
from ..names import below, glob_matches, joined
from .model_config import model_configurations


@frozen(kw_only=True)
class DeclaredTie:
    """
    One declared tie: `target` shares the tensor of `source`.

    `declared_by` is the contract that declares it, empty for a class. `owner` is the FQN of the declaring module (empty
    for the root). The patterns are as the class writes them, relative to the owner; `targets` and `sources` are the
    live names that they match, `pairs` (target, source). `wanted` tells whether the owner's configuration asks for
    tying; None when it does not say. `error` says why a pattern cannot be read.
    """

    owner: str
    target_pattern: str
    source_pattern: str
    targets: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    wanted: bool | None = None
    error: str | None = None
    declared_by: str = ""


def declared_ties(model: ModelFacts, contract: ContractFacts | None = None) -> tuple[DeclaredTie, ...]:
    """
    Every tie that a class of the model or the contract declares, expanded over the live names of tensors.

    A pattern of a class is a name, a module's name or a regular expression that is searched from the start of the name.
    Where it has several matches, the sources are dealt out to the targets in turn, both sorted. The patterns of a
    contract are globs: everything that one of its groups matches is one tensor.
    """
    declarations = [declaration for declaration in model.declarations if declaration.tied_weights]
    groups = contract.ties if contract is not None else ()
    if not declarations and not groups:
        return ()
    names = [alias for tensor in model.tensors for alias in tensor.aliases]
    ties = [tie for declaration in declarations for tie in _ties_of(declaration, model, names)]
    for group in groups:
        ties += _ties_of_group(group, names, contract.source if contract is not None else "")
    return tuple(ties)


def _ties_of_group(group: Sequence[str], names: Sequence[str], declared_by: str) -> Iterator[DeclaredTie]:
    """Each glob of the group but the first, tied to the first; a glob of many names ties them to one another."""
    matched = [sorted(name for name in names if glob_matches(glob, name)) for glob in group]
    first = matched[0][0] if matched[0] else ""
    for position, glob in enumerate(group[1:], start=1):
        tied = [*(matched[0][1:] if position == 1 else ()), *matched[position]]
        yield DeclaredTie(
            owner="",
            target_pattern=glob,
            source_pattern=group[0],
            targets=tuple(matched[position]),
            sources=tuple(matched[0]),
            pairs=tuple((name, first) for name in dict.fromkeys(tied) if name != first) if first else (),
            wanted=True,
            declared_by=declared_by,
        )


def tie_wanted(declaration: ClassDeclaration, model: ModelFacts) -> bool | None:
    """
    Whether the configuration that belongs to the declaring module asks for tied weights; None when nothing says.

    A module that no configuration describes has nothing that could turn its declaration off: it asks by declaring.
    """
    if (says := known(declaration.tie_word_embeddings)) is not None:
        return says
    if declaration.active_ties:
        return True
    if declaration.active_ties is not None:
        return False
    over = [part for part in model_configurations(model) if below(declaration.fqn, part.fqn)]
    if not over:
        return True
    flags = [part.config.get("tie_word_embeddings") for part in over if part.fqn == declaration.fqn]
    return next((flag for flag in flags if isinstance(flag, bool)), None)


def wanted_pairs(model: ModelFacts, contract: ContractFacts | None = None) -> dict[str, str]:
    """
    Live {target: source} of the ties that are asked for.

    Those of the contract always count. Of those of classes, what the library keeps as the ties in force counts (a
    loader takes those pairs away that it keeps apart on purpose); where it keeps no such record, what the classes
    declare and their configurations ask for.
    """
    active = outermost(declaration for declaration in model.declarations if declaration.active_ties is not None)
    wanted = [tie for tie in declared_ties(model, contract) if tie.wanted and (tie.declared_by or not active)]
    declared = {target: source for tie in wanted for target, source in tie.pairs}
    if not active:
        return declared
    names = model.tensor_by_name()
    pairs = {
        joined(item.fqn, target): joined(item.fqn, str(source))
        for item in active
        for target, source in (item.active_ties or {}).items()
    }
    in_force = {left: right for left, right in pairs.items() if left != right and left in names and right in names}
    return declared | in_force


def outermost(declarations: Iterable[ClassDeclaration]) -> list[ClassDeclaration]:
    """The declarations that no other one encloses: those of the model itself, in whatever it is wrapped."""
    found: list[ClassDeclaration] = []
    for item in sorted(declarations, key=lambda item: item.fqn.count(".") if item.fqn else -1):
        if not any(outer.fqn == "" or item.fqn.startswith(f"{outer.fqn}.") for outer in found):
            found.append(item)
    return found


def _ties_of(item: ClassDeclaration, model: ModelFacts, names: Iterable[str]) -> Iterable[DeclaredTie]:
    prefix = f"{item.fqn}." if item.fqn else ""
    inside = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    exact = set(inside)
    wanted = tie_wanted(item, model)
    for target, source in item.tied_weights.items():
        try:
            targets, sources = _matching(target, inside, exact), _matching(str(source), inside, exact)
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
