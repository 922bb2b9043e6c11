"""D301 alias-contract-conflict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.facts import OwnershipFacts, ShardingFacts
from shardlint.names import listed, ordered

from ._layouts import live


class AliasContractConflict(Rule):
    """
    The names of one parameter have different owners, gradient domains, meshes or placements.

    ## What it does
    Brings the names of one parameter together (tied weights, shared modules) and compares the contract of each: owner
    unit, gradient domain, mesh axes, placements. Parameters that were one before they were wrapped count as one where
    torch numbers them (2.12 and later); else the ties that the model's classes declare are taken, when the config
    asks for them.

    ## Why it is unsafe
    Two units then shard, gather and reduce the same weight by themselves. The tie is broken silently: two
    copies train apart, and one of them is not saved; or the weight is freed by one unit while the other uses it.

    ## What to do
    Put all names of the parameter into one unit: `fully_shard([embed_tokens, lm_head])`, or leave both to the root.
    Tie before wrapping, never after.
    """

    code = "D301"
    name = "alias-contract-conflict"
    phase = Phase.D3
    severity = Severity.ERROR
    needs = (Section.SHARDING,)
    related_config = ("tie_word_embeddings", "fsdp_plan")

    def check(self, facts: Facts) -> Iterator[Finding]:
        sharding, told = facts.require(Section.SHARDING), set[str]()
        for records in _groups(sharding):
            contracts = {sharding.contract_of(record) for record in records}
            if len(contracts) > 1:
                names = ordered(record.fqn for record in records)
                told.update(names)
                yield self.conflict(sharding, records, names, "are one parameter")
        yield from self.declared(facts, sharding, told)

    def declared(self, facts: Facts, sharding: ShardingFacts, told: set[str]) -> Iterator[Finding]:
        """Ties that the classes declare and that ended up in different units, where nothing else showed it."""
        records = {record.fqn: record for record in live(sharding.parameters)}
        for pair in _declared_ties(facts):
            ends = [records[name] for name in pair if name in records]
            apart = len(ends) == 2 and ends[0].identity != ends[1].identity and ends[0].owner != ends[1].owner
            tellable = any(end.origin is None for end in ends) and any(end.managed for end in ends)
            if apart and tellable and not told.intersection(pair):
                yield self.conflict(sharding, ends, ordered(pair), "are declared as tied")

    def conflict(
        self, sharding: ShardingFacts, records: list[OwnershipFacts], names: tuple[str, ...], relation: str
    ) -> Finding:
        contracts = {record.fqn: _described(sharding, record) for record in records}
        owners = ordered(record.owner for record in records)
        where = f"owners {listed(ordered(owners))}" if len(owners) > 1 else "different domains, meshes or placements"
        return self.finding(
            subject=names[0],
            owner=records[0].owner,
            message=f"{listed(ordered(names))} {relation}, expected one contract, found {where}",
            evidence={"aliases": names, "contracts": contracts},
        )


def _groups(sharding: ShardingFacts) -> Iterator[list[OwnershipFacts]]:
    """The records of each parameter, by what it was before wrapping where that is known."""
    origins = {record.identity: record.origin for record in sharding.parameters if record.origin is not None}
    groups: dict[tuple[str, int], list[OwnershipFacts]] = {}
    for record in live(sharding.parameters):
        origin = origins.get(record.identity)
        key = ("identity", record.identity) if origin is None else ("origin", origin)
        groups.setdefault(key, []).append(record)
    return (records for records in groups.values() if len(records) > 1)


def _described(sharding: ShardingFacts, record: OwnershipFacts) -> Mapping[str, Any]:
    owner, domain, mesh, placements = sharding.contract_of(record)
    return {"owner": owner, "domain": domain, "mesh": mesh, "placements": placements}


def _declared_ties(facts: Facts) -> Iterator[tuple[str, str]]:
    if facts.model is None or facts.model.config is None or not facts.model.config.get("tie_word_embeddings"):
        return
    for declaration in facts.model.declarations:
        prefix = f"{declaration.fqn}." if declaration.fqn else ""
        for target, source in declaration.tied_weights.items():
            yield f"{prefix}{target}", f"{prefix}{source}"
