"""Real gloo jobs: right models give no finding, faulty ones the right finding about the right objects."""

import itertools
import json

import pytest

from shardlint.facts import DENSE, EXPERT, ROOT, UNMANAGED

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

SOUND = (
    "plain",
    "fsdp2-before",
    "fsdp2-within",
    "fsdp2-after",
    "tied-in-root",
    "tied-one-unit",
    "tp-only",
    "fsdp2-tp",
    "hsdp-before",
    "hsdp-within",
    "hsdp-after",
    "replicate",
    "ddp",
    "fsdp1-flat",
    "fsdp1-originals",
    "fsdp1-within",
    "fsdp1-after",
    "ep-mixtral",
    "ep-qwen3_moe",
    "ep-groups",
    "ep-transformers",
    "frozen-ignored",
    "assigned",
)
EXPERTS = [f"model.layers.{layer}.mlp.experts.{name}" for layer in (0, 1) for name in ("down_proj", "gate_up_proj")]
ADAPTERS = [f"model.layers.{layer}.self_attn.q_proj.lora_{side}.weight" for layer in (0, 1) for side in "AB"]
KEY_VALUES = [f"model.layers.{layer}.self_attn.{name}.weight" for layer in (0, 1) for name in ("k_proj", "v_proj")]
SECOND_LAYER = [f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkvo"]
SECOND_LAYER += [f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
SECOND_LAYER += [f"model.layers.1.{name}_layernorm.weight" for name in ("input", "post_attention")]

FAULTS = {
    "fault-mixed-unit": {("D302", "model.layers.0"), ("D302", "model.layers.1")},
    "fault-attention-only": {("D302", ROOT), ("D303", ROOT)},
    "fault-tie-split": {("D301", "lm_head.weight")},
    "fault-ignored": {("D304", "model.layers.0.mlp.up_proj.weight"), ("D308", "optimizer")},
    "fault-adapter-late": {("D304", name) for name in ADAPTERS},
    "fault-replaced": {("D304", "model.layers.0.mlp.up_proj.weight")},
    "fault-half-synchronised": {("D304", name) for name in SECOND_LAYER},
    "fault-norm-dtype": {("D305", "model.layers.0"), ("D305", "model.layers.1")},
    "fault-averaged-experts": {(code, name) for code in ("D306", "D312") for name in EXPERTS},
    "fault-divisor": {("D307", "model.layers.0.mlp.experts"), ("D307", "model.layers.1.mlp.experts")},
    "fault-heads": {("D311", name) for name in KEY_VALUES},
    "fault-partial": {("D310", "model.norm.weight")},
    "fault-stock-clipping": {("D308", "optimizer")},
    "fault-packed-layout": {("D316", "weight")},
    "uneven": {("D312", name) for name in ("0.bias", "0.weight", "1.bias", "1.weight")},
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_model_gives_no_finding_on_any_rank(four, name):
    for rank in range(4):
        assert four.codes(name, rank) == set()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_rule_naming_its_objects(four, name):
    for rank in range(4):
        assert four.codes(name, rank) == FAULTS[name]


@pytest.mark.parametrize("name", ["fsdp2-before", "ddp", "fsdp1-flat", "fsdp1-originals"])
def test_two_ranks_are_as_clean_as_four(two, name):
    assert two.codes(name) == two.codes(name, 1) == set()


def test_two_ranks_find_what_four_find(two):
    for name in ("fault-tie-split", "fault-ignored"):
        assert two.codes(name) == FAULTS[name]


def test_ownership_is_the_same_before_within_and_after_a_step(four):
    moments = [four.facts(f"fsdp2-{moment}").sharding for moment in ("before", "within", "after")]
    assert [facts.moment for facts in moments] == ["before-first-forward", "unsharded", "sharded"]
    assert moments[0].parameters == moments[1].parameters == moments[2].parameters
    assert moments[0].layouts == moments[1].layouts == moments[2].layouts


def test_a_parameter_tells_its_owner_cut_and_reduction(four):
    sharding = four.facts("fsdp2-tp", 3).sharding
    (record,) = [item for item in sharding.parameters if item.fqn == "model.layers.1.self_attn.q_proj.weight"]
    layout, reduction = sharding.layout_of(record), sharding.reduction_of(record)
    assert (record.owner, record.domain) == ("model.layers.1", DENSE)
    assert sharding.mesh_text(layout.mesh) == "(dp=2, tp=2)"
    assert sharding.mesh(layout.mesh).coordinate == (1, 1)
    assert [box.text() for box in layout.boxes] == ["[24:32, 0:32]"]
    assert layout.built == layout.boxes
    assert (layout.global_shape, layout.local_shape) == ((32, 32), (8, 32))
    assert (reduction.ranks, reduction.divisor) == ((1, 3), 2.0)


def test_expert_units_tell_their_domain_mesh_and_divisor(four):
    for name in ("ep-mixtral", "ep-groups", "ep-transformers"):
        sharding = four.facts(name).sharding
        experts = [unit for unit in sharding.units if EXPERT in unit.domains]
        assert len(experts) == 2, name
        for unit in experts:
            assert set(unit.domains) == {EXPERT}
            assert sharding.reductions[unit.reduction].ranks == (0, 2)
            assert sharding.reductions[unit.reduction].divisor == 4.0
        assert {record.fqn for record in sharding.parameters if record.domain == EXPERT} == set(EXPERTS)


def test_units_tell_precision_resharding_and_prefetch(four):
    units = {unit.name: unit for unit in four.facts("tied-in-root").sharding.units}
    first, second = units["model.layers.0"], units["model.layers.1"]
    assert first.mixed_precision["param_dtype"] == "bfloat16"
    assert first.mixed_precision["reduce_dtype"] == "float32"
    assert (first.reshard_after_forward, units[ROOT].reshard_after_forward) == (False, True)
    assert first.forward_prefetch == ("model.layers.1",)
    assert second.backward_prefetch == ("model.layers.0",)
    assert first.unknown == ()


def test_kinds_are_told_apart(four):
    kinds = {
        "fsdp2-before": "fsdp2",
        "hsdp-before": "hsdp",
        "replicate": "replicate",
        "ddp": "ddp",
        "fsdp1-flat": "fsdp1",
    }
    for name, kind in kinds.items():
        sharding = four.facts(name).sharding
        assert {unit.kind for unit in sharding.units} == {kind}
        assert {sharding.reductions[unit.reduction].ranks for unit in sharding.units} == {(0, 1, 2, 3)}


def test_tied_names_are_records_of_one_parameter(four):
    for name in ("tied-in-root", "ddp", "tied-one-unit"):
        records = {record.fqn: record for record in four.facts(name).sharding.parameters}
        assert records["lm_head.weight"].identity == records["model.embed_tokens.weight"].identity
        assert records["lm_head.weight"].owner == records["model.embed_tokens.weight"].owner


@pytest.mark.parametrize("name", ["fsdp1-flat", "fsdp1-originals"])
def test_flat_shards_cover_every_parameter_once(four, name):
    held = {}
    for rank in range(4):
        sharding = four.facts(name, rank).sharding
        for record in sharding.parameters:
            layout = sharding.layout_of(record)
            assert record.owner != UNMANAGED
            held.setdefault((record.fqn, layout.global_shape), []).append(layout.flat)
    for (fqn, shape), parts in held.items():
        total = 1
        for size in shape:
            total *= size
        ranges = sorted(part for part in parts if part[1])
        assert sum(length for _, length in ranges) == total, fqn
        assert all(a + n == b for (a, n), (b, _) in itertools.pairwise(ranges))


def test_replaced_parameters_are_two_records(four):
    sharding = four.facts("fault-replaced").sharding
    records = [item for item in sharding.parameters if item.fqn == "model.layers.0.mlp.up_proj.weight"]
    assert {(item.owner, item.replaced) for item in records} == {("model.layers.0", True), (UNMANAGED, False)}


def test_boxes_equal_real_shards_on_two_dimensional_meshes(four):
    for rank in range(4):
        rows = json.loads((four.folder / f"truth.{rank}.rows").read_text())
        assert len(rows) == 45
        for row in rows:
            width = row["shape"][1]
            found = [
                float(i * width + j)
                for (top, left), (height, breadth) in row["boxes"]
                for i in range(top, top + height)
                for j in range(left, left + breadth)
            ]
            assert found == row["local"], row
            assert row["replayed"] == row["local_shape"]
