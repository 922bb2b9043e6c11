"""A collector that adds to the contract section what Acme's models declare about themselves."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from shardlint import Facts
from shardlint.facts import ContractFacts


class AcmeLazyBuffers:
    """Reads `acme_lazy_buffers`, a tuple of globs that Acme's models carry, into the contract's lazy buffers."""

    name = "acme-lazy-buffers"
    section = "contract"

    def collect(self, target: Any, walk: Any, facts: Facts) -> ContractFacts | None:
        """Return the section with what was found, None when the model declares nothing."""
        declared = tuple(getattr(target.model, "acme_lazy_buffers", ()))
        if not declared:
            return None
        contract = facts.contract or ContractFacts(source="shardlint_acme.collector:AcmeLazyBuffers")
        return evolve(contract, lazy_buffers=(*contract.lazy_buffers, *declared))
