"""What finds the units of one framework: the base of the built-in collectors and of those of packs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ownership_tables import OwnershipTables


class UnitCollector:
    """
    Finds the units of one framework and writes them, with their parameters, into the tables.

    A pack returns an instance from `shardlint_collectors()`; its units then stand in the `sharding` section beside
    those of FSDP and DDP, and every rule sees them. It must not change the model and must not run a collective; what
    it raises is reported, and what it wrote until then is dropped.
    """

    name = ""
    section = "sharding"

    def collect_units(self, tables: OwnershipTables) -> None:
        """Add units with `tables.add_unit`, and the ids of the tensors that they manage to `tables.managed`."""
        raise NotImplementedError

    def collect(self, target: Any, walk: Any, facts: Any) -> None:
        """Leave the section as it is: the units are in it already."""
