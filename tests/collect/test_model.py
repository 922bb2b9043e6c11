"""Model facts of real models and of strange ones."""

import dataclasses
import enum

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from shardlint.collect.model import config_of, model_facts
from shardlint.facts import EMPTY
from shardlint.facts.codec import decode_facts, encode_facts
from shardlint.facts.snapshot import Facts
from shardlint.introspect.walk import walk

TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}


def llama(**changes):
    return LlamaForCausalLM(LlamaConfig(**{**TINY, "num_key_value_heads": 2, **changes}))


def mixtral():
    return MixtralForCausalLM(MixtralConfig(**TINY, num_key_value_heads=2, num_local_experts=4))


def bert():
    return BertForSequenceClassification(BertConfig(**TINY))


def facts_of(model, **options):
    facts = model_facts(walk(model), **options)
    assert decode_facts(encode_facts(Facts(model=facts))).model == facts
    return facts


@pytest.mark.parametrize("build", [llama, lambda: llama(tie_word_embeddings=True), mixtral, bert])
def test_transformers_models_agree_with_torch(build):
    model = build()
    facts = facts_of(model)
    state = model.state_dict(keep_vars=True)
    assert set(facts.state_dict_keys()) == set(state)
    named = facts.tensor_by_name()
    for name, tensor in state.items():
        assert named[name].shape == tuple(tensor.shape)
        assert f"torch.{named[name].dtype}" == str(tensor.dtype)
        assert named[name].requires_grad == tensor.requires_grad
    assert facts.counts.modules == len(list(model.modules()))
    assert facts.counts.parameters == len(list(model.parameters()))
    assert facts.counts.buffers == len(list(model.buffers()))
    assert facts.counts.parameter_elements == sum(item.numel() for item in model.parameters())
    assert facts.model_type == model.config.model_type


def test_a_tie_is_one_tensor_with_both_names():
    facts = facts_of(llama(tie_word_embeddings=True))
    head = facts.tensor_by_name()["lm_head.weight"]
    assert head.aliases == ("lm_head.weight", "model.embed_tokens.weight")
    assert head.fqn == "lm_head.weight"
    (root, base) = facts.declarations
    assert root.tied_weights == {"lm_head.weight": "model.embed_tokens.weight"}
    assert root.active_ties == root.tied_weights
    assert (root.base_model_prefix, root.base_model_present, root.tie_word_embeddings) == ("model", True, True)
    assert (base.fqn, base.base_model_present, base.active_ties) == ("model", False, EMPTY)


def test_ties_that_the_configuration_turns_off_are_declared_but_not_active():
    (root, _) = facts_of(llama()).declarations
    assert root.tied_weights
    assert root.active_ties == EMPTY
    assert root.tie_word_embeddings is False


@pytest.mark.parametrize(
    ("value", "form"), [(["lm_head.weight"], "list"), (("lm_head.weight",), "tuple"), (None, "NoneType")]
)
def test_old_forms_of_tie_declarations(value, form):
    model = llama()
    model._tied_weights_keys = value
    declaration = facts_of(model).declarations[0]
    assert declaration.tied_weights_form == form
    assert declaration.tied_weights == EMPTY
    assert declaration.tied_weights_names == (("lm_head.weight",) if value else ())


def test_class_declarations_of_any_class():
    class Head(nn.Module):
        _keep_in_fp32_modules = ["norm"]
        _keep_in_fp32_modules_strict = {"router.10", "router.9"}
        _keys_to_ignore_on_load_missing = [r"inv_freq"]
        _keys_to_ignore_on_load_unexpected = r"position_ids"
        _keys_to_ignore_on_save = ["head.weight"]
        _no_split_modules = ("Block",)
        base_model_prefix = "gone"

    (found,) = facts_of(nn.Sequential(nn.Linear(1, 1), Head())).declarations
    assert found.fqn == "1"
    assert found.keep_in_fp32 == ("norm",)
    assert found.keep_in_fp32_strict == ("router.9", "router.10")
    assert found.ignore_on_load_missing == ("inv_freq",)
    assert found.ignore_on_load_unexpected == ("position_ids",)
    assert found.ignore_on_save == ("head.weight",)
    assert found.no_split_modules == ("Block",)
    assert (found.base_model_prefix, found.base_model_present) == ("gone", False)


def test_conversions_are_told_apart_from_identity():
    assert facts_of(llama()).key_mapping == "identity"
    assert facts_of(mixtral()).key_mapping == "conversions"
    assert facts_of(nn.Linear(1, 1)).key_mapping == "identity"


def test_memory_is_numbered_by_where_a_tensor_begins():
    model = nn.Module()
    flat = torch.arange(6.0)
    model.a, model.b = nn.Parameter(flat[:3]), nn.Parameter(flat[3:])
    model.same = nn.Parameter(model.a.detach().view(3, 1))
    model.empty = nn.Parameter(torch.empty(0))
    model.meta = nn.Parameter(torch.empty(3, device="meta"))
    named = facts_of(model).tensor_by_name()
    assert named["a"].storage == named["same"].storage != named["b"].storage
    assert named["empty"].storage is None
    assert named["meta"].storage is None
    assert named["meta"].is_meta
    assert named["meta"].device == "meta"


def test_buffers_know_whether_they_are_saved():
    model = nn.BatchNorm1d(2)
    model.register_buffer("cache", torch.ones(1), persistent=False)
    named = facts_of(model).tensor_by_name()
    assert named["running_mean"].persistent is True
    assert named["cache"].persistent is False
    assert named["weight"].persistent is None
    assert set(facts_of(model).state_dict_keys()) == set(model.state_dict())


