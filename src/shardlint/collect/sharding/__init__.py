"""Who owns each parameter, how it is cut and where its gradient is summed, read from live objects."""

from .ownership import UnitCollector, sharding_facts

__all__ = ["UnitCollector", "sharding_facts"]
