"""Verifying live models: right loads pass whole, and each way of being wrong is found and named."""

from __future__ import annotations

import copy
import csv
import json

import pytest
import torch
from attrs import evolve
from safetensors.torch import load_file, save_file

import shardlint
from shardlint.facts import ContractFacts
from shardlint.weights import (
    Difference,
    ExternalShard,
    ReplicaGroup,
    Result,
    Row,
    RowKind,
    RowStatus,
    WeightsDifferError,
    WeightsVerdict,
    check_export,
    compare_checkpoints,
    faults,
    verify,
)
from shardlint.weights.compare.bits import bits_of
from shardlint.weights.report_files import summary_of
from shardlint.weights.report_text import as_text
from shardlint.weights.result import sorted_rows
from support.loaded_models import loaded, mixtral_config, saved


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    from transformers import MixtralForCausalLM

    return saved(tmp_path_factory.mktemp("mixtral"), mixtral_config(), MixtralForCausalLM)


@pytest.fixture
def model(mixtral):
    from transformers import MixtralForCausalLM

    return loaded(mixtral, MixtralForCausalLM)


def wrong(result: Result) -> dict[str, Row]:
    return {row.name: row for row in result.of_kind(RowKind.LIVE) if row.load_mismatches}


def test_a_right_load_passes_and_covers_both_sides(model, mixtral):
    result = verify(model, mixtral)
    assert result.verdict is WeightsVerdict.PASS
    live, stored = result.of_kind(RowKind.LIVE), result.of_kind(RowKind.CHECKPOINT)
    assert {row.name for row in live} == set(model.state_dict())
    assert sum(row.checked for row in live) == sum(value.numel() for value in model.state_dict().values())
    assert sum(row.checked for row in stored) == sum(row.expected for row in stored)
    assert {row.status for row in result.rows} == {RowStatus.EXACT}
    experts = next(row for row in live if row.name.endswith("1.mlp.experts.gate_up_proj"))
    assert experts.operations == ("MergeModulelist", "Concatenate")
    assert len(experts.sources) == 8
    assert faults(result) == ()
    result.raise_for_failure()


def test_nothing_of_the_model_is_touched(model, mixtral):
    before = {key: value.clone() for key, value in model.state_dict().items()}
    flags = [(p.requires_grad, p._version, p.data_ptr()) for p in model.parameters()]
    state = torch.random.get_rng_state()
    verify(model, mixtral)
    assert [(p.requires_grad, p._version, p.data_ptr()) for p in model.parameters()] == flags
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all((bits_of(value) == bits_of(before[key])).all() for key, value in model.state_dict().items())


def test_memory_can_still_be_resized(model, mixtral):
    fresh = copy.deepcopy(model)  # as FSDP does, to free what it gathered
    assert verify(fresh, mixtral).verdict is WeightsVerdict.PASS
    assert all(parameter.untyped_storage().resizable() for parameter in fresh.parameters())


def test_one_bit_is_found_at_its_places(model, mixtral):
    bits_of(model.model.layers[1].mlp.experts.down_proj)[2, 7, 9] ^= 1
    result = verify(model, mixtral)
    (row,) = wrong(result).values()
    assert (row.name, row.load_mismatches, row.status) == (
        "model.layers.1.mlp.experts.down_proj",
        1,
        RowStatus.MISMATCH,
    )
    assert row.first is not None
    assert row.first.live_index == (2, 7, 9)
    assert row.first.checkpoint_key == "model.layers.1.block_sparse_moe.experts.2.w2.weight"
    assert row.first.checkpoint_index == (7, 9)
    assert result.verdict is WeightsVerdict.FAIL
    (fault,) = faults(result)
    assert fault.subject == "model.layers.1.mlp.experts.down_proj"
    assert "1 of 4096 elements" in fault.message
    assert "block_sparse_moe.experts.2.w2.weight[7, 9]" in fault.message
    with pytest.raises(WeightsDifferError, match="FAIL"):
        result.raise_for_failure()


def swap(a, b):
    with torch.no_grad():
        keep = a.clone()
        a.copy_(b)
        b.copy_(keep)


def swapped_experts(m):
    down = m.model.layers[0].mlp.experts.down_proj
    swap(down[1], down[3])


def transposed_expert(m):
    down = m.model.layers[1].mlp.experts.down_proj
    with torch.no_grad():
        down[2] = down[2].t().clone()


