"""D210 config-shape-mismatch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shardlint import Facts, Finding, Phase, Rule, Section, Severity, SubjectKind
from shardlint.analysis.model_config import is_whole_number, own_number, text_part, whole_numbers
from shardlint.facts import EMPTY, ModelFacts, TensorFacts
from shardlint.names import counted, owner_of

_EMBEDDINGS = re.compile(r"(?:^|\.)(?:embed_tokens|word_embeddings|wte|shared)\.weight$")
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_LAYER_LISTS = ("layer_types", "layers_block_type", "block_types", "num_blocks")
_BLOCK = re.compile(r"(?P<prefix>.*?)\.(?P<index>\d+)$")
_TOKEN_IDS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
)


class ConfigShapeMismatch(Rule):
    """
    The configuration says one size, and the tensors have another.

    ## What it does
    Compares the configuration with the built tensors where both say the same thing: vocabulary and hidden size with the
    input embedding, the number of layers with the repeated blocks, attention heads with the projections, the number of
    experts with fused experts. An embedding with more rows than the vocabulary is padded, and right. A tokenizer beside
    the checkpoint that gives larger tokens than the embedding has rows is reported too, and so, as information, is a
    `generation_config.json` beside it whose token ids (`eos_token_id`, `pad_token_id` and others like them) lie beyond
    the embedding. Models whose layers differ in kind, configurations that give several numbers for one size, and models
    of several parts are compared only where it is known which number belongs to which tensor.

    ## Why it is unsafe
    Whatever is rebuilt from the configuration (a resumed run, a server, a converted checkpoint) gets other shapes than
    this model. A token beyond the embedding reads foreign memory or stops a GPU with an assertion far from its cause.

    ## What to do
    Change sizes through the library's functions (`resize_token_embeddings`), which change the configuration too, or set
    the configuration to what was built. Build truncated models with a truncated configuration. Take the token ids of
    `generation_config.json` from the tokenizer that the model was trained with.
    """

    code = "D210"
    name = "config-shape-mismatch"
    phase = Phase.D2
    severity = Severity.ERROR
    needs = (Section.MODEL,)
    related_config = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")

    def check(self, facts: Facts) -> Iterator[Finding]:
        model = facts.require(Section.MODEL)
        config = text_part(model.config or EMPTY)
        if config is None:
            return
        yield from self.embeddings(facts, model, config)
        if facts.environment.world_size == 1:  # a stage of a pipeline holds some of the blocks
            yield from self.layers(model, config)
        yield from self.heads(model, config)
        yield from self.experts(model, config)

    def embeddings(self, facts: Facts, model: ModelFacts, config: Mapping[str, Any]) -> Iterator[Finding]:
        tables = [
            parameter for parameter in model.parameters if any(_EMBEDDINGS.search(name) for name in parameter.aliases)
        ]
        tables = [table for table in tables if len(table.shape) == 2 and not _is_packed(table)]
        if len({table.shape for table in tables}) != 1:
            return
        tensor = tables[0]
        rows, width = tensor.shape
        vocabulary, hidden = (
            own_number(config, "vocab_size"),
            own_number(config, "hidden_size", "d_model", "n_embd"),
        )
        if vocabulary is not None and rows < vocabulary:
            yield self.differs("vocab_size", vocabulary, tensor, f"{rows} rows")
        if hidden is not None and width != hidden and width not in whole_numbers(config, "embed"):
            yield self.differs("hidden_size", hidden, tensor, f"{width} columns")
        tokens = facts.checkpoint.tokenizer_size if facts.checkpoint is not None else None
        if tokens is not None and tokens > rows:
            yield self.finding(
                subject=tensor.fqn,
                message=f"the tokenizer gives tokens up to {tokens - 1}, and the embedding has {rows} rows",
                evidence={"tokenizer": tokens, "rows": rows},
                key="tokenizer",
            )
        yield from self.token_ids(facts, config, tensor)

    def token_ids(self, facts: Facts, config: Mapping[str, Any], embedding: TensorFacts) -> Iterator[Finding]:
        generation = facts.checkpoint.generation_config if facts.checkpoint is not None else None
        vocabulary = own_number(config, "vocab_size")
        if generation is None or whole_numbers(config, "vocab") - {vocabulary}:
            return  # with several vocabularies it is not known which one an id is of
        rows = embedding.shape[0]
        for name in _TOKEN_IDS:
            beyond = [token for token in _ids(generation.get(name)) if token >= rows]
            if beyond:
                shown = ", ".join(map(str, beyond[:5]))
                yield self.finding(
                    subject=embedding.fqn,
                    message=f"generation_config.json says {name} = {shown}, and the embedding has {rows} rows",
                    evidence={"config": name, "ids": beyond[:50], "rows": rows},
                    severity=Severity.INFO,  # shrunk models keep the ids of their large kin
                    key=f"generation:{name}",
                )

    def layers(self, model: ModelFacts, config: Mapping[str, Any]) -> Iterator[Finding]:
        wanted = own_number(config, *_LAYERS)
        blocks = _blocks(model)
        if wanted is None or len(blocks) != 1:
            return
        ((prefix, indices),) = blocks.items()
        extra = own_number(config, "num_nextn_predict_layers", "mtp_num_layers") or 0
        counts = {
            len(value) if isinstance(value, tuple) else value for key in _LAYER_LISTS if (value := config.get(key))
        }
        if counts and counts != {wanted}:
            return  # the number of layers counts something else than blocks
        if not wanted <= len(indices) <= wanted + extra:
            yield self.finding(
                subject=prefix,
                kind=SubjectKind.MODULE,
                message=f"the configuration says {counted(wanted, 'layer')}, found {len(indices)}",
                evidence={"config": wanted, "found": len(indices)},
                key="layers",
            )

    def heads(self, model: ModelFacts, config: Mapping[str, Any]) -> Iterator[Finding]:
        heads, hidden = own_number(config, *_HEADS), own_number(config, "hidden_size", "d_model", "n_embd")
        size = own_number(config, "head_dim") or (hidden // heads if heads and hidden else None)
        key_values = own_number(config, "num_key_value_heads") or heads
        several = whole_numbers(config, "head_dim") - {size} or whole_numbers(config, "key_value_heads") - {key_values}
        if heads is None or size is None or key_values is None or several:
            return
        queries, keys = _projection(model, "q_proj"), _projection(model, "k_proj")
        if queries is not None and queries.shape[0] not in (heads * size, 2 * heads * size):  # twice with a gate
            yield self.differs("num_attention_heads", heads, queries, _not_heads(queries, heads, size))
        ordinary = queries is not None and queries.shape[0] == heads * size
        if ordinary and keys is not None and keys.shape[0] != key_values * size:
            yield self.differs("num_key_value_heads", key_values, keys, _not_heads(keys, key_values, size))

    def experts(self, model: ModelFacts, config: Mapping[str, Any]) -> Iterator[Finding]:
        wanted = own_number(config, *_EXPERTS)
        stacks = [
            parameter for parameter in model.parameters if ".experts." in parameter.fqn and len(parameter.shape) == 3
        ]
        counts = {stack.shape[0] for stack in stacks}
        if wanted is not None and len(counts) == 1 and counts != {wanted}:
            yield self.differs("num_experts", wanted, stacks[0], counted(stacks[0].shape[0], "expert"))

    def differs(self, name: str, wanted: int, tensor: TensorFacts, found: str) -> Finding:
        return self.finding(
            subject=tensor.fqn,
            message=f"the configuration says {name} = {wanted}, found {found}",
            evidence={"config": name, "value": wanted, "shape": tensor.shape},
            owner=owner_of(tensor.fqn),
            key=name,
        )


def _projection(model: ModelFacts, last: str) -> TensorFacts | None:
    """The first projection of that name, None when there is none or layers differ in kind or shape."""
    projections = [parameter for parameter in model.parameters if parameter.fqn.endswith(f".self_attn.{last}.weight")]
    attentions = sum(module.fqn.endswith(".self_attn") for module in model.modules)
    alike = len({projection.shape for projection in projections}) == 1 and len(projections) == attentions
    return projections[0] if alike and not _is_packed(projections[0]) else None


def _is_packed(tensor: TensorFacts) -> bool:
    """Whether the shape is that of the codes of a quantised weight."""
    return "float" not in tensor.dtype or tensor.shape[-1] == 1


def _not_heads(tensor: TensorFacts, count: int, size: int) -> str:
    return f"{tensor.shape[0]} rows, not {counted(count, 'head')} of {size}"


def _ids(value: object) -> list[int]:
    """The token ids that `value` (one or several of them) gives."""
    items = value if isinstance(value, tuple) else (value,)
    return [number for number in items if is_whole_number(number)]


def _blocks(model: ModelFacts) -> dict[str, list[int]]:
    """
    The indices of the repeated blocks below each prefix: modules of the classes that the model calls indivisible.

    Only of models of one stack that generate text: elsewhere the number of layers counts something else now and then.
    """
    if not model.qualified_type.endswith(("ForCausalLM", "LMHeadModel")):
        return {}
    root = next((declaration for declaration in model.declarations if not declaration.fqn), None)
    classes = root.no_split_modules if root is not None else ()
    indices: dict[str, list[int]] = {}
    for module in model.modules:
        match = _BLOCK.fullmatch(module.fqn)
        if match and module.qualified_type.rpartition(".")[2] in classes:
            indices.setdefault(match["prefix"], []).append(int(match["index"]))
    return indices
