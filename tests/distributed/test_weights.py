"""Verification on 2 and 4 real ranks: sharded models pass whole, damage is found on its rank, nobody hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.loaded_models import mixtral_config, saved

WORKER = Path(__file__).with_name("weights_worker.py")


@pytest.fixture(scope="module", params=[2, 4])
def job(request, tmp_path_factory):
    """Outcomes by scenario and rank."""
    from transformers import MixtralForCausalLM

    world = request.param
    folder = tmp_path_factory.mktemp(f"job{world}")
    checkpoint = saved(folder / "checkpoint", mixtral_config(vocab_size=95), MixtralForCausalLM)
    command = [sys.executable, "-W", "ignore", str(WORKER), str(folder), str(checkpoint)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for rank in range(world)
    ]
    try:
        told = [rank.communicate(timeout=240)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    found: dict[str, list[dict]] = {}
    for path in sorted(folder.glob("*.*.json")):
        found.setdefault(path.name.split(".")[0], []).append(json.loads(path.read_text()))
    assert all(rank.returncode == 0 for rank in ranks), b"\n".join(told).decode()[-3000:]
    for outcomes in found.values():
        for outcome in outcomes:
            assert "crash" not in outcome, outcome["crash"]
    return world, found


RIGHT = ["fsdp2", "fsdp2_of_uneven_shards", "fsdp2_and_tensor_parallel", "hybrid", "hybrid_full", "expert_parallel"]


@pytest.mark.distributed
@pytest.mark.parametrize("name", [*RIGHT, "replicated_on_a_mesh"])
def test_right_shards_pass_on_every_rank(job, name):
    world, found = job
    outcomes = found[name]
    assert len(outcomes) == world
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert (outcomes[0]["verdict"], outcomes[0]["errors"], outcomes[0]["wrong"]) == ("PASS", [], {})
    assert outcomes[0]["stored"] == 41


@pytest.mark.distributed
def test_each_byte_is_read_once_per_job_by_default(job):
    world, found = job
    whole = found["fsdp2"][0]["bytes"]
    assert found["hybrid"][0]["bytes"] == whole
    assert found["hybrid_full"][0]["bytes"] == whole * (world // 2)
    assert found["replicated_on_a_mesh"][0]["bytes"] == whole
    assert found["replicated_on_a_mesh"][0]["checked"] == world * found["fsdp2"][0]["checked"]
    assert all(0 < sent < 60_000 for sent in found["hybrid"][0]["exchanged"])


@pytest.mark.distributed
def test_one_damaged_shard_is_found_on_its_rank(job):
    world, found = job
    for outcome in found["one_damaged_shard"]:
        assert outcome["verdict"] == "FAIL"
        name = "model.layers.1.mlp.experts.down_proj"
        assert outcome["wrong"] == {name: [1, world - 1, [2, 3]]}


@pytest.mark.distributed
def test_a_damaged_replica_is_found_with_and_without_a_checkpoint(job):
    world, found = job
    for outcome in found["one_damaged_replica"]:
        assert [(name, set(ranks) | {one}) for name, one, ranks in outcome["alone"]["replicas"]] == [
            ("model.norm.weight", set(range(world)) if world == 2 else outcome_ranks(outcome, world))
        ]
        assert outcome["verify"]["verdict"] == "FAIL"
        assert outcome["verify"]["wrong"] == {"model.norm.weight": [1, 1, [5]]}
    for outcome in found["equal_replicas"]:
        assert (outcome["replicas"], outcome["verdict"]) == ([], "PASS")


def outcome_ranks(outcome: dict, world: int) -> set[int]:
    """The odd one against its leader, or all the others against an odd leader."""
    ((_, reference, ranks),) = outcome["alone"]["replicas"]
    assert ranks == [1] if reference != 1 else ranks == [rank for rank in range(world) if rank != 1]
    return set(ranks) | {reference}


@pytest.mark.distributed
def test_a_placement_that_does_not_describe_the_data_is_its_own_fault(job):
    _, found = job
    for outcome in found["packed_under_a_plain_shard"]:
        assert outcome["verdict"] == "FAIL"
        assert outcome["faults"] == ["layout"]
        assert {(declared, right) for _, declared, right, _ in outcome["layouts"]} == {
            ("Shard(dim=1)", "_StridedShard(dim=1, split_factor=2)")
        }
        assert len(outcome["layouts"]) == 2


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("one_rank_fails_while_it_reads", "ends at byte 7"),
        ("one_rank_has_no_checkpoint", "/nowhere/at/all"),
    ],
)
def test_a_rank_that_fails_is_named_on_every_rank(job, name, text):
    world, found = job
    assert len(found[name]) == world
    for outcome in found[name]:
        assert outcome["verdict"] == "FAIL"
        ((rank, error),) = outcome["errors"]
        assert rank == 1
        assert text in error
        assert outcome["faults"] == ["rank"]


@pytest.mark.distributed
def test_a_partial_placement_is_refused(job):
    world, found = job
    for outcome in found["a_partial_placement"]:
        assert [rank for rank, _ in outcome["errors"]] == list(range(world))
        assert "partial: no rank holds its values" in outcome["errors"][0][1]


@pytest.mark.distributed
def test_a_folder_that_a_job_saved_is_verified_by_every_rank(job):
    """21 tensors of the model, and their states of the optimizer, which are left out."""
    world, found = job
    outcomes = found["a_folder_that_fsdp2_saved"]
    assert len(outcomes) == world
    for outcome in outcomes:
        for name in ("same", "whole", "whole_full", "experts", "columns", "saved_by_columns"):
            assert (outcome[name]["verdict"], outcome[name]["errors"], outcome[name]["faults"]) == ("PASS", [], []), (
                name
            )
            assert outcome[name]["stored"] == 21, name
        whole = outcome["same"]["bytes"]
        assert outcome["whole"]["bytes"] == whole  # of replicas one reads
        assert outcome["whole_full"]["bytes"] == world * whole
        damaged = outcome["damaged"]
        assert (damaged["verdict"], damaged["faults"]) == ("FAIL", ["mismatch"])
        first = (world - 1) * (4 // world)  # 4 experts, in shards of the first dimension
        assert damaged["wrong"] == {"model.layers.1.mlp.experts.gate_up_proj": [1, world - 1, [first, 2, 3]]}
        lost = outcome["without_a_file"]
        assert (lost["verdict"], lost["errors"], lost["wrong"]) == ("FAIL", [], {})
        assert set(lost["faults"]) <= {"uncompared", "unread"}
        assert "uncompared" in lost["faults"]
        assert 0 < lost["checked"] < outcome["whole"]["checked"]


@pytest.mark.distributed
def test_a_sharded_export_is_compared_with_the_original(job):
    _, found = job
    for outcome in found["a_sharded_export"]:
        assert (outcome["right"]["verdict"], outcome["right"]["errors"]) == ("PASS", [])
        assert outcome["right"]["checked"] == found["fsdp2"][0]["checked"]
        assert outcome["wrong"]["verdict"] == "FAIL"
        ((name, (count, _, index)),) = outcome["wrong"]["wrong"].items()
        assert (name, count, index) == ("model.layers.1.mlp.experts.gate_up_proj", 1, [2, 3])
        assert outcome == found["a_sharded_export"][0]


@pytest.mark.distributed
def test_loads_that_transformers_gets_wrong_without_a_word(job):
    """Tensor-parallel loads of 5.24: `hrm_text` gets other weights, `inkling2_text` a placement that lies."""
    world, found = job
    for outcome in found["loaded_with_tensor_parallelism"] if world == 2 else ():
        assert outcome["mixtral"]["verdict"] == "PASS"
        assert outcome["inkling2_text"]["faults"] == ["layout"]
        assert outcome["hrm_text"]["verdict"] == "FAIL"
        assert set(outcome["hrm_text"]["faults"]) == {"mismatch"}
        assert any(name.endswith("self_attn.q_proj.weight") for name in outcome["hrm_text"]["wrong"])


@pytest.mark.distributed
def test_a_rank_that_never_calls_is_named_within_the_limit(job):
    _, found = job
    for rank, outcome in enumerate(found["a_rank_that_never_calls"]):
        if rank != 1:
            assert outcome["verdict"] == "FAIL"
            assert outcome["errors"] == [[1, "rank 1 has not been heard of for 3 seconds"]]
