"""HyperParallel objects, read by duck typing: ownership, domains, prefetch targets, and what the rules make of them."""

import importlib.util

import pytest
import torch
from attrs import evolve
from torch import nn

from collect.sharding.hyper import Model, Replicate, Shard, Sharded, managed, schedule, sound_model, source
from shardlint.collect.model import model_facts
from shardlint.collect.sharding import sharding_facts
from shardlint.engine.runner import SelectedRule, evaluate
from shardlint.facts import DENSE, EXPERT, LOCAL, ROOT, UNMANAGED, Environment, Facts
from shardlint.introspect.walk import walk
from shardlint_rules.pack import shardlint_rules


def facts_of(model):
    walked = walk(model)
    return Facts(model=model_facts(walked), sharding=sharding_facts(walked))


def records(model):
    facts = sharding_facts(walk(model))
    return facts, {record.fqn: record for record in facts.parameters}


def findings(facts, *codes):
    rules = [SelectedRule(rule=rule()) for rule in shardlint_rules() if rule.code in codes]
    assert len(rules) == len(codes)
    return [(finding.code, finding.subject) for finding in evaluate(facts, rules).findings]


def test_a_managed_parameter_gives_the_record_that_the_framework_describes():
    sharding, found = records(sound_model())
    record = found["layers.1.experts.weight"]
    layout = sharding.layout_of(record)
    assert (record.owner, record.domain) == ("layers.1.experts", EXPERT)
    assert sharding.mesh(layout.source_mesh).axes == ("dp", "ep")
    assert [item.text for item in layout.source_placements] == ["Replicate()", "Shard(dim=0)"]
    assert (layout.global_shape, layout.local_shape) == ((16, 4), (4, 4))
    assert sharding.unit_of(record).kind == "hyperparallel"


def test_what_a_parameter_does_not_tell_has_its_fallback():
    model = Model(layers=1)
    schedule(model, [managed(model.embed.weight), managed(model.layers[0].experts.weight)])
    sharding, found = records(model)
    assert set(found) == {"<root>.param[0]", "<root>.param[1]", "layers.0.attention.weight"}
    plain, split = (sharding.layout_of(found[f"<root>.param[{index}]"]) for index in (0, 1))
    assert (plain.global_shape, plain.local_shape) == ((6, 4), (6, 4))  # no _orig_size, no to_local
    assert (split.global_shape, split.local_shape) == ((8, 4), (4, 4))
    assert (plain.source_mesh, plain.source_placements) == (None, ())


def test_unmanaged_parameters_are_records_of_every_name():
    model = sound_model()
    model.tied = nn.Linear(4, 4, bias=False)
    model.again = model.tied
    model.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
    sharding, found = records(model)
    assert (found["tied.weight"].owner, found["again.weight"].owner) == (UNMANAGED, UNMANAGED)
    assert found["tied.weight"].identity == found["again.weight"].identity
    assert (found["tied.weight"].domain, found["frozen"].domain) == (DENSE, LOCAL)
    assert sharding.layout_of(found["frozen"]).mesh is None
    assert sharding.layout_of(found["frozen"]).placements == ()


@pytest.mark.parametrize(
    ("axes", "placements", "domain"),
    [
        (("ep",), (Shard(0),), EXPERT),
        (("expert",), (Shard(1),), EXPERT),
        (("ep_inner", "dp"), (Replicate(), Shard(0)), EXPERT),
        (("dp", "ep"), (Shard(0), Replicate()), EXPERT),  # some placement, whichever axis it is on
        (("ep",), (Replicate(),), DENSE),
        (("dp", "tp"), (Shard(0), Shard(1)), DENSE),
        (("deep", "sep"), (Shard(0), Shard(1)), DENSE),
        (("EP",), (Shard(0),), DENSE),
        ((), (), DENSE),
    ],
)
def test_the_domain_follows_axis_names_and_shards(axes, placements, domain):
    model = Model(layers=1)
    schedule(model, [managed(model.embed.weight, "embed.weight", shard_info=source(*axes, placements=placements))])
    assert records(model)[1]["embed.weight"].domain == domain


