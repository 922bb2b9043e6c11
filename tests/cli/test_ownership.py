"""`shardlint ownership` on snapshots: the flat table, the units, and what it says when there is nothing to show."""

import csv
import io
import json

import pytest

from shardlint.facts.codec import encode_facts
from shardlint.testing import base_snapshot

SEED_COLUMNS = [
    "parameter_fqn",
    "owner_fqn",
    "gradient_domain",
    "source_mesh",
    "source_placements",
    "global_shape",
    "local_shape",
]


@pytest.fixture
def snapshot(tmp_path):
    def write(name):
        path = tmp_path / f"{name}.json"
        path.write_bytes(encode_facts(base_snapshot(name)))
        return path

    return write


def test_csv_is_the_flat_table_with_the_agreed_columns_first(run, snapshot):
    done = run("ownership", snapshot("mixtral-ep"), "--output-format", "csv", "--isolated")
    assert done.status == 0
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert list(rows[0])[:7] == SEED_COLUMNS
    assert len(rows) == len(base_snapshot("mixtral-ep").sharding.parameters)
    (row,) = [item for item in rows if item["parameter_fqn"] == "model.layers.1.mlp.experts.down_proj"]
    assert row == {
        "parameter_fqn": "model.layers.1.mlp.experts.down_proj",
        "owner_fqn": "model.layers.1.mlp.experts",
        "gradient_domain": "EXPERT",
        "source_mesh": "ep",
        "source_placements": "Shard(dim=0)",
        "global_shape": "2x4x8",
        "local_shape": "1x2x8",
        "mesh": "(efsdp=2, ep=2)",
        "placements": "Shard(dim=1),Shard(dim=0)",
        "boxes": "[0:1, 0:2, 0:8]",
        "reduced_over": "0,2",
        "divided_by": "4",
        "dtype": "float32",
        "requires_grad": "yes",
    }


def test_text_joins_layers_and_answers_the_three_questions(run, snapshot):
    done = run("ownership", snapshot("mixtral-ep"), "--isolated")
    assert done.status == 0
    (line,) = [item for item in done.out.splitlines() if "experts.down_proj" in item]
    assert "model.layers.{0..1}.mlp.experts.down_proj" in line
    assert "EXPERT" in line
    assert "ranks 0,2" in line
    assert "model.layers.0.mlp.experts.down_proj" not in done.out


def test_no_collapse_lists_every_parameter(run, snapshot):
    done = run("ownership", snapshot("llama-fsdp2"), "--no-collapse", "--match", "**.q_proj.weight", "--isolated")
    found = [line.split()[0] for line in done.out.splitlines() if "q_proj" in line]
    assert found == [f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1)]


def test_json_has_units_with_their_domains(run, snapshot):
    done = run("ownership", snapshot("mixtral-hyperparallel"), "--output-format", "json", "--isolated")
    data = json.loads(done.out)
    units = {unit["name"]: unit for unit in data["units"]}
    assert list(units["model.layers.0.mlp.experts"]["domains"]) == ["EXPERT"]
    assert units["<root>"]["divided_by"] is None
    assert "divisor" in units["<root>"]["unknown"]
    assert {row["reduced_over"] for row in data["parameters"]} == {"unknown"}


def test_it_writes_a_file(run, snapshot, tmp_path):
    done = run("ownership", snapshot("llama-fsdp2"), "--output-format", "csv", "-o", tmp_path / "out.csv", "--isolated")
    assert (done.status, done.out) == (0, "")
    assert (tmp_path / "out.csv").read_text().startswith("parameter_fqn,owner_fqn,")


def test_a_target_without_a_model_is_the_users_mistake(run, clean):
    done = run("ownership", clean, "--isolated")
    assert done.status == 2
    assert "expected a target with a model" in done.err


def test_a_builder_that_raises_is_quoted(run, tmp_path):
    (tmp_path / "broken_builder.py").write_text("def model():\n    raise ValueError('no weights on this node')\n")
    done = run("ownership", f"{tmp_path}/broken_builder.py:model", "--isolated")
    assert done.status == 2
    assert "raised ValueError: no weights on this node at " in done.err
    assert "broken_builder.py:2 in model" in done.err


def test_a_glob_that_matches_nothing_is_the_users_mistake(run, snapshot):
    done = run("ownership", snapshot("llama-fsdp2"), "--match", "decoder.*", "--isolated")
    assert done.status == 2
    assert "--match decoder.*: expected the name of a parameter" in done.err


def test_a_rank_that_is_not_there_is_a_usage_error(run, tmp_path):
    (tmp_path / "facts.json").write_text('{"version": 1, "sharding": {}}')
    shown = run("ownership", "facts.json", "--rank", "99")
    assert (shown.status, "expected a rank of this run" in shown.err) == (2, True)