def test_a_buffer_that_is_saved_under_one_of_its_names():
    model = nn.Sequential(nn.Module(), nn.Module())
    model[0].register_buffer("x", torch.ones(1), persistent=False)
    model[1].register_buffer("y", model[0].x)
    facts = facts_of(model)
    (tensor,) = facts.tensors
    assert (tensor.persistent, tensor.hidden_aliases) == (True, ("0.x",))
    assert set(facts.state_dict_keys()) == set(model.state_dict()) == {"1.y"}


def test_lazy_parameters_have_no_shape_and_say_so():
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4))
    facts = facts_of(model)
    lazy = facts.tensor_by_name()["0.weight"]
    assert lazy.shape == ()
    assert "uninitialised" in lazy.unreadable
    assert facts.modules[1].placeholder == "it is lazy and was never initialised"
    assert facts.counts.parameter_elements == 20
    model(torch.ones(1, 3))
    facts = facts_of(model)
    assert facts.tensor_by_name()["0.weight"].shape == (4, 3)
    assert facts.modules[1].placeholder is None


class AttentionPlaceholder(nn.Module):
    pass


class Flagged(nn.Module):
    is_placeholder = True


class Method(nn.Module):
    def is_placeholder(self):
        return False


class ByProperty(nn.Module):
    @property
    def _is_placeholder(self):
        return True


class Raising(nn.Module):
    @property
    def is_placeholder(self):
        raise RuntimeError("no")


class Stub(nn.Module):
    pass


def test_placeholders():
    flagged = nn.Module()
    flagged._is_placeholder = True
    model = nn.ModuleList([AttentionPlaceholder(), Flagged(), Method(), ByProperty(), Raising(), flagged, Stub()])
    found = {item.fqn: item.placeholder for item in facts_of(model, placeholders=["St*b"]).modules}
    assert "AttentionPlaceholder" in found["0"]
    assert found["1"]
    assert found["2"] is None
    assert found["3"]
    assert found["4"] is None
    assert found["5"]
    assert "'St*b'" in found["6"]
    assert facts_of(model).modules[-1].placeholder is None


def test_rebuildable_buffers():
    class Spec:
        source = None
        factory = staticmethod(lambda: None)

    model = nn.Sequential(nn.Module())
    model[0].register_buffer("kept", torch.ones(1))
    model[0].register_buffer("meta", torch.empty(1, device="meta"), persistent=False)
    model[0].__dict__["_hp_rebuildable_buffer_specs"] = {
        "kept": {"source": "config", "factory": None},
        "meta": Spec(),
        "gone": {},
    }
    kept, meta, gone = facts_of(model).rebuildable_buffers
    assert (kept.fqn, kept.has_source, kept.has_factory, kept.present, kept.persistent) == (
        "0.kept",
        True,
        False,
        True,
        True,
    )
    assert (meta.has_source, meta.has_factory, meta.persistent, meta.is_meta) == (False, True, False, True)
    assert (gone.fqn, gone.present, gone.has_source, gone.has_factory) == ("0.gone", False, False, False)


class Mode(enum.Enum):
    FAST = "fast"


@dataclasses.dataclass
class Plain:
    width: int = 4
    dtype: object = torch.bfloat16
    mode: Mode = Mode.FAST
    limit: float = float("inf")
    token: str = "secret"
    names: tuple = ("a", "b")
    huge: int = 2**70
    weird: object = object()


def with_config(config):
    model = nn.Linear(1, 1)
    model.config = config
    return model


def test_configurations_become_plain_values():
    config = facts_of(with_config(Plain())).config
    assert config == {
        "width": 4,
        "dtype": "bfloat16",
        "mode": "fast",
        "limit": "inf",
        "names": ("a", "b"),
        "huge": str(2**70),
        "weird": "<builtins.object>",
    }


def test_configurations_that_cannot_be_read_are_none():
    class Raising:
        def to_dict(self):
            raise RuntimeError("no")

    assert facts_of(with_config(Raising())).config is None
    assert facts_of(with_config(3)).config is None
    assert facts_of(with_config(nn.Linear(1, 1))).config is None
    assert facts_of(nn.Linear(1, 1)).config is None


def test_configurations_without_end_are_cut():
    endless = {}
    endless["itself"] = endless
    wide = {str(number): number for number in range(200_000)}
    assert "<cut>" in str(facts_of(with_config(endless)).config)
    assert len(config_of(with_config(wide))) < 100_000


def test_transformers_configuration_is_that_of_to_dict():
    facts = facts_of(llama(dtype="bfloat16"))
    assert facts.config["hidden_size"] == 32
    assert facts.config["dtype"] == "bfloat16"
    assert facts.model_type == "llama"


def test_architectures():
    assert facts_of(with_config({"architectures": ["A", "B"], "model_type": "m"})).architectures == ("A", "B")
    assert facts_of(with_config({"architectures": None, "model_type": 3})).architectures == ()


SENTINEL = object()  # its repr has an address


def test_forward_signatures_are_the_same_in_every_process():
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, *, y=SENTINEL, z="text", **rest) -> None:
            pass

    class Static(nn.Module):
        @staticmethod
        def forward(x, y):
            pass

    replaced = nn.Linear(1, 1)
    replaced.forward = lambda x, scale=2: x
    model = nn.ModuleList([Model(), Static(), replaced, nn.Linear(1, 1)])
    found = [item.forward_signature for item in facts_of(model).modules[1:]]
    assert found == ["(x, *, y=..., z='text', **rest)", "(x, y)", "(x, scale=2)", "(input)"]


def test_parametrised_tensors_have_their_registered_names():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    facts = facts_of(model)
    assert set(facts.state_dict_keys()) == set(model.state_dict())
    assert facts.modules[0].qualified_type.endswith("ParametrizedLinear")


def test_training_flags():
    model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    assert [item.training for item in facts_of(model).modules] == [True, True, False]
