"""Who owns each parameter, how it is cut and where its gradient is summed, read from live objects."""

from .book import Book
from .collector import UnitCollector
from .ownership import facts_of, ownership_book, sharding_facts

__all__ = ["Book", "UnitCollector", "facts_of", "ownership_book", "sharding_facts"]