def exchanged_layers(m):
    first, second = (dict(layer.named_parameters()) for layer in m.model.layers)
    for name in first:
        swap(first[name], second[name])


def exchanged_q_and_k(m):
    attention = m.model.layers[0].self_attn
    swap(attention.q_proj.weight, attention.k_proj.weight)


def permuted_for_rope_twice(m):
    with torch.no_grad():
        weight = m.model.layers[1].self_attn.q_proj.weight
        weight.copy_(weight.view(4, 4, 2, 32).transpose(1, 2).reshape(32, 32).clone())


def norm_at_default(m):
    torch.nn.init.ones_(m.model.norm.weight)


@pytest.mark.parametrize(
    ("fault", "names", "count"),
    [
        (swapped_experts, {"model.layers.0.mlp.experts.down_proj"}, 2 * 32 * 32),
        (transposed_expert, {"model.layers.1.mlp.experts.down_proj"}, 32 * 31),
        (exchanged_q_and_k, {f"model.layers.0.self_attn.{part}_proj.weight" for part in "qk"}, 2 * 32 * 32),
        (permuted_for_rope_twice, {"model.layers.1.self_attn.q_proj.weight"}, None),
        (norm_at_default, {"model.norm.weight"}, 32),
        (exchanged_layers, None, None),
    ],
)
def test_faults_of_loading_are_found(model, mixtral, fault, names, count):
    fault(model)
    found = wrong(verify(model, mixtral))
    if names is None:
        names = {name for name in model.state_dict() if name.startswith("model.layers.")}
    assert set(found) == names
    assert count is None or sum(row.load_mismatches for row in found.values()) == count


def test_values_that_only_bits_tell_apart(mixtral, tmp_path):
    from transformers import MixtralForCausalLM

    folder = tmp_path / "zeros"
    folder.mkdir()
    (folder / "config.json").write_bytes((mixtral / "config.json").read_bytes())
    stored = load_file(mixtral / "model.safetensors")
    stored["model.norm.weight"][:] = 0.0
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    model = loaded(folder, MixtralForCausalLM)
    assert verify(model, folder).verdict is WeightsVerdict.PASS
    with torch.no_grad():
        model.model.norm.weight[3] = -0.0
    (row,) = wrong(verify(model, folder)).values()
    assert (row.load_mismatches, row.max_abs) == (1, 0.0)
    assert row.first is not None
    assert (row.first.actual, row.first.reference) == ("-0.0", "0.0")


def test_nan_is_found_even_where_the_checkpoint_has_it(mixtral, tmp_path):
    from transformers import MixtralForCausalLM

    (tmp_path / "config.json").write_bytes((mixtral / "config.json").read_bytes())
    stored = load_file(mixtral / "model.safetensors")
    stored["model.layers.0.self_attn.q_proj.weight"][1, 2] = float("nan")
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    result = verify(loaded(tmp_path, MixtralForCausalLM), tmp_path)
    assert result.verdict is WeightsVerdict.FAIL
    (fault,) = faults(result)
    assert (fault.what, fault.subject) == ("nonfinite", "model.layers.0.self_attn.q_proj.weight")
    assert fault.message.startswith(
        "1 element is infinite or not a number; first at model.layers.0.self_attn.q_proj.weight[1, 2]: nan (float32, "
    )
    assert fault.evidence["first_checkpoint"] == "model.layers.0.self_attn.q_proj.weight[1, 2]"
    assert "[1, 2]" in as_text(result)
    assert wrong(result) == {}


def test_a_narrowing_load_is_a_cast_and_passes(mixtral):
    from transformers import MixtralForCausalLM

    result = verify(loaded(mixtral, MixtralForCausalLM, dtype=torch.bfloat16), mixtral)
    assert result.verdict is WeightsVerdict.PASS
    assert result.count(RowStatus.DTYPE_CAST) > 15
    row = result.of_kind(RowKind.LIVE)[0]
    assert row.first is not None
    assert row.first.cast_only
    assert row.max_load_abs == 0.0
    assert row.max_abs is not None
    assert row.max_abs > 0


