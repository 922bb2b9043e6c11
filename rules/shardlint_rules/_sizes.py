"""The sizes that a configuration says and tensors have: what D210 compares."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import field, frozen

from shardlint import Facts, NotEvaluated
from shardlint.analysis.model_config import EXPERT_COUNTS, is_whole_number, own_number, whole_numbers
from shardlint.analysis.wrapper_names import base_name
from shardlint.facts import ModelFacts, ModuleFacts, PartConfig, TensorFacts, known
from shardlint.names import below, counted, joined

_EMBEDDINGS = re.compile(r"(?:^|\.)(?:embed_tokens|word_embeddings|wte|shared)\.weight$")
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
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


@frozen
class Size:
    """One size: the tensor (or list of blocks) that has it, its name, and what is wrong with it (empty: nothing)."""

    fqn: str
    name: str
    difference: Callable[[], str]
    evidence: Mapping[str, Any] = field(factory=dict)


@frozen(kw_only=True)
class ConfigPart:
    """
    What one configuration describes.

    `parameters` have the names that they have within the module that carries the configuration, without those that
    adapters add; `classes` are the FQNs of the modules below it with their classes.
    """

    config: Mapping[str, Any]
    fqn: str
    qualified_type: str
    parameters: tuple[tuple[str, TensorFacts], ...]
    classes: Mapping[str, ModuleFacts]
    no_split: tuple[str, ...]

    @classmethod
    def of(cls, model: ModelFacts, configuration: PartConfig, config: Mapping[str, Any]) -> ConfigPart:
        """Gather what lies below the module that carries the configuration."""
        fqn = configuration.fqn
        start = f"{fqn}." if fqn else ""
        named = (
            (base_name(alias.removeprefix(start)), tensor)
            for tensor in model.parameters
            for alias in tensor.aliases
            if below(alias, fqn)
        )
        inside = {
            alias.removeprefix(start) if alias != fqn else "": module
            for module in model.modules
            for alias in module.aliases
            if below(alias, fqn)
        }
        root = inside.get("")
        declared = (item.no_split_modules for item in model.declarations if item.fqn == fqn)
        return cls(
            config=config,
            fqn=fqn,
            qualified_type=model.qualified_type if root is None else root.qualified_type,
            parameters=tuple((name, tensor) for name, tensor in named if name is not None),
            classes=inside,
            no_split=next(declared, ()),
        )


def sizes_of(part: ConfigPart, facts: Facts) -> Iterator[Size]:
    """Every size that both the configuration and the tensors of the part say."""
    yield from _embeddings(part, facts)
    yield from _layers(part, facts)
    yield from _heads(part)
    yield from _experts(part)


def _differs(name: str, wanted: int, tensor: TensorFacts, agrees: bool, found: str) -> Size:
    return Size(
        tensor.fqn,
        name,
        lambda: "" if agrees else f"the configuration says {name} = {wanted}, found {found}",
        {"config": name, "value": wanted, "shape": tensor.shape},
    )


def _embeddings(part: ConfigPart, facts: Facts) -> Iterator[Size]:
    tables = [tensor for name, tensor in part.parameters if _EMBEDDINGS.search(name)]
    tables = [table for table in tables if len(table.shape) == 2 and not _is_packed(table)]
    if len({table.shape for table in tables}) != 1:
        return
    tensor, config = tables[0], part.config
    rows, width = tensor.shape
    vocabulary, hidden = own_number(config, "vocab_size"), own_number(config, "hidden_size", "d_model", "n_embd")
    if vocabulary is not None:
        yield _differs("vocab_size", vocabulary, tensor, rows >= vocabulary, f"{rows} rows")
    if hidden is not None:
        fits = width == hidden or width in whole_numbers(config, "embed")
        yield _differs("hidden_size", hidden, tensor, fits, f"{width} columns")
    if facts.checkpoint is not None and facts.checkpoint.tokenizer_size is not None:
        tokens = facts.checkpoint.tokenizer_size
        yield Size(tensor.fqn, "tokenizer", lambda: _too_many(known(tokens), rows), {"tokenizer": tokens, "rows": rows})
    yield from _token_ids(part, facts, tensor)


def _too_many(tokens: int, rows: int) -> str:
    if tokens <= rows:
        return ""
    return f"the tokenizer gives tokens up to {tokens - 1}, and the embedding has {rows} rows"


def _token_ids(part: ConfigPart, facts: Facts, embedding: TensorFacts) -> Iterator[Size]:
    vocabulary = own_number(part.config, "vocab_size")
    if facts.checkpoint is None or whole_numbers(part.config, "vocab") - {vocabulary}:
        return  # with several vocabularies it is not known which one an id is of
    generation = known(facts.checkpoint.generation_config)
    if generation is None:
        return
    rows = embedding.shape[0]
    for name in _TOKEN_IDS:
        ids = _ids(generation.get(name))
        beyond = [token for token in ids if token >= rows]
        if ids:
            shown = ", ".join(map(str, beyond[:5]))
            text = f"generation_config.json says {name} = {shown}, and the embedding has {rows} rows" if beyond else ""
            evidence = {"config": name, "ids": beyond[:50], "rows": rows}
            yield Size(embedding.fqn, f"generation:{name}", functools.partial(str, text), evidence)


def _layers(part: ConfigPart, facts: Facts) -> Iterator[Size]:
    config = part.config
    wanted = own_number(config, *_LAYERS)
    blocks = _blocks(part)
    if wanted is None or len(blocks) != 1:
        return
    ((prefix, indices),) = blocks.items()
    extra = own_number(config, "num_nextn_predict_layers", "mtp_num_layers") or 0
    counts = {len(value) if isinstance(value, tuple) else value for key in _LAYER_LISTS if (value := config.get(key))}
    if counts and counts != {wanted}:
        return  # the number of layers counts something else than blocks

    def difference() -> str:
        if wanted <= len(indices) <= wanted + extra:
            return ""
        if facts.environment.world_size > 1:
            raise NotEvaluated(f"{len(indices)} of {counted(wanted, 'layer')} are here, as on a stage of a pipeline")
        return f"the configuration says {counted(wanted, 'layer')}, found {len(indices)}"

    yield Size(joined(part.fqn, prefix), "layers", difference, {"config": wanted, "found": len(indices)})


def _heads(part: ConfigPart) -> Iterator[Size]:
    config = part.config
    heads, hidden = own_number(config, *_HEADS), own_number(config, "hidden_size", "d_model", "n_embd")
    size = own_number(config, "head_dim") or (hidden // heads if heads and hidden else None)
    key_values = own_number(config, "num_key_value_heads") or heads
    several = whole_numbers(config, "head_dim") - {size} or whole_numbers(config, "key_value_heads") - {key_values}
    if heads is None or size is None or key_values is None or several:
        return
    queries, keys = _projection(part, "q_proj"), _projection(part, "k_proj")
    if queries is None:
        return
    rows = queries.shape[0]
    fits = rows in (heads * size, 2 * heads * size)  # twice with a gate
    yield _differs("num_attention_heads", heads, queries, fits, _not_heads(queries, heads, size))
    if rows == heads * size and keys is not None:
        fits = keys.shape[0] == key_values * size
        yield _differs("num_key_value_heads", key_values, keys, fits, _not_heads(keys, key_values, size))


def _experts(part: ConfigPart) -> Iterator[Size]:
    wanted = own_number(part.config, *EXPERT_COUNTS)
    stacks = [tensor for name, tensor in part.parameters if ".experts." in f".{name}" and len(tensor.shape) == 3]
    counts = {stack.shape[0] for stack in stacks}
    if wanted is not None and len(counts) == 1:
        found = counted(stacks[0].shape[0], "expert")
        yield _differs("num_experts", wanted, stacks[0], counts == {wanted}, found)


def _projection(part: ConfigPart, last: str) -> TensorFacts | None:
    """The first projection of that name, None when there is none or layers differ in kind or shape."""
    ending = f".self_attn.{last}.weight"
    projections = [tensor for name, tensor in part.parameters if f".{name}".endswith(ending)]
    attentions = sum(f".{fqn}".endswith(".self_attn") for fqn in part.classes)
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


def _blocks(part: ConfigPart) -> dict[str, list[int]]:
    """
    The indices of the repeated blocks below each prefix: modules of the classes that the model calls indivisible.

    Only of models of one stack that generate text: elsewhere the number of layers counts something else now and then.
    """
    if not part.qualified_type.endswith(("ForCausalLM", "LMHeadModel")):
        return {}
    indices: dict[str, list[int]] = {}
    for fqn, module in part.classes.items():
        match = _BLOCK.fullmatch(fqn)
        if match and module.qualified_type.rpartition(".")[2] in part.no_split:
            indices.setdefault(match["prefix"], []).append(int(match["index"]))
    return indices
