"""
The plugin reference: every hook that a pack may implement.

A pack is a distribution with an entry point in the group `shardlint.packs`. The entry's name is the pack's name, its
value a module (or object) with functions marked `@shardlint.hookimpl`. Every hook but `shardlint_pack` is optional,
and an implementation may leave out arguments that it does not use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy
from attrs import frozen

if TYPE_CHECKING:
    from ..contract import Contract, ContractQuery
    from ..rule import Rule

PROJECT = "shardlint"
ENTRY_POINT_GROUP = "shardlint.packs"
API_VERSION = 1
OLDEST_API = 1

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@frozen(kw_only=True)
class PackInfo:
    """
    Who a pack is. `prefix` is 2 to 8 capitals with which all its codes begin; `api` the plugin API it was written for.
    """

    name: str
    prefix: str
    api: int
    docs_url: str = ""
    issues_url: str = ""


class ShardlintSpec:
    """The hooks. Each is called on every pack by itself, so that one that raises does not end the others."""

    @hookspec
    def shardlint_pack(self) -> PackInfo:
        """Say who the pack is. Required."""
        raise NotImplementedError

    @hookspec
    def shardlint_rules(self) -> Iterable[type[Rule]]:
        """Return the pack's rule classes. Import them here, not when the module is imported."""
        raise NotImplementedError

    @hookspec
    def shardlint_collectors(self) -> Iterable[Any]:
        """Return collectors (see `shardlint.collect.Collector`) that add to a section of the facts."""
        raise NotImplementedError

    @hookspec
    def shardlint_contracts(self, query: ContractQuery) -> Contract | None:
        """
        Return the contract for the model that `query` describes, or None.

        Called once with each key: first `config.model_type`, then each of `config.architectures`. The first
        contract that any pack returns wins. Returning anything else is a finding (D102).
        """
        raise NotImplementedError

    @hookspec
    def shardlint_reporters(self) -> Mapping[str, Any]:
        """Return output formats: name to a callable `(Report, TextIO, ReportOptions) -> None`."""
        raise NotImplementedError
