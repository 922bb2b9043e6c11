"""
The globs of a contract, and what they excuse. Public; no torch.

Every glob of a contract is read in the one language of shardlint (`shardlint.names.compile_glob`): `*` stands for one
dotted segment or a part of one, `**` for any number of segments, none included. So the lint rules, the load plan and
the verification of weights excuse the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from attrs import frozen

from ..facts import ContractFacts
from ..names import compile_glob


@frozen(kw_only=True)
class Exclusions:
    """
    What the contract says has no counterpart: globs of live tensors, and globs of stored keys.

    Both methods return the first glob that excuses the name, an empty string when none does.
    """

    tensors: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    def of_tensor(self, name: str) -> str:
        """The glob by which the live tensor `name` needs no source."""
        return first_match(self.tensors, (name,))

    def of_key(self, key: str) -> str:
        """The glob by which the stored `key` needs no live tensor."""
        return first_match(self.keys, (key,))


def exclusions_of(contract: ContractFacts | None) -> Exclusions:
    """What the contract excuses; nothing without one."""
    if contract is None:
        return Exclusions()
    return Exclusions(tensors=contract.training_only_targets, keys=contract.inference_only_sources)


def first_match(globs: Iterable[str], names: Iterable[str]) -> str:
    """The first of the globs that matches one of the names (such as the aliases of a tensor), or an empty string."""
    names = tuple(names)
    return next((glob for glob in globs if matches_any(glob, names)), "")


def matches_any(glob: str, names: Iterable[str]) -> bool:
    """Whether the glob matches one of the names."""
    match = compile_glob(glob).match
    return any(match(name) is not None for name in names)


def meant_across_dots(glob: str, names: Iterable[str]) -> str:
    """
    The glob as it has to be written where its `*` was meant to cross dots; an empty string when it was not.

    That is so when the glob matches none of the names, but would if `*` covered dots too, as in a shell.
    """
    names = tuple(names)
    if matches_any(glob, names) or not any(fnmatchcase(name, glob) for name in names):
        return ""
    wider = ".".join(part for segment in glob.split(".") for part in _spread(segment))
    return wider if matches_any(wider, names) else ""


def _spread(segment: str) -> tuple[str, ...]:
    """The segments that stand for one at whose ends `*` covers dots."""
    if not segment.strip("*"):
        return ("**",) if segment else ("",)
    before = ("**",) if segment.startswith("*") else ()
    after = ("**",) if segment.endswith("*") else ()
    return (*before, segment, *after)