def test_a_missing_tensor_and_an_unread_key_are_no_pass(mixtral, tmp_path):
    from transformers import MixtralForCausalLM

    (tmp_path / "config.json").write_bytes((mixtral / "config.json").read_bytes())
    stored = load_file(mixtral / "model.safetensors")
    stored["model.layers.9.extra.weight"] = stored.pop("model.norm.weight")
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = loaded(tmp_path, MixtralForCausalLM)
    result = verify(model, tmp_path)
    assert result.verdict is WeightsVerdict.FAIL
    assert {(fault.what, fault.subject) for fault in faults(result)} == {
        ("uncompared", "model.norm.weight"),
        ("unread", "model.layers.9.extra.weight"),
    }
    assert any(
        "no stored tensor gives it, and some stored keys arrive nowhere" in fault.message for fault in faults(result)
    )
    excused = ContractFacts(
        source="test", training_only_targets=("model.norm.*",), inference_only_sources=("**.extra.weight",)
    )
    result = verify(model, tmp_path, contract=excused)
    assert result.verdict is WeightsVerdict.PASS
    assert result.count(RowStatus.EXCLUDED) == 1
    assert result.count(RowStatus.EXCLUDED, RowKind.CHECKPOINT) == 1


def test_a_tie_is_compared_once_and_a_broken_one_found(tmp_path):
    from transformers import MixtralForCausalLM

    folder = saved(tmp_path, mixtral_config(tie_word_embeddings=True), MixtralForCausalLM)
    model = loaded(folder, MixtralForCausalLM)
    assert verify(model, folder).verdict is WeightsVerdict.PASS
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.lm_head.weight.data[0, 0] += 1
    assert set(wrong(verify(model, folder))) == {"lm_head.weight"}