def test_units_tell_domains_counts_and_prefetch_targets():
    model = sound_model()
    stranger = nn.Linear(1, 1)
    model.layers[0].hsdp_scheduler.forward_prefetch_cells = [model.layers[1], stranger]
    model.layers[1].hsdp_scheduler.backward_prefetch_cells = [model.layers[0], model]
    sharding, _ = records(model)
    units = {unit.name: unit for unit in sharding.units}
    assert list(units) == [ROOT, "layers.0", "layers.0.experts", "layers.1", "layers.1.experts"]
    assert units["layers.0"].domains == {DENSE: ("layers.0.attention.weight",)}
    assert units["layers.0.experts"].domains == {EXPERT: ("layers.0.experts.weight",)}
    assert units["layers.0"].parameter_count == 1
    assert units["layers.0"].forward_prefetch == ("layers.1", "<untracked:Linear>")
    assert units["layers.1"].backward_prefetch == ("layers.0", ROOT)


def test_a_sound_model_is_clean_and_what_is_not_told_is_not_judged():
    facts = facts_of(sound_model())
    rules = [SelectedRule(rule=rule()) for rule in shardlint_rules() if rule.code.startswith("D3")]
    evaluation = evaluate(facts, rules)
    assert evaluation.findings == ()
    silent = {outcome.code: outcome.reason for outcome in evaluation.outcomes if outcome.reason}
    assert set(silent) == {"D306", "D307", "D308", "D312", "D313", "D316", "D318"}
    assert "unknown" in silent["D307"]


def test_aliases_with_two_contracts_are_found():
    model = sound_model()
    shared = model.layers[0].attention.weight
    model.layers[1].attention.weight = shared
    schedule(model.layers[1], [managed(shared, "layers.1.attention.weight", shard_info=source("dp"))])
    assert findings(facts_of(model), "D301") == [("D301", "layers.0.attention.weight")]


def test_aliases_with_one_contract_are_not():
    model = sound_model()
    shared = model.embed.weight
    model.head = nn.Linear(4, 6, bias=False)
    model.head.weight = shared
    schedule(model, [managed(shared, "embed.weight"), managed(shared, "head.weight")])
    assert findings(facts_of(model), "D301") == []


def test_a_unit_of_two_domains_and_experts_in_the_root_are_found():
    model = Model(layers=1)
    block = model.layers[0]
    experts = managed(block.experts.weight, "layers.0.experts.weight", shard_info=source("ep", placements=(Shard(0),)))
    dense = managed(block.attention.weight, "layers.0.attention.weight")
    schedule(block, [dense, experts])
    assert findings(facts_of(model), "D302", "D303") == [("D302", "layers.0")]
    del block.hsdp_scheduler
    schedule(model, [dense, experts])
    assert findings(facts_of(model), "D302", "D303") == [("D302", ROOT), ("D303", ROOT)]


def test_unmanaged_experts_and_local_parameters_do_not_count():
    model = sound_model()
    model.layers[0].extra = Sharded(torch.zeros(2, 2))
    model.layers[0].mask = nn.Parameter(torch.zeros(2), requires_grad=False)
    assert findings(facts_of(model), "D302", "D303") == []


def test_an_untracked_prefetch_target_is_found():
    model = sound_model()
    model.layers[0].hsdp_scheduler.forward_prefetch_cells = [nn.Linear(1, 1)]
    assert findings(facts_of(model), "D315") == [("D315", "layers.0")]


def test_an_unmanaged_trainable_parameter_is_not_judged_while_the_ranks_are_unknown():
    model = sound_model()
    model.late = nn.Linear(2, 2, bias=False)
    facts = evolve(facts_of(model), environment=Environment(world_size=8))
    rules = [SelectedRule(rule=rule()) for rule in shardlint_rules() if rule.code == "D304"]
    (outcome,) = evaluate(facts, rules).outcomes
    assert outcome.reason.endswith("(first: embed.weight: the ranks over which the units reduce are unknown)")


def test_a_scheduler_without_state_is_unknown_and_not_an_error():
    model = Model(layers=1)
    model.hsdp_scheduler = object()
    sharding, found = records(model)
    assert "parameters" in sharding.units[0].unknown
    assert {record.owner for record in found.values()} == {UNMANAGED}


@pytest.mark.skipif(importlib.util.find_spec("hyper_parallel") is None, reason="hyper_parallel is not installed")
def test_the_real_framework_keeps_the_names_that_are_read():
    import hyper_parallel

    assert hasattr(hyper_parallel, "hsdp") or hasattr(hyper_parallel, "HSDP")
