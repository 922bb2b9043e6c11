"""D301 alias-contract-conflict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import field, frozen

from shardlint import Facts, Finding, Phase, Rule, Section, Severity
from shardlint.facts import OwnershipFacts, ShardingFacts, known
from shardlint.names import listed, ordered

from ._layouts import live

_ADDING_KINDS = ("fsdp2", "hsdp", "replicate")


@frozen
class _Tie:
    """Records of one parameter, or of two that a class declares as tied, which the groups `told` may show as well."""

    fqn: str
    records: list[OwnershipFacts]
    declared: bool = False
    told: list[list[OwnershipFacts]] = field(factory=list)


class AliasContractConflict(Rule):
    """
    The names of one parameter have different owners, gradient domains, meshes or placements.

    ## What it does
    Brings the names of one parameter together (tied weights, shared modules) and compares the contract of each: owner
    unit, gradient domain, mesh axes, placements. Parameters that were one before they were wrapped count as one where
    torch numbers them (2.12 and later); else the ties that the model's classes declare are taken, when the config
    asks for them. One sharded tensor that FSDP2 units share costs a second gather only, and is a warning.

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

    noun = "tied parameter"

    def subjects(self, facts: Facts) -> Iterator[_Tie]:
        sharding = facts.require(Section.SHARDING)
        groups = {record.fqn: records for records in _groups(sharding) for record in records}
        for records in {id(records): records for records in groups.values()}.values():
            yield _Tie(records[0].fqn, records)
        live_records = {record.fqn: record for record in live(sharding.parameters)}
        for pair in _declared_ties(facts):
            ends = [live_records[name] for name in pair if name in live_records]
            if len(ends) == 2 and ends[0].identity != ends[1].identity:
                told = [groups[name] for name in pair if name in groups]
                yield _Tie(pair[0], ends, declared=True, told=told)

    def judge(self, tie: _Tie, facts: Facts) -> Iterator[Finding]:
        sharding = facts.require(Section.SHARDING)
        names = ordered(record.fqn for record in tie.records)
        if not tie.declared:
            if _disagree(sharding, tie.records):
                yield self.conflict(sharding, tie.records, names, "are one parameter")
        elif not any(_disagree(sharding, records) for records in tie.told):
            # A tie that the classes declare and that ended up in different units, where nothing else showed it.
            apart = tie.records[0].owner != tie.records[1].owner
            tellable = any(end.origin is None for end in tie.records) and any(end.managed for end in tie.records)
            if apart and tellable:
                yield self.conflict(sharding, tie.records, names, "are declared as tied")

    def conflict(
        self, sharding: ShardingFacts, records: list[OwnershipFacts], names: tuple[str, ...], relation: str
    ) -> Finding:
        if _gathered_twice(sharding, records):
            return self.finding(
                subject=names[0],
                owner=records[0].owner,
                severity=Severity.WARNING,
                message=f"{listed(names)} are one sharded tensor in several units, which each gather it: "
                f"{listed(ordered(record.owner for record in records))}",
                evidence={"aliases": names, "contracts": {one.fqn: _described(sharding, one) for one in records}},
                why="Every unit gathers and reduces the tensor by itself: the result is right, at the cost of a second "
                "copy in memory and a second communication in every step.",
            )
        contracts = {record.fqn: _described(sharding, record) for record in records}
        owners = ordered(record.owner for record in records)
        where = f"owners {listed(ordered(owners))}" if len(owners) > 1 else "different domains, meshes or placements"
        return self.finding(
            subject=names[0],
            owner=records[0].owner,
            message=f"{listed(ordered(names))} {relation}, expected one contract, found {where}",
            evidence={"aliases": names, "contracts": contracts},
        )


def _disagree(sharding: ShardingFacts, records: list[OwnershipFacts]) -> bool:
    return len({sharding.contract_of(record) for record in records}) > 1


def _gathered_twice(sharding: ShardingFacts, records: list[OwnershipFacts]) -> bool:
    """Whether all names are of one sharded tensor, in units that each add to its one gradient: they differ in owner."""
    units = [sharding.unit_of(record) for record in records]
    shared = len({record.identity for record in records}) == 1 and all(record.origin is not None for record in records)
    return (
        shared
        and all(unit is not None and unit.kind in _ADDING_KINDS for unit in units)
        and len({sharding.contract_of(record)[1:] for record in records}) == 1
    )


def _groups(sharding: ShardingFacts) -> Iterator[list[OwnershipFacts]]:
    """The records of each parameter, by what it was before wrapping where that is known."""
    origins = {record.identity: record.origin for record in sharding.parameters if known(record.origin) is not None}
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
