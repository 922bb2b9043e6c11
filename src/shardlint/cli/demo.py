"""
The built-in example: a tiny Llama and its sharded checkpoint, linted as they should be and again with three faults.

Everything is made here, offline, in a temporary folder that is gone afterwards. torch and transformers are imported
inside the functions.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

from ..report import Report

FAULTS = {
    "D501": "a tensor is missing from the checkpoint",
    "D406": "the tie between the embedding and the head is broken",
    "D506": "an entry of the index names the wrong shard file",
}
_DROPPED = "model.layers.1.mlp.up_proj.weight"
_MISPLACED = "model.layers.0.self_attn.q_proj.weight"


class DemoError(Exception):
    """The demo cannot run here; the text says what to install."""


@frozen(kw_only=True)
class Step:
    """One lint of the demo. `expected` are the codes that it must find; `ok` says whether it found just these."""

    title: str
    report: Report
    expected: frozenset[str]

    @property
    def found(self) -> frozenset[str]:
        """The codes of all findings."""
        return frozenset(finding.code for finding in self.report.findings)

    @property
    def ok(self) -> bool:
        """Whether the right things were found, nothing else, and the run can be trusted."""
        return self.found == self.expected and not self.report.blocked_by


def run_demo() -> Iterator[Step]:
    """Build, save, lint; plant the faults, lint again. Raises `DemoError` without transformers."""
    from ..api import lint

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="shardlint-demo-"))
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(_torch_cache_in(folder))
        transformers = _transformers()
        stack.enter_context(_quiet(transformers))
        checkpoint = Path("tiny-llama")
        _tiny_llama(transformers).save_pretrained(checkpoint, max_shard_size="60KB")
        model, info = _load(transformers, checkpoint)
        report = lint(model, checkpoint=checkpoint, load_info=info, config=False, name="tiny Llama")
        yield Step(title="A tiny Llama and its checkpoint, as they should be", report=report, expected=frozenset())
        drop_key(checkpoint, _DROPPED)
        misplace_key(checkpoint, _MISPLACED)
        model, info = _load(transformers, checkpoint)
        break_tie(model)
        report = lint(model, checkpoint=checkpoint, load_info=info, config=False, name="tiny Llama with faults")
        title = "The same with three faults: " + "; ".join(FAULTS.values())
        yield Step(title=title, report=report, expected=frozenset(FAULTS))


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise DemoError(
            f"the demo builds a Transformers model, and importing transformers failed: {error}. "
            "Install it with: pip install 'shardlint[hf]'"
        ) from error
    return transformers


@contextlib.contextmanager
def _torch_cache_in(folder: str) -> Iterator[None]:
    """Importing torch's compiler makes a cache folder; for the demo it lies in `folder`, unless the user has one."""
    name = "TORCHINDUCTOR_CACHE_DIR"
    if name in os.environ:
        yield
        return
    os.environ[name] = folder
    try:
        yield
    finally:
        del os.environ[name]


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without progress bars and load warnings: what they would say is what the reports say better."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _tiny_llama(transformers: Any) -> Any:
    import torch

    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config)


def _load(transformers: Any, checkpoint: Path) -> tuple[Any, Any]:
    """The model and the loading info, from nothing but the folder."""
    kind = transformers.LlamaForCausalLM
    model, info = kind.from_pretrained(checkpoint, output_loading_info=True, local_files_only=True)
    return model, info


def break_tie(model: Any) -> None:
    """Give the head a copy of the embedding: equal today, and trained apart from tomorrow on."""
    import torch

    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())


def drop_key(checkpoint: Path, key: str) -> None:
    """Take one tensor out of its shard file and out of the index, as a faulty conversion script does."""
    from safetensors.torch import load_file, save_file

    index_file, index = _index(checkpoint)
    shard = checkpoint / index["weight_map"].pop(key)
    tensors = load_file(shard)
    dropped = tensors.pop(key)
    index["metadata"]["total_size"] -= dropped.numel() * dropped.element_size()
    save_file(tensors, shard, metadata={"format": "pt"})
    index_file.write_text(json.dumps(index))


def misplace_key(checkpoint: Path, key: str) -> None:
    """Let the index say that `key` is in another shard file than it is in."""
    index_file, index = _index(checkpoint)
    files = sorted(set(index["weight_map"].values()))
    place = files.index(index["weight_map"][key])
    index["weight_map"][key] = files[(place + 1) % len(files)]
    index_file.write_text(json.dumps(index))


def _index(checkpoint: Path) -> tuple[Path, Any]:
    file = checkpoint / "model.safetensors.index.json"
    return file, json.loads(file.read_text())