def test_an_incomplete_look_never_passes(model, mixtral):
    result = verify(model, mixtral, sample=0.2)
    assert result.verdict is WeightsVerdict.INCOMPLETE
    assert "sample" in result.incomplete
    with pytest.raises(WeightsDifferError):
        result.raise_for_failure()
    with pytest.raises(ValueError, match="fraction above 0"):
        verify(model, mixtral, sample=0.0)

    def interrupt(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    result = verify(model, mixtral, progress=interrupt)
    assert (result.verdict, result.incomplete) == (WeightsVerdict.INCOMPLETE, "the run was interrupted")


def test_reports(model, mixtral, tmp_path):
    bits_of(model.lm_head.weight)[1, 1] ^= 1
    result = verify(model, mixtral, reports=tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out" / "tensors.csv").read_text().splitlines()))
    assert len(rows) == len(result.rows)
    assert (rows[0]["name"], rows[0]["status"]) == ("lm_head.weight", "MISMATCH")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["verdict"], summary["load_dtype_mismatches"]) == ("FAIL", 1)
    assert (tmp_path / "out" / "worst.txt").read_text() == as_text(result, table="tensors.csv")
    rank = json.loads((tmp_path / "out" / "rank_00000.json").read_text())
    assert sum(count["tally"]["load_mismatches"] for count in rank["counts"]) == 1


def test_the_summary_says_what_was_compared_with_what_and_when(model, mixtral, tmp_path):
    bits_of(model.lm_head.weight)[1, 1] ^= 1
    stored = load_file(mixtral / "model.safetensors")
    stored["model.extra"] = torch.ones(3)
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((mixtral / name).read_bytes())
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    verify(model, tmp_path, reports=tmp_path / "out", phase="before step 1")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    elements = sum(value.numel() for value in stored.values())
    assert summary["phase"] == "before step 1"
    assert summary["exact_reference_match"] is False
    assert summary["checkpoint_elements"] == elements
    assert summary["reference_scope"]["files"] == ["model.safetensors"]
    assert (summary["reference_scope"]["tensors"], summary["reference_scope"]["elements"]) == (len(stored), elements)
    (uncovered,) = summary["uncovered_checkpoint_tensors"]
    assert (uncovered["name"], uncovered["checked"], uncovered["expected"]) == ("model.extra", 0, 3)
    rank = json.loads((tmp_path / "out" / "rank_00000.json").read_text())
    assert (rank["phase"], rank["checkpoint"]) == ("before step 1", str(tmp_path))
    assert rank["source_files"] == ["model.safetensors"]
    rows = csv.DictReader((tmp_path / "out" / "tensors.csv").read_text().splitlines())
    assert {row["name"]: row["ranks"] for row in rows if row["ranks"]} == {"lm_head.weight": "0"}
    bits_of(model.lm_head.weight)[1, 1] ^= 1
    assert verify(model, mixtral, reports=tmp_path / "out").verdict is WeightsVerdict.PASS
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["exact_reference_match"] is True


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_report_that_cannot_be_written_fails_before_anything_is_compared(model, mixtral, tmp_path, folder):
    (tmp_path / "file").write_text("in the way")
    result = verify(model, mixtral, reports=tmp_path / folder)
    assert result.verdict is WeightsVerdict.FAIL
    assert [rank for rank, _ in result.unwritten] == [0]
    assert [fault.what for fault in faults(result)] == ["report"]
    assert result.rows == ()
    with pytest.raises(WeightsDifferError, match="could not be written"):
        result.raise_for_failure()
    pair = compare_checkpoints(mixtral, mixtral, reports=tmp_path / folder)
    assert pair.verdict is WeightsVerdict.FAIL


def test_a_report_that_cannot_be_written_at_the_end_fails_too(model, mixtral, tmp_path):
    def block(done: int, total: int, what: str) -> None:
        (tmp_path / "out" / "tensors.csv").mkdir(exist_ok=True)

    result = verify(model, mixtral, reports=tmp_path / "out", progress=block)
    assert result.verdict is WeightsVerdict.FAIL
    assert wrong(result) == {}
    assert result.count(RowStatus.EXACT) == len(result.of_kind(RowKind.LIVE))


def test_more_rows_than_are_shown_are_told_with_where_they_are(tmp_path):
    model = torch.nn.ParameterDict({f"w{number}": torch.ones(2) for number in range(60)})
    save_file({key: torch.zeros(2) for key in model}, tmp_path / "model.safetensors")
    result = verify(model, tmp_path, reports=tmp_path / "out")
    lines = (tmp_path / "out" / "worst.txt").read_text().splitlines()
    assert lines[-1] == "50 of 60 rows that are not right are shown; all rows are in tensors.csv"
    assert "live tensors: 60 MISMATCH" in lines
    assert "stored tensors: 60 of 120 elements in 1 file: 60 MISMATCH" in lines
    assert as_text(result, limit=60).count("\n    first at") == 60


@pytest.mark.parametrize("value", [0, -3, True, 1.5])
@pytest.mark.parametrize("name", ["threads", "max_memory"])
def test_limits_that_are_no_limits_are_refused(model, mixtral, name, value):
    with pytest.raises(ValueError, match=f"{name}: expected a whole number above 0"):
        verify(model, mixtral, **{name: value})
    with pytest.raises(ValueError, match=name):
        compare_checkpoints(mixtral, mixtral, **{name: value})


def test_the_home_folder_is_expanded_in_every_path(model, mixtral, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ck").symlink_to(mixtral)
    assert verify(model, "~/ck", reports="~/wr").verdict is WeightsVerdict.PASS
    assert (tmp_path / "wr" / "summary.json").is_file()
    assert compare_checkpoints("~/ck", "~/ck", reports="~/two").verdict is WeightsVerdict.PASS
    assert check_export(model, "~/ck") == ()
    assert not (tmp_path / "~").exists()


def test_what_is_not_finite_on_both_sides_is_no_exact_row(tmp_path):
    model = torch.nn.ParameterDict({"w": torch.tensor([1.0, float("nan")]), "v": torch.ones(2)})
    save_file({"w": model["w"].data.clone(), "v": torch.ones(2)}, tmp_path / "model.safetensors")
    result = verify(model, tmp_path)
    assert result.verdict is WeightsVerdict.FAIL
    assert {row.name: row.status for row in result.of_kind(RowKind.LIVE)} == {
        "w": RowStatus.NON_FINITE,
        "v": RowStatus.EXACT,
    }
    assert [fault.what for fault in faults(result)] == ["nonfinite"]
    assert json.loads(json.dumps(summary_of(result)["live_tensors"]))["NON_FINITE"] == 1


class Tower(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(5, 3)
        self.register_buffer("steps", torch.tensor(7))
        self.register_buffer("scratch", torch.zeros(9), persistent=False)


def test_models_without_transformers_are_compared_by_name(tmp_path):
    model = Tower()
    save_file({f"old.{key}": value for key, value in model.state_dict().items()}, tmp_path / "model.safetensors")
    renamed = verify(model, tmp_path, renames=((r"^old\.", ""),))
    assert renamed.verdict is WeightsVerdict.PASS
    assert {row.name for row in renamed.of_kind(RowKind.LIVE)} == {"inner.weight", "inner.bias", "steps"}
    result = verify(model, tmp_path)
    assert result.count(RowStatus.INCOMPLETE) == 3
    assert result.count(RowStatus.INCOMPLETE, RowKind.CHECKPOINT) == 3


def test_what_cannot_be_compared_is_an_error_of_its_rank(model, mixtral, tmp_path):
    result = verify(model.to("meta"), mixtral)
    assert result.errors[0][0] == 0
    assert "found a meta tensor" in result.errors[0][1]
    assert result.verdict is WeightsVerdict.FAIL
    missing = verify(Tower(), tmp_path / "nowhere")
    assert missing.verdict is WeightsVerdict.FAIL
    assert "nowhere" in missing.errors[0][1]
    save_file({}, tmp_path / "model.safetensors")
    empty = verify(Tower(), tmp_path)
    assert empty.verdict is WeightsVerdict.INCOMPLETE
    assert "no load plan can be made" in empty.incomplete
    nothing = verify(torch.nn.Module(), mixtral)
    assert nothing.verdict is WeightsVerdict.FAIL
    assert "without any" in nothing.errors[0][1]


def test_a_truncated_file_is_named(model, mixtral, tmp_path):
    (tmp_path / "config.json").write_bytes((mixtral / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((mixtral / "model.safetensors").read_bytes()[:-100])
    result = verify(model, tmp_path)
    assert result.verdict is not WeightsVerdict.PASS
    told = " ".join([*(text for _, text in result.errors), *(fault.message for fault in faults(result))])
    assert "model.safetensors" in told or "could not be compared" in told


class HostTable:
    """External state of the test: one embedding in two padded pieces would be two shards; here it is one."""

    def __init__(self, table: torch.Tensor, logical: tuple[int, ...], names=("table.weight",)) -> None:
        self.table, self.logical, self.names = table, logical, names

    def parameter_names(self):
        return self.names

    def shards(self):
        yield ExternalShard(
            name="table.weight",
            local=self.table,
            global_shape=self.logical,
            offsets=(0, 0),
            logical_shape=self.logical,
        )


class WithTable(Tower):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4, device="meta")


def test_external_state_and_its_padding(tmp_path):
    model = WithTable()
    values = torch.randn(10, 4)
    stored = {key: value for key, value in model.state_dict().items() if not value.is_meta}
    save_file({**stored, "table.weight": values}, tmp_path / "model.safetensors")
    padded = torch.zeros(12, 4)
    padded[:10] = values
    result = verify(model, tmp_path, external=HostTable(padded, (10, 4)))
    assert result.verdict is WeightsVerdict.PASS
    (row,) = result.of_kind(RowKind.PADDING)
    assert (row.name, row.checked) == ("table.weight", 8)
    padded[11, 1] = 1e-30
    result = verify(model, tmp_path, external=HostTable(padded, (10, 4)))
    assert [fault.what for fault in faults(result)] == ["padding"]
    padded[3, 3] += 1
    assert set(wrong(verify(model, tmp_path, external=HostTable(padded, (10, 4))))) == {"table.weight"}
    result = verify(model, tmp_path, external=HostTable(padded, (10, 4), names=("table.weight", "other")))
    assert "without one ['other']" in result.errors[0][1]
    assert "meta" in verify(model, tmp_path).errors[0][1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
@pytest.mark.parametrize(("value", "nonfinite"), [(1.0, 0), (-0.0, 0), (float("nan"), 1)])
def test_padding_is_compared_bit_by_bit_and_says_where(tmp_path, dtype, value, nonfinite):
    values = torch.ones(5, 2).to(dtype)
    save_file({"table.weight": values}, tmp_path / "model.safetensors")
    model = torch.nn.ModuleDict({"table": torch.nn.Embedding(5, 2, device="meta")})
    padded = torch.zeros(8, 3)
    padded[:5, :2] = 1.0
    padded[6, 1] = padded[2, 2] = value
    result = verify(model, tmp_path, external=HostTable(padded.to(dtype), (5, 2)))
    (row,) = result.of_kind(RowKind.PADDING)
    assert (row.status, row.checked, row.load_mismatches) == (RowStatus.MISMATCH, 14, 2)
    assert row.nonfinite == 2 * nonfinite
    assert row.max_abs == (None if nonfinite else abs(value))
    assert row.first.live_index == (2, 2), "the first in row-major order, whichever side it lies on"
    assert (row.first.reference, row.ranks) == ("0.0", (0,))
    (fault,) = faults(result)
    assert fault.message.startswith("2 padding elements are not zero; first at table.weight[2, 2]: ")


@pytest.mark.parametrize("width", [80, 160])
def test_the_table_of_the_worst_is_readable_at_every_width(width):
    name = "model.layers.7.mlp.experts.down_proj"
    first = Difference(
        live_key=name,
        live_index=(1, 2),
        checkpoint_key="model.layers.7.block_sparse_moe.experts.1.w2.weight",
        checkpoint_index=(2,),
        actual="1.5",
        actual_bits="0x3fc00000",
        reference="2.5",
        reference_bits="0x40200000",
        reference_in_storage_dtype="2.5",
        storage_dtype="float32",
        reference_dtype="float32",
        cast_only=False,
    )
    rows = [
        Row(
            kind=RowKind.LIVE,
            name=f"{name}.{at}",
            status=RowStatus.MISMATCH,
            load_mismatches=at,
            first=first,
            max_load_abs=error,
        )
        for at, error in enumerate([1.2345678901234e-07] * 10_000, 1)
    ]
    result = Result(rows=sorted_rows(rows), checkpoint="ckpt")
    text = as_text(result, width=width)
    lines = text.splitlines()
    assert lines[0].startswith("FAIL: 10,000 live tensors")
    assert max(map(len, lines)) <= width
    assert text.count("MISMATCH") - 1 == text.count("1.23457e-07") == 50  # once in the figures above the table
    assert f"{name}.10000" in text
    assert f"{name}.9950" not in text
    assert " ".join(text.split()).count("gives 2.5 (float32, 0x40200000), rank 0") == 50


def test_a_shard_that_is_not_there_is_named(model, tmp_path):
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    gone = shards[1].name
    shards[1].unlink()
    result = verify(model, tmp_path)
    assert result.verdict is WeightsVerdict.FAIL
    told = [fault.message for fault in faults(result) if fault.what == "uncompared"]
    assert any(message.endswith(f"no stored tensor gives it; {gone} could not be read") for message in told)


def test_replicas_of_tensors_without_a_source_are_their_own_fault():
    row = Row(kind=RowKind.LIVE, name="a", status=RowStatus.EXCLUDED)
    other = Row(kind=RowKind.LIVE, name="b", status=RowStatus.MISMATCH, load_mismatches=1, first=None)
    groups = tuple(ReplicaGroup(name=name, reference=2, ranks=(0, 1)) for name in "ab")
    result = Result(rows=(row, other), replicas=groups, checkpoint="x", world_size=3)
    assert result.verdict is WeightsVerdict.FAIL
    (fault,) = (fault for fault in faults(evolve(result, rows=(row,), replicas=groups[:1])))
    assert (fault.what, fault.subject, fault.ranks) == ("replicas", "a", (0, 1, 2))
    assert fault.message == "its bits on rank 0..1 are not those on rank 2"


def test_a_run_that_is_told_to_stop_does_so_and_says_so(model, mixtral, tmp_path):
    asked = iter([False, False])
    result = verify(model, mixtral, stop=lambda: next(asked, True), reports=tmp_path, threads=1)
    assert (result.verdict, result.incomplete) == (WeightsVerdict.INCOMPLETE, "the run was interrupted")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["verdict"], summary["incomplete"]) == ("INCOMPLETE", "the run was interrupted")
    assert compare_checkpoints(mixtral, mixtral, stop=lambda: True).verdict is WeightsVerdict.INCOMPLETE


def test_a_run_that_dies_leaves_no_verdict_of_an_earlier_one(model, mixtral, tmp_path, monkeypatch):
    assert verify(model, mixtral, reports=tmp_path).verdict is WeightsVerdict.PASS
    (tmp_path / "rank_00007.json").write_text("{}")

    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    monkeypatch.setattr("shardlint.weights.verification.Worker", die)
    with pytest.raises(Killed):
        verify(model, mixtral, reports=tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["verdict"] == "INCOMPLETE"
    assert "has not ended" in summary["incomplete"]
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json"}


def test_limits_that_make_no_sense_are_refused(model, mixtral):
    with pytest.raises(ValueError, match="rank_timeout: expected seconds above 0, got 0"):
        verify(model, mixtral, rank_timeout=0)
    with pytest.raises(ValueError, match="sample: expected a fraction"):
        compare_checkpoints(mixtral, mixtral, sample=2.0)


def test_facts_that_are_there_are_not_collected_again(model, mixtral, monkeypatch):
    from shardlint.checkpoint.folder import collect_checkpoint
    from shardlint.collect.model import model_facts
    from shardlint.introspect.walk import walk

    checkpoint, facts = collect_checkpoint(mixtral), model_facts(walk(model))
    monkeypatch.setattr("shardlint.weights.verification.collect_checkpoint", None)
    monkeypatch.setattr("shardlint.weights.verification.collect_model_facts", None)
    result = verify(model, mixtral, model_facts=facts, checkpoint_facts=checkpoint)
    assert result.verdict is WeightsVerdict.PASS
    broken = evolve(checkpoint, format="gguf")
    assert "gguf" in verify(model, mixtral, model_facts=facts, checkpoint_facts=broken).incomplete


class Padded(torch.nn.Module):
    """A vocabulary of five tokens in eight rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(8, 4)
        self.embed.weight.data[5:] = 0.0


@pytest.fixture
def padded(tmp_path):
    model = Padded()
    save_file({"embed.weight": model.embed.weight.data[:5].clone()}, tmp_path / "model.safetensors")
    return model


def test_a_padded_parameter_is_compared_up_to_its_logical_shape(padded, tmp_path):
    assert verify(padded, tmp_path).verdict is WeightsVerdict.FAIL, "nothing declares the padding"
    contract = ContractFacts(source="test", logical_shapes={"**.weight": (5, 4)})
    result = verify(padded, tmp_path, contract=contract)
    assert result.verdict is WeightsVerdict.PASS, result.worst()
    (row,) = result.of_kind(RowKind.PADDING)
    assert row.checked == 12
    padded.embed.weight.data[6, 2] = -0.0
    (row,) = verify(padded, tmp_path, contract=contract).of_kind(RowKind.PADDING)
    assert row.first.live_index == (6, 2)
    padded.embed.weight.data[6, 2] = 0.0
    bits_of(padded.embed.weight)[4, 3] ^= 1
    assert set(wrong(verify(padded, tmp_path, contract=contract))) == {"embed.weight"}
    larger = ContractFacts(source="test", logical_shapes={"**.weight": (9, 4)})
    assert "does not lie in the storage" in verify(padded, tmp_path, contract=larger).errors[0][1]


@pytest.mark.parametrize("name", ["_orig_size", "tensor_shape"])
def test_a_parameter_that_says_its_logical_shape_is_taken_at_its_word(padded, tmp_path, name):
    setattr(padded.embed.weight, name, torch.Size((5, 4)))
    assert verify(padded, tmp_path).verdict is WeightsVerdict.PASS
    report = shardlint.lint(padded, checkpoint=tmp_path, config=False, heavy=True)
    assert report.findings == ()


class Beside(torch.nn.Module):
    """A model whose table lives in host memory: the module does not even have its name."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(4, 3)


def test_a_tensor_that_the_module_does_not_name_is_compared(tmp_path):
    model, table = Beside(), torch.randn(10, 4)
    save_file({**model.state_dict(), "table.weight": table.clone()}, tmp_path / "model.safetensors")
    host = HostTable(table, (10, 4))
    assert verify(model, tmp_path, external=host).verdict is WeightsVerdict.PASS
    for report in (
        shardlint.lint(model, checkpoint=tmp_path, external=host, config=False, heavy=True),
        shardlint.lint(shardlint.Target(model=model, checkpoint=tmp_path, external=host), config=False, heavy=True),
    ):
        assert report.findings == ()
    bits_of(table)[3, 3] ^= 1
    assert set(wrong(verify(model, tmp_path, external=host))) == {"table.weight"}
    with pytest.raises(TypeError, match="external: expected an object with the methods"):
        shardlint.lint(model, external=table, config=False)


class Headed(torch.nn.Module):
    """No model of Transformers, with a base model under a prefix."""

    base_model_prefix = "body"

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(3, 2)


@pytest.mark.parametrize("stored", ["", "body."])
@pytest.mark.parametrize("headless", [False, True])
def test_the_prefix_of_the_base_model_is_resolved_whoever_wrote_the_module(tmp_path, stored, headless):
    model = Headed()
    save_file({f"{stored}{key}": value for key, value in model.body.state_dict().items()}, tmp_path / "m.safetensors")
    if headless:
        model.body.base_model_prefix = "body"
    looked_at = model.body if headless else model
    assert verify(looked_at, tmp_path / "m.safetensors").verdict is WeightsVerdict.PASS
