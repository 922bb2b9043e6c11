"""What is decided before facts are collected: contracts, packs, settings of the configuration file, limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

from ..contract import Contract
from ..facts import BuildFacts

if TYPE_CHECKING:
    from ..contract import ContractQuery


class PackAnswer(Protocol):
    """What a pack answers when it is asked for a contract: the contract, or the error that it met."""

    @property
    def contract(self) -> Contract | None:
        """The contract."""

    @property
    def error(self) -> str:
        """One sentence, empty when there was none."""

    @property
    def label(self) -> str:
        """The pack, as a message names it."""


class PackCollector(Protocol):
    """A pack's collector with its origin: `section` is the section of the facts that `collect` adds to."""

    @property
    def name(self) -> str:
        """The collector's name."""

    @property
    def section(self) -> str:
        """The section of the facts."""

    @property
    def collector(self) -> Any:
        """The pack's own object."""

    @property
    def label(self) -> str:
        """The pack, as a message names it."""

    @property
    def root(self) -> str:
        """The folder of the pack's code."""

    def collect(self, *arguments: Any) -> Any:
        """Call the collector. What it raises is the caller's to isolate."""


class Packs(Protocol):
    """The part of the packs' registry that collecting uses."""

    @property
    def collectors(self) -> Sequence[PackCollector]:
        """The packs' collectors."""

    def contracts(self, query: ContractQuery) -> Sequence[PackAnswer]:
        """Ask every pack for a contract."""


@frozen(kw_only=True)
class CollectOptions:
    """
    How to collect.

    `contract` (an object, or `package.module:name`) wins over that of the target, that over `declared`, which is the
    contract in the configuration file `declared_in` as plain data, and that over those of `packs`. `phases` are
    those of the invariants to evaluate, without any all but runtime, which is asked for by a trace. Without `values`
    no tensor is looked into. `build` is what became of the builder.
    `expert_axes`, `renames` and `allow_overlay` are those of the configuration file.
    """

    contract: Contract | str | None = None
    declared: Mapping[str, Any] | None = None
    declared_in: str = "the configuration file"
    packs: Packs | None = None
    expert_axes: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    allow_overlay: bool = False
    phases: tuple[str, ...] = ()
    values: bool = True
    build: BuildFacts | None = None
