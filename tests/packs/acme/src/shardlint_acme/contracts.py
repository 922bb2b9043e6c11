"""The contracts of Acme's own models."""

from __future__ import annotations

from shardlint.contract import Contract, ContractQuery, Probe


def contract_for(query: ContractQuery) -> Contract | None:
    """Return the contract of `acme-lm`, None for every other model."""
    if query.key != "acme-lm":
        return None
    return Contract(name="acme-lm", probes=(Probe(glob="layers.*.weight"),))
