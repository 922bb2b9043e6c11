"""Who owns each parameter, how it is cut and where its gradient is summed, read from live objects."""

from .collector import UnitCollector
from .ownership import collect_ownership, facts_of, sharding_facts
from .ownership_tables import OwnershipTables

__all__ = ["OwnershipTables", "UnitCollector", "collect_ownership", "facts_of", "sharding_facts"]
