"""
What is true of the job and not of one rank: stored keys that no rank wants, parameters that no rank's optimizer holds.

Each rank lists what it leaves aside itself; where the lists differ between ranks, rank 0 joins them.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import frozen

from ..analysis.coverage import CoverageStatus, coverage_of
from ..facts import Facts, RankNames

_Names = Callable[[str, Iterable[int]], dict[int, tuple[str, ...]]]
"""The lists of one kind of some ranks, by rank."""


@frozen
class Lists:
    """
    What this rank leaves aside, by kind: `unwanted` stored keys, `unheld` trainable parameters.

    A kind that is absent is not known here. `model` stands for the names and shapes of all parameters.
    """

    by_kind: Mapping[str, tuple[str, ...]]
    model: str

    def names(self, kind: str) -> tuple[str, ...]:
        """The list of one kind, empty where it is not known."""
        return self.by_kind.get(kind, ())

    def digests(self) -> dict[str, str]:
        """A digest of each list that is known; an empty list has an empty one."""
        return {kind: _digest(names) if names else "" for kind, names in self.by_kind.items()} | {"model": self.model}


def lists_of(facts: Facts) -> Lists:
    """The lists of this rank."""
    by_kind: dict[str, tuple[str, ...]] = {}
    if facts.checkpoint is not None and facts.model is not None:
        coverage = coverage_of(facts)
        if coverage.status is not CoverageStatus.NOT_LOADED:
            by_kind["unwanted"] = tuple(sorted(coverage.sources))
    optimizer = facts.optimizer
    if optimizer is not None and not optimizer.unread and not any(item.partitioned for item in optimizer.optimizers):
        by_kind["unheld"] = tuple(sorted(item.fqn for item in optimizer.not_held() if item.requires_grad))
    tensors = facts.model.parameters if facts.model is not None else ()
    return Lists(by_kind, _digest(sorted(f"{tensor.fqn}{tensor.shape}" for tensor in tensors)))


def _digest(texts: Iterable[str]) -> str:
    return hashlib.blake2b("\x1f".join(texts).encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()


def joined(
    said: Sequence[Mapping[str, str]], kind: str, groups: Sequence[Sequence[int]], names: _Names
) -> tuple[RankNames, ...]:
    """
    What of each rank's list nobody else of the job takes care of, by ranks; empty when all lists are the same.

    Ranks without a list are left out: they judge by themselves.
    """
    known = [rank for rank, digests in enumerate(said) if kind in digests]
    if len({said[rank][kind] for rank in known}) < 2:
        return ()
    return _unwanted(said, known, groups, names) if kind == "unwanted" else _unheld(said, known, names)


def _unwanted(
    said: Sequence[Mapping[str, str]], known: Sequence[int], groups: Sequence[Sequence[int]], names: _Names
) -> tuple[RankNames, ...]:
    """
    Stored keys that no other pipeline stage wants either.

    Ranks of one group hold the same model, so that a key which one of them wants and another does not is a fault of
    the other, and stays one.
    """
    group_of = {rank: number for number, group in enumerate(groups) for rank in group}
    classes: dict[tuple[int, str], list[int]] = defaultdict(list)
    for rank in known:
        classes[group_of.get(rank, -1 - rank), said[rank]["unwanted"]].append(rank)
    lists = names("unwanted", [ranks[0] for ranks in classes.values()])
    sets = {key: frozenset(lists[ranks[0]]) for key, ranks in classes.items()}
    result = []
    for (group, digest), ranks in classes.items():
        left = sets[group, digest].intersection(*(keys for (other, _), keys in sets.items() if other != group))
        result.append(RankNames(ranks=tuple(ranks), names=tuple(sorted(left))))
    return tuple(result)


def _unheld(said: Sequence[Mapping[str, str]], known: Sequence[int], names: _Names) -> tuple[RankNames, ...]:
    """
    Parameters that no rank's optimizer holds, where each rank's holds a part of the same model.

    A rank whose optimizer holds everything says that the parameters are not divided among the ranks: then those that
    another rank leaves out are its own fault.
    """
    models: dict[str, list[int]] = defaultdict(list)
    for rank in known:
        models[said[rank]["model"]].append(rank)
    result = []
    for ranks in models.values():
        first_of = {said[rank]["unheld"]: rank for rank in reversed(ranks)}
        if "" in first_of or len(first_of) < 2:
            continue
        lists = names("unheld", sorted(first_of.values()))
        left = frozenset.intersection(*map(frozenset, lists.values()))
        result.append(RankNames(ranks=tuple(ranks), names=tuple(sorted(left))))
    return tuple(result)
