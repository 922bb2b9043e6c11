"""Units of a framework that shardlint does not know, brought by a pack's collector."""

import pytest
from attrs import field, frozen
from torch import nn

from shardlint.collect import CollectOptions, Collector, collect
from shardlint.collect.sharding import UnitCollector, sharding_facts
from shardlint.facts import DENSE, UNMANAGED, OwnershipFacts, UnitFacts
from shardlint.introspect.walk import walk
from shardlint.target import Target


class Acme(UnitCollector):
    """Modules marked `acme_unit` own their direct parameters."""

    name = "acme"

    def collect_units(self, tables):
        for item in tables.walk.modules:
            if not getattr(item.module, "acme_unit", False):
                continue
            owner, records = tables.module_name(item.module), []
            for key, tensor in item.module.named_parameters(recurse=False):
                tables.managed.add(id(tensor))
                layout = tables.layout(("acme", tuple(tensor.shape)), lambda tensor=tensor: _layout(tensor))
                records.append(
                    OwnershipFacts(
                        fqn=tables.names(item.module, key)[0],
                        owner=owner,
                        unit=len(tables.units),
                        layout=layout,
                        identity=tables.identity(tensor),
                    )
                )
            tables.add_unit(
                UnitFacts(name=owner, owner=owner, kind="acme", reduction=tables.reduction([0, 1], 2)), records
            )


class Broken(Acme):
    name = "broken"

    def collect_units(self, tables):
        super().collect_units(tables)
        raise RuntimeError("half-way")


def _layout(tensor):
    from shardlint.facts import LayoutFacts

    return LayoutFacts(global_shape=tuple(tensor.shape), local_shape=tuple(tensor.shape))


@frozen
class Registered:
    collector: object
    name: str = "acme"
    section: str = "sharding"
    label: str = "acme-pack"
    root: str = ""

    def collect(self, *arguments):
        return self.collector.collect(*arguments)


@frozen
class Registry:
    collectors: tuple = ()
    diagnostics: tuple = field(default=())

    def contracts(self, query):
        return ()


@pytest.fixture
def model():
    built = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 3, bias=False))
    built[0].acme_unit = True
    return built


def test_a_packs_units_stand_beside_the_built_in_ones(model):
    facts = collect(Target(model=model), CollectOptions(packs=Registry((Registered(Acme()),))))
    found = {record.fqn: record for record in facts.sharding.parameters}
    assert (found["0.weight"].owner, found["1.weight"].owner) == ("0", UNMANAGED)
    assert facts.sharding.units[0].domains == {DENSE: ("0.weight",)}
    assert facts.sharding.reduction_of(found["0.weight"]).divisor == 2
    assert facts.problems == ()


def test_a_collector_that_fails_half_way_leaves_no_trace_but_its_error(model):
    facts = collect(Target(model=model), CollectOptions(packs=Registry((Registered(Broken()),))))
    assert facts.sharding.units == ()
    assert {record.owner for record in facts.sharding.parameters} == {UNMANAGED}
    (problem,) = facts.problems
    assert (problem.collector, problem.error, problem.pack) == ("acme", "half-way", "acme-pack")


def test_without_anybody_to_tell_the_error_gets_out(model):
    with pytest.raises(RuntimeError, match="half-way"):
        sharding_facts(walk(model), collectors=[Broken()])


def test_unit_collectors_are_collectors():
    assert isinstance(Acme(), Collector)
