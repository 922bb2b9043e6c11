"""Base snapshots: small, sound models with their checkpoints, which cases edit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import evolve

from ..facts import (
    BuildFacts,
    ContractFacts,
    ConversionFacts,
    DataFacts,
    DataSemanticsFacts,
    DataStageFacts,
    DerivedBuffer,
    Facts,
    FrozenDict,
    InvariantOutcome,
    LoadFacts,
    ModuleFacts,
    ProbeFacts,
    TensorFacts,
)
from .builders import checkpoint_for, declaration, index_for, model, module, optimizer_for, tensor, values_for
from .plans import with_plan
from .sharded import compared, expert_parallel, fsdp2, hyperparallel, tensor_parallel
from .traces import traced

_HIDDEN, _INNER, _VOCABULARY, _LAYERS, _EXPERTS = 4, 8, 10, 2, 2


def base_snapshot(name: str) -> Facts:
    """
    Return the base snapshot `name`, a sound model of which every rule is silent. Raises `KeyError` naming the bases.

    The bases are the keys of `BASES`; their docstrings say what they hold.
    """
    if name not in BASES:
        raise KeyError(f"no base snapshot {name!r}; there are {', '.join(sorted(BASES))}")
    return BASES[name]()


def _llama_config(**more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": _VOCABULARY,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": 2,
        "tie_word_embeddings": False,
        **more,
    }


def _attention(prefix: str) -> Iterator[TensorFacts]:
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        yield tensor(f"{prefix}.self_attn.{name}.weight", (_HIDDEN, _HIDDEN))


def _norms(prefix: str) -> Iterator[TensorFacts]:
    yield tensor(f"{prefix}.input_layernorm.weight", (_HIDDEN,))
    yield tensor(f"{prefix}.post_attention_layernorm.weight", (_HIDDEN,))


def _dense(prefix: str) -> Iterator[TensorFacts]:
    yield tensor(f"{prefix}.mlp.gate_proj.weight", (_INNER, _HIDDEN))
    yield tensor(f"{prefix}.mlp.up_proj.weight", (_INNER, _HIDDEN))
    yield tensor(f"{prefix}.mlp.down_proj.weight", (_HIDDEN, _INNER))


def _experts(prefix: str) -> Iterator[TensorFacts]:
    yield tensor(f"{prefix}.mlp.gate.weight", (_EXPERTS, _HIDDEN))
    yield tensor(f"{prefix}.mlp.experts.gate_up_proj", (_EXPERTS, 2 * _INNER, _HIDDEN))
    yield tensor(f"{prefix}.mlp.experts.down_proj", (_EXPERTS, _HIDDEN, _INNER))


def _decoder(inner: Callable[[str], Iterator[TensorFacts]], *, tied: bool) -> Iterator[TensorFacts]:
    head = ("lm_head.weight",) if tied else ()
    yield tensor("model.embed_tokens.weight", (_VOCABULARY, _HIDDEN), *head)
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}"
        yield from _attention(prefix)
        yield from inner(prefix)
        yield from _norms(prefix)
    yield tensor("model.norm.weight", (_HIDDEN,))
    yield tensor("model.rotary_emb.inv_freq", (1,), persistent=False)
    if not tied:
        yield tensor("lm_head.weight", (_VOCABULARY, _HIDDEN))


def _decoder_modules(package: str, family: str) -> Iterator[ModuleFacts]:
    yield module("", f"{package}.{family}ForCausalLM", forward_signature="(input_ids, labels=None)")
    yield module("model", f"{package}.{family}Model", forward_signature="(input_ids)")
    yield module("model.embed_tokens", "torch.nn.modules.sparse.Embedding", forward_signature="(input)")
    yield module("model.layers", "torch.nn.modules.container.ModuleList", forward_signature="(*args)")
    for layer in range(_LAYERS):
        yield module(f"model.layers.{layer}", f"{package}.{family}DecoderLayer")
        yield module(f"model.layers.{layer}.self_attn", f"{package}.{family}Attention")
        yield module(f"model.layers.{layer}.mlp", f"{package}.{family}MLP")
    yield module("model.norm", f"{package}.{family}RMSNorm")
    yield module("model.rotary_emb", f"{package}.{family}RotaryEmbedding")
    yield module("lm_head", "torch.nn.modules.linear.Linear", forward_signature="(input)")


def _causal_lm(
    package: str,
    family: str,
    inner: Callable[[str], Iterator[TensorFacts]],
    config: Mapping[str, Any],
    **fields: Any,
) -> Facts:
    tied = bool(config["tie_word_embeddings"])
    package = f"transformers.models.{package}"
    root = declaration(
        "",
        f"{package}.{family}ForCausalLM",
        tied_weights={"lm_head.weight": "model.embed_tokens.weight"},
        base_model_prefix="model",
        base_model_present=True,
        tie_word_embeddings=tied,
    )
    inside = declaration("model", f"{package}.{family}Model", base_model_prefix="model", tie_word_embeddings=tied)
    built = model(
        f"{package}.{family}ForCausalLM",
        _decoder(inner, tied=tied),
        _decoder_modules(package, family),
        model_type=str(config["model_type"]),
        architectures=(f"{family}ForCausalLM",),
        config=FrozenDict(config),
        declarations=(root, inside),
        **fields,
    )
    return Facts(target="base", model=built, checkpoint=checkpoint_for(built, files=2, config=config))


def llama() -> Facts:
    """Return a decoder of two layers, head not tied, with its checkpoint in two files; no load report."""
    return _causal_lm("llama", "Llama", _dense, _llama_config(), key_mapping="identity")


def llama_tied() -> Facts:
    """Return the same with the head tied to the embedding, stored once."""
    return _causal_lm("llama", "Llama", _dense, _llama_config(tie_word_embeddings=True), key_mapping="identity")


def llama_loaded() -> Facts:
    """Return `llama` with the report of a load that found everything."""
    facts = llama()
    return evolve(facts, load=LoadFacts(loader="transformers"))


def mixtral() -> Facts:
    """Return a decoder with fused experts, stored apart, with a load report that holds the conversions."""
    config = _llama_config(model_type="mixtral", architectures=["MixtralForCausalLM"], num_local_experts=_EXPERTS)
    facts = _causal_lm("mixtral", "Mixtral", _experts, config, key_mapping="conversions")
    conversions = (
        ConversionFacts(
            qualified_type="transformers.core_model_loading.WeightRenaming",
            sources=(".block_sparse_moe.",),
            targets=(".mlp.",),
        ),
        ConversionFacts(
            qualified_type="transformers.core_model_loading.WeightConverter",
            sources=(".experts.*.w1.weight", ".experts.*.w3.weight"),
            targets=(".experts.gate_up_proj",),
            operations=("MergeModulelist", "Concatenate"),
        ),
        ConversionFacts(
            qualified_type="transformers.core_model_loading.WeightConverter",
            sources=(".experts.*.w2.weight",),
            targets=(".experts.down_proj",),
            operations=("MergeModulelist",),
        ),
    )
    stored = model("stored", _stored_apart())
    return evolve(
        facts,
        checkpoint=checkpoint_for(stored, files=2, config=config),
        load=LoadFacts(loader="transformers", conversions=conversions),
    )


def _stored_apart() -> Iterator[TensorFacts]:
    """The tensors of `mixtral` as its checkpoint holds them: one tensor for each matrix of each expert."""
    for planned in _decoder(_experts, tied=False):
        if ".experts." not in planned.fqn:
            yield evolve(planned, fqn=planned.fqn.replace(".mlp.", ".block_sparse_moe."))
            continue
        names = ("w1", "w3") if "gate_up" in planned.fqn else ("w2",)
        shape = (_INNER, _HIDDEN) if "gate_up" in planned.fqn else (_HIDDEN, _INNER)
        layer = planned.fqn.split(".mlp.")[0]
        for expert in range(_EXPERTS):
            for name in names:
                yield tensor(f"{layer}.block_sparse_moe.experts.{expert}.{name}.weight", shape)


def bert() -> Facts:
    """Return an encoder without a head (the base model itself), with a checkpoint of one file."""
    package = "transformers.models.bert"
    tensors = [
        tensor("embeddings.word_embeddings.weight", (_VOCABULARY, _HIDDEN)),
        tensor("embeddings.position_ids", (1, 16), persistent=False, dtype="int64"),
        *(tensor(f"encoder.layer.{layer}.attention.self.query.weight", (_HIDDEN, _HIDDEN)) for layer in range(_LAYERS)),
        *(tensor(f"encoder.layer.{layer}.attention.self.query.bias", (_HIDDEN,)) for layer in range(_LAYERS)),
        *(tensor(f"encoder.layer.{layer}.output.dense.weight", (_HIDDEN, _INNER)) for layer in range(_LAYERS)),
        tensor("pooler.dense.weight", (_HIDDEN, _HIDDEN)),
        tensor("pooler.dense.bias", (_HIDDEN,)),
    ]
    modules = [
        module("", f"{package}.BertModel", forward_signature="(input_ids)"),
        module("embeddings", f"{package}.BertEmbeddings"),
        *(module(f"encoder.layer.{layer}", f"{package}.BertLayer") for layer in range(_LAYERS)),
        module("pooler", f"{package}.BertPooler"),
    ]
    config = {"model_type": "bert", "architectures": ["BertModel"], "num_hidden_layers": _LAYERS, "vocab_size": 10}
    built = model(
        f"{package}.BertModel",
        tensors,
        modules,
        model_type="bert",
        architectures=("BertModel",),
        config=FrozenDict(config),
        declarations=(declaration("", f"{package}.BertModel", base_model_prefix="bert"),),
        key_mapping="identity",
    )
    return Facts(target="base", model=built, checkpoint=checkpoint_for(built, config=config))


def plain() -> Facts:
    """Return a torch model of two linear layers without configuration, declarations or checkpoint."""
    built = model(
        "acme.Net",
        [tensor("0.weight", (8, 4)), tensor("0.bias", (8,)), tensor("1.weight", (2, 8)), tensor("1.bias", (2,))],
        [module("", "acme.Net"), module("0", "torch.nn.Linear"), module("1", "torch.nn.Linear")],
    )
    return Facts(target="base", model=built)


def contract() -> Facts:
    """Return `llama` with a contract of which every declaration holds, and a data pipeline that agrees with it."""
    declared = ContractFacts(
        source="acme.contracts:llama",
        name="llama",
        probes=(ProbeFacts(glob="model.layers.*.mlp.up_proj.weight"),),
        invariants=(InvariantOutcome(name="rope", phase="structure", status="passed"),),
        data=DataSemanticsFacts(
            forward_fields=("input_ids", "labels"), runtime_fields=("position_ids",), labels_shifted=True
        ),
    )
    data = DataFacts(
        stages=(
            DataStageFacts(name="tokenize", fields=("input_ids",)),
            DataStageFacts(name="label", fields=("labels",)),
        ),
        runtime_fields=("position_ids",),
        labels_shifted=True,
    )
    return evolve(llama(), contract=declared, data=data)


def built() -> Facts:
    """Return `plain` with the facts of a builder that shardlint called."""
    return evolve(plain(), build=BuildFacts(builder="acme.models:net"))


def llama_fsdp2() -> Facts:
    """Return `llama` sharded over two ranks that agree: every layer and the root a unit."""
    return compared(fsdp2(llama()))


def llama_tied_fsdp2() -> Facts:
    """Return `llama-tied` sharded over two ranks: both names of the tied tensor in the root unit."""
    return fsdp2(llama_tied())


def llama_tp() -> Facts:
    """Return `llama` on a mesh of two data-parallel by two tensor-parallel ranks."""
    return tensor_parallel(llama())


def mixtral_ep() -> Facts:
    """Return `mixtral` on four ranks, its experts units of their own on a mesh of their own."""
    return expert_parallel(mixtral())


def mixtral_hyperparallel() -> Facts:
    """Return `mixtral` owned by HyperParallel schedulers, which do not say over which ranks they reduce."""
    return hyperparallel(mixtral())


def llama_planned() -> Facts:
    """Return `llama` with the plan of its load."""
    return with_plan(llama())


def llama_tied_planned() -> Facts:
    """Return `llama-tied` with the plan of its load."""
    return with_plan(llama_tied())


def mixtral_planned() -> Facts:
    """Return `mixtral` with the plan of its load, which merges the experts, and no load report."""
    facts = evolve(mixtral(), load=None)
    assert facts.model is not None
    sources: dict[str, tuple[str, ...]] = {}
    for live_tensor in facts.model.tensors:
        name = live_tensor.fqn.replace(".mlp.", ".block_sparse_moe.")
        head, fused, _ = name.partition(".experts.")
        parts = ("w1", "w3") if "gate_up" in live_tensor.fqn else ("w2",)
        keys = tuple(f"{head}.experts.{expert}.{part}.weight" for part in parts for expert in range(_EXPERTS))
        sources[live_tensor.fqn] = keys if fused else (name,)
    return with_plan(facts, sources)


def fp8() -> Facts:
    """Return a checkpoint alone whose projections are stored in fp8 with block scales, as its configuration says."""
    facts = llama()
    assert facts.checkpoint is not None
    entries = []
    for entry in facts.checkpoint.entries:
        quantised = "_proj." in entry.key
        entries.append(evolve(entry, dtype="F8_E4M3") if quantised else entry)
        if quantised:
            entries.append(evolve(entry, key=f"{entry.key}_scale_inv", dtype="F32", shape=(1, 1)))
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = FrozenDict(_llama_config(quantization_config=settings))
    checkpoint = evolve(facts.checkpoint, entries=tuple(entries), index=index_for(entries), config=config)
    return Facts(target="base", checkpoint=checkpoint)


def adapter() -> Facts:
    """Return `llama` with the checkpoint of an adapter for two of its projections."""
    facts = llama()
    names = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(_LAYERS)]
    parts = [
        tensor(f"base_model.model.{name}.lora_{part}.weight", (2, _HIDDEN) if part == "A" else (_HIDDEN, 2))
        for name in names
        for part in ("A", "B")
    ]
    stored = checkpoint_for(model("adapter", parts))
    file = evolve(stored.files[0], name="adapter_model.safetensors", kind="adapter")
    entries = tuple(evolve(entry, file=file.name) for entry in stored.entries)
    assert facts.model is not None
    modules = (*facts.model.modules, *(module(name, "torch.nn.modules.linear.Linear") for name in names))
    changed = evolve(stored, format="adapter", files=(file,), entries=entries)
    return evolve(facts, model=evolve(facts.model, modules=modules), checkpoint=changed)


def optimized() -> Facts:
    """
    Return `llama-tied` with an AdamW that took a step, one group of matrices and one of vectors, without a checkpoint.

    The tensors 0 (embedding and head) and 1 to 4 (attention of layer 0) are matrices.
    """
    facts = llama_tied()
    assert facts.model is not None
    return evolve(facts, optimizer=optimizer_for(facts.model), checkpoint=None)


def looked_at() -> Facts:
    """Return `llama-loaded` with statistics of its values and a rotary buffer that was computed again."""
    facts = llama_loaded()
    assert facts.model is not None
    rotary = DerivedBuffer(
        fqn="model.rotary_emb.inv_freq", recipe="LlamaModel._init_weights", status="equal", error=0.0
    )
    return evolve(facts, values=evolve(values_for(facts.model), derived=(rotary,)))


def optimized_bf16() -> Facts:
    """Return `optimized` in bfloat16, with a learning rate of 1e-5, and values of a small magnitude."""
    facts = optimized()
    assert facts.model is not None
    narrow = evolve(facts.model, tensors=tuple(evolve(fact, dtype="bfloat16") for fact in facts.model.tensors))
    optimizer = optimizer_for(narrow)
    groups = tuple(evolve(group, options=FrozenDict({**group.options, "lr": 1e-5})) for group in optimizer.groups)
    values = values_for(narrow)
    tensors = tuple(evolve(seen, magnitude=1e-4) for seen in values.tensors)
    return evolve(
        facts, model=narrow, optimizer=evolve(optimizer, groups=groups), values=evolve(values, tensors=tensors)
    )


BASES: dict[str, Callable[[], Facts]] = {
    "llama": llama,
    "llama-tied": llama_tied,
    "llama-loaded": llama_loaded,
    "mixtral": mixtral,
    "bert": bert,
    "plain": plain,
    "contract": contract,
    "built": built,
    "llama-fsdp2": llama_fsdp2,
    "llama-tied-fsdp2": llama_tied_fsdp2,
    "llama-tp": llama_tp,
    "mixtral-ep": mixtral_ep,
    "mixtral-hyperparallel": mixtral_hyperparallel,
    "llama-planned": llama_planned,
    "llama-tied-planned": llama_tied_planned,
    "mixtral-planned": mixtral_planned,
    "fp8": fp8,
    "adapter": adapter,
    "optimized": optimized,
    "optimized-bf16": optimized_bf16,
    "looked-at": looked_at,
    "traced": traced,
}
