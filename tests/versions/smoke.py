"""
What each release of Transformers is tried with: tiny models, their folders, and one planted fault each.

It runs in the environment of the release, imports nothing of the test-suite, and prints one JSON object: for each
model and each way of storing it, what the folder alone, the loaded model and each fault gave.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import shardlint

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
SHARD = "40KB"


def llama(transformers):
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=False)
    return transformers.LlamaForCausalLM(config)


def tied(transformers):
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config)


def mixtral(transformers):
    config = transformers.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=4)
    return transformers.MixtralForCausalLM(config)


def bert(transformers):
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))


def t5(transformers):
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))


def llava(transformers):
    vision = transformers.CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, image_size=28, patch_size=14
    )
    text = transformers.LlamaConfig(**SIZES, num_key_value_heads=2)
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=63)
    return transformers.LlavaForConditionalGeneration(config)


MODELS = {"llama": llama, "tied": tied, "mixtral": mixtral, "bert": bert, "t5": t5, "llava": llava}


# -- folders ----------------------------------------------------------------------------------------------------------


def tensors_of(folder):
    """All stored tensors, each with the name of its file."""
    return {
        key: (path.name, value)
        for path in sorted(folder.glob("*.safetensors"))
        for key, value in load_file(path).items()
    }


def write(folder, tensors):
    """Write the files again, and the index when there is one."""
    files = {}
    for key, (name, value) in tensors.items():
        files.setdefault(name, {})[key] = value.contiguous()
    for name, content in files.items():
        save_file(content, folder / name, metadata={"format": "pt"})
    index = folder / "model.safetensors.index.json"
    if index.exists():
        index.write_text(json.dumps({"metadata": {}, "weight_map": {key: name for key, (name, _) in tensors.items()}}))


def matrix(tensors):
    """The key of a stored matrix that is not square, of the last block."""
    keys = [key for key, (_, value) in tensors.items() if value.ndim == 2 and value.shape[0] != value.shape[1]]
    return [key for key in keys if "embed" not in key and "shared" not in key and "head" not in key][-1]


def key_dropped(folder, tensors):
    del tensors[matrix(tensors)]
    write(folder, tensors)


def extra_key(folder, tensors):
    tensors["strange.thing.weight"] = (next(iter(tensors.values()))[0], torch.ones(3, 5))
    write(folder, tensors)


def transposed(folder, tensors):
    key = matrix(tensors)
    name, value = tensors[key]
    tensors[key] = (name, value.t().contiguous())
    write(folder, tensors)


def in_two_shards(folder, tensors):
    key = matrix(tensors)
    other = next(name for name, _ in tensors.values() if name != tensors[key][0])
    content = load_file(folder / other)
    save_file({**content, key: tensors[key][1] + 1}, folder / other, metadata={"format": "pt"})


def index_wrong(folder, tensors):
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    key = matrix(tensors)
    index["weight_map"][key] = next(name for name, _ in tensors.values() if name != tensors[key][0])
    path.write_text(json.dumps(index))


FOLDER_FAULTS = {
    "key dropped": (key_dropped, {"D501"}, "any"),
    "extra key": (extra_key, {"D501"}, "any"),
    "transposed": (transposed, {"D502", "D503", "D507", "D508", "D514", "D501"}, "any"),
    "two shards": (in_two_shards, {"D505", "D506", "D504"}, "sharded"),
    "index wrong": (index_wrong, {"D506"}, "sharded"),
}


# -- runs -------------------------------------------------------------------------------------------------------------


def errors(report):
    """The codes of the findings that are errors, and what blocked the run."""
    found = {item.code for item in report.errors()}
    return sorted(found)


def outcome(report, *must):
    """The verdict, with what shows why it is not PASS, and the reasons of `must` that were not evaluated."""
    said = {"verdict": report.verdict.name, "errors": errors(report), "clean": 0, "missing": []}
    for item in report.outcomes:
        said["clean"] += item.status.name == "CLEAN"
        if item.code in must and item.status.name not in ("CLEAN", "FOUND"):
            said["missing"].append(f"{item.code}: {item.reason}")
    said["messages"] = [f"{item.code} {item.subject}: {item.message}"[:300] for item in report.errors()][:3]
    return said


def lint(*args, **more):
    return shardlint.lint(*args, config=False, **more)


def changed(model):
    with torch.no_grad():
        name, value = [pair for pair in model.named_parameters() if pair[1].ndim >= 2][-1]
        value.view(-1)[value.numel() // 2] += 1
    return name


def untie(model):
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())


def loaded(folder, kind):
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    return model.eval(), info


def tried(call, *args):
    try:
        return call(*args)
    except Exception:
        return {
            "verdict": "CRASH",
            "errors": [],
            "clean": 0,
            "missing": [],
            "messages": [traceback.format_exc()[-1500:]],
        }


def folder_alone(folder):
    return outcome(lint(checkpoint=folder), "D501")


def heavy(folder, kind):
    model, info = loaded(folder, kind)
    return outcome(lint(model, checkpoint=folder, load_info=info, heavy=True), "V002", "D501")


def heavy_changed(folder, kind):
    model, _ = loaded(folder, kind)
    changed(model)
    return outcome(lint(model, checkpoint=folder, heavy=True, select=["V002"]), "V002")


def tie_broken(folder, kind):
    model, _ = loaded(folder, kind)
    untie(model)
    return outcome(lint(model, checkpoint=folder))


def case(name, stored, transformers, work):
    torch.manual_seed(0)
    model = MODELS[name](transformers)
    kind, source = type(model), work / f"{name}-{stored}"
    model.save_pretrained(source, max_shard_size=SHARD if stored == "sharded" else "5GB")
    found = {
        "folder": tried(folder_alone, source),
        "heavy": tried(heavy, source, kind),
        "changed": tried(heavy_changed, source, kind),
    }
    for fault, (plant, _, where) in FOLDER_FAULTS.items():
        if where in ("any", stored):
            copy = work / "fault"
            shutil.copytree(source, copy)
            plant(copy, tensors_of(copy))
            found[fault] = tried(folder_alone, copy)
            shutil.rmtree(copy)
    if name == "tied":
        found["tie broken"] = tried(tie_broken, source, kind)
    return found


def main(names):
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    result = {"transformers": transformers.__version__, "torch": torch.__version__, "cases": {}}
    with tempfile.TemporaryDirectory() as work:
        for name in names or MODELS:
            for stored in ("single", "sharded"):
                result["cases"][f"{name}, {stored}"] = tried(case, name, stored, transformers, Path(work))
    return result


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ["HF_HUB_OFFLINE"] = "1"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        answer = main(sys.argv[1:])
    json.dump(answer, sys.stdout)
