"""The D6 rules on live models, with each fault as its users met it."""

import itertools

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from shardlint import Severity, Target
from shardlint.collect import collect
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint_rules.pack import shardlint_rules
from support.models import FAMILIES, blocks_of, gpt2, llama, run_forward


def findings(model, optimizer, phases=("D6",)):
    facts = collect(Target(model=model, optimizer=optimizer))
    assert not facts.problems
    chosen = [rule() for rule in shardlint_rules() if rule.code.startswith(phases)]
    evaluation = evaluate(facts, [SelectedRule(rule=rule) for rule in chosen])
    assert Status.CRASHED not in {outcome.status for outcome in evaluation.outcomes}
    return [item for item in evaluation.findings if item.severity is not Severity.INFO]


def codes(model, optimizer):
    return sorted((item.code, item.subject) for item in findings(model, optimizer))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def shard(model, **options):
    for block in blocks_of(model):
        fully_shard(block, **options)
    return fully_shard(model, **options)


def names(model):
    return sorted(name for name, _ in model.named_parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_stock_model_gives_no_finding_before_within_and_after_a_step(family):
    model = FAMILIES[family]().train()
    optimizer = adamw(model)
    assert findings(model, optimizer, ("D", "V")) == []
    loss = run_forward(family, model)
    assert findings(model, optimizer) == []
    loss.backward()
    optimizer.step()
    assert findings(model, optimizer, ("D", "V")) == []


@pytest.mark.filterwarnings("ignore:FSDP")
@pytest.mark.parametrize("family", FAMILIES)
def test_nor_does_one_that_is_fully_sharded(family, one_rank):
    model = shard(FAMILIES[family]().train())
    optimizer = adamw(model)
    assert findings(model, optimizer, ("D", "V")) == []
    loss = run_forward(family, model)
    assert findings(model, optimizer) == []
    loss.backward()
    optimizer.step()
    assert findings(model, optimizer, ("D", "V")) == []


def test_mixed_precision_of_units_keeps_the_sharded_parameters_apart_from_their_copies(one_rank):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    model = shard(llama(), mp_policy=policy, reshard_after_forward=False)
    optimizer = adamw(model)
    run_forward("llama", model)
    assert findings(model, optimizer) == []


def test_built_before_sharding(one_rank):
    model = llama(tie_word_embeddings=True)
    optimizer = adamw(model)
    expected = names(model)
    shard(model)
    (found,) = findings(model, optimizer)
    assert (found.code, found.subject) == ("D603", "optimizer")
    assert found.message.startswith(
        f"built before the model was sharded: {len(expected)} of its {len(expected)} tensors"
    )
    assert "sharded since" in found.message
    renamed = {"model.embed_tokens.weight": "lm_head.weight"}
    assert sorted(found.evidence["live"]) == sorted(renamed.get(name, name) for name in expected)


def test_built_before_to_empty():
    with torch.device("meta"):
        model = llama()
    optimizer = adamw(model)
    model.to_empty(device="cpu")
    (found,) = findings(model, optimizer)
    assert (found.code, found.subject, sorted(found.evidence["live"])) == ("D603", "optimizer", names(model))
    assert "built before the model was materialized" in found.message


def test_to_empty_of_a_sharded_model_keeps_the_parameters(one_rank):
    with torch.device("meta"):
        model = shard(llama())
    optimizer = adamw(model)
    model.to_empty(device="cpu")
    assert codes(model, optimizer) == []


@pytest.mark.live("D603")
def test_built_after_a_forward_without_backward(one_rank):
    model = shard(llama(), reshard_after_forward=False)
    loss = run_forward("llama", model)
    optimizer = adamw(model)
    (found,) = findings(model, optimizer)
    assert (found.code, found.subject, sorted(found.evidence["live"])) == ("D603", "optimizer", names(model))
    assert "full copy within a step" in found.message
    loss.backward()
    assert {item.code for item in findings(model, optimizer)} == {"D603"}


@pytest.mark.parametrize("tied", [True, False])
def test_built_before_an_embedding_was_resized(tied):
    model = llama(tie_word_embeddings=tied)
    optimizer = adamw(model)
    model.model.embed_tokens = nn.Embedding(40, 16)
    model.lm_head = nn.Linear(16, 40, bias=False)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    found = findings(model, optimizer)
    ends = ["lm_head.weight"] if tied else ["lm_head.weight", "model.embed_tokens.weight"]
    assert [(item.code, item.subject) for item in found] == [("D603", name) for name in ends]
    assert all("which is now [40, 16] float32 plain (resized or replaced since)" in item.message for item in found)


@pytest.mark.filterwarnings("ignore")
def test_built_before_resize_token_embeddings():
    model = llama()
    optimizer = adamw(model)
    model.resize_token_embeddings(40, mean_resizing=False)
    assert codes(model, optimizer) == [("D603", "lm_head.weight")]  # the embedding keeps its parameter


def test_built_before_a_block_was_replaced():
    model = llama()
    optimizer = adamw(model)
    model.model.layers[1] = type(model.model.layers[1])(model.config, 1)
    expected = [name for name in names(model) if name.startswith("model.layers.1.")]
    (found,) = findings(model, optimizer)
    assert (found.code, found.subject, sorted(found.evidence["live"])) == ("D603", "optimizer", expected)
    assert f"{len(expected)} of its {len(names(model))} tensors are not parameters any more" in found.message


def test_names_that_the_optimizer_keeps_tell_what_was_what():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(list(model.named_parameters())[::-1], lr=0.1)
    model[0] = nn.Linear(4, 4)
    found = findings(model, optimizer)
    assert [item.subject for item in found] == ["0.bias", "0.weight"]
    assert {item.evidence["by"] for item in found} == {"name"}


def informed(model, optimizer):
    facts = collect(Target(model=model, optimizer=optimizer))
    evaluation = evaluate(facts, [SelectedRule(rule=rule()) for rule in shardlint_rules() if rule.code[:2] == "D6"])
    return [(item.code, item.subject, item.severity) for item in evaluation.findings]


def test_tied_after_the_optimizer_was_built():
    model = llama()
    optimizer = adamw(model)
    model.lm_head.weight = model.model.embed_tokens.weight
    assert informed(model, optimizer) == [("D603", "optimizer", Severity.INFO)]


def test_one_optimizer_over_two_models():
    encoder, decoder = nn.Linear(4, 8), nn.Linear(8, 2)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    assert informed(encoder, optimizer) == [("D603", "optimizer", Severity.INFO)]
    assert informed(nn.ModuleList([encoder, decoder]), optimizer) == []
    optimizer = torch.optim.Adam([encoder.weight, *decoder.parameters()])
    assert ("D603", "bias", Severity.ERROR) in informed(encoder, optimizer)  # by shape: nobody knows better


def test_the_first_of_alike_tensors_is_the_one_that_no_group_holds(one_rank):
    model = nn.ModuleDict({str(number): nn.Linear(8, 8, bias=False) for number in range(4)})
    model["head"] = nn.Linear(8, 8, bias=False)
    model["head"].weight = model["0"].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for number in range(1, 4):
        fully_shard(model[str(number)])
    fully_shard(model["0"])
    assert ("D604", "0.weight") in codes(model, optimizer)
    assert [name for code, name in codes(model, optimizer) if code == "D604"] == ["0.weight"]


@pytest.mark.live("D610")
def test_nothing_trains():
    model = llama()
    optimizer = adamw(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    assert codes(model, optimizer) == [("D610", "model")]
    torch.optim.lr_scheduler.LambdaLR(adamw(model), lambda step: step / 10)
    model.requires_grad_(False)
    assert ("D610", "model") in codes(model, adamw(model))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name)
    assert codes(model, adamw(model)) == [("D610", "model")]


def test_a_warm_up_trains():
    model = llama()
    optimizer = adamw(model)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    assert optimizer.param_groups[0]["lr"] == 0
    assert codes(model, optimizer) == []


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT reads what Transformers deprecates
def test_an_adapter_in_use_that_is_frozen_while_another_one_trains():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"])
    model = peft.get_peft_model(llama(), config)
    model.add_adapter("other", config)
    assert codes(model, torch.optim.AdamW(model.parameters(), weight_decay=0.0)) == []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".other." in name)
    assert codes(model, torch.optim.AdamW(model.parameters(), weight_decay=0.0)) == [("D610", "default")]
    model.set_adapter("other")
    assert codes(model, torch.optim.AdamW(model.parameters(), weight_decay=0.0)) == []


def stepped(optimizer, model):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    return optimizer


def small():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


@pytest.mark.live("D611")
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
def test_groups_that_were_given_new_parameters(kind):
    old, new = small(), small()
    optimizer = stepped(kind(old.parameters()), old)
    assert codes(old, optimizer) == []
    optimizer.param_groups[0]["params"] = list(new.parameters())
    assert codes(new, optimizer) == [("D611", "optimizer")]


@pytest.mark.live("D612")
def test_a_frozen_parameter_that_still_moves():
    model = small()
    optimizer = stepped(torch.optim.AdamW(model.parameters(), weight_decay=0.0), model)
    optimizer.zero_grad(set_to_none=False)
    model[0].requires_grad_(False)
    assert codes(model, optimizer) == [("D612", "0.bias"), ("D612", "0.weight")]
    optimizer.zero_grad()
    assert codes(model, optimizer) == []


@pytest.mark.live("D613")
def test_a_group_without_decay_that_nothing_is_in():
    model = llama()
    groups = [{"params": list(model.parameters())}, {"params": [], "weight_decay": 0.0}]
    assert codes(model, torch.optim.AdamW(groups, weight_decay=0.1)) == [("D613", "optimizer, group 1")]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    assert codes(model, torch.optim.AdamW(groups, weight_decay=0.1)) == []


@pytest.mark.parametrize("sizes", [(8, 8, 1), (8, 3)])
def test_the_flat_state_of_lbfgs(sizes):
    model = nn.Sequential(*(nn.Linear(left, right) for left, right in itertools.pairwise(sizes)))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(3, 8)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert codes(model, optimizer) == []


def test_stochastic_rounding_as_an_attribute_of_the_optimizer():
    class RoundingAdamW(torch.optim.AdamW):
        def __init__(self, parameters, rounding):
            super().__init__(parameters, lr=1e-7)
            self.bf16_stochastic_round = rounding

    model = nn.Linear(8, 8, bias=False).to(torch.bfloat16)
    assert codes(model, RoundingAdamW(model.parameters(), True)) == []
    assert codes(model, RoundingAdamW(model.parameters(), False)) == [("D608", "weight")]


@pytest.mark.live("D605")
def test_a_parameter_twice():
    model = nn.Linear(2, 2)
    with pytest.warns(UserWarning, match="duplicate"):
        optimizer = torch.optim.AdamW([model.weight, model.weight, model.bias])
    assert codes(model, optimizer) == [("D605", "weight")]
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.param_groups[0]["params"].append(model.bias)
    assert codes(model, optimizer) == [("D605", "bias")]
    assert codes(model, [torch.optim.SGD(model.parameters(), lr=1), torch.optim.SGD([model.bias], lr=1)]) == [
        ("D605", "bias")
    ]


@pytest.mark.live("D604", "D606")
def test_left_out_and_frozen():
    model = llama()
    model.model.embed_tokens.requires_grad_(False)
    chosen = [parameter for name, parameter in model.named_parameters() if "norm" not in name]
    optimizer = torch.optim.AdamW(chosen, weight_decay=0.1)
    left_out = [name for name in names(model) if "norm" in name]
    assert codes(model, optimizer) == [("D604", name) for name in left_out]
    model.model.embed_tokens.weight.grad = torch.zeros_like(model.model.embed_tokens.weight)
    assert codes(model, optimizer) == [
        *(("D604", name) for name in left_out),
        ("D606", "model.embed_tokens.weight"),
    ]


@pytest.mark.live("D607")
def test_a_tie_that_became_two_tensors_in_two_groups():
    model = gpt2()
    model.lm_head.weight = nn.Parameter(model.transformer.wte.weight.detach().clone())
    head = [model.lm_head.weight]
    rest = [parameter for parameter in model.parameters() if parameter is not head[0]]
    optimizer = torch.optim.AdamW([{"params": rest}, {"params": head, "weight_decay": 0.0}])
    assert ("D607", "lm_head.weight") in codes(model, optimizer)
    optimizer = torch.optim.AdamW([{"params": rest}, {"params": head}])
    assert "D607" not in {code for code, _ in codes(model, optimizer)}


@pytest.mark.live("D601")
def test_state_of_another_layout(one_rank):
    model = shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    optimizer = adamw(model)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert codes(model, optimizer) == []
    state = optimizer.state[model[1].weight]
    state["exp_avg"] = state["exp_avg"].full_tensor()
    (finding,) = findings(model, optimizer)
    assert (finding.code, finding.subject, finding.evidence["role"]) == ("D601", "1.weight", "state exp_avg")
    state["exp_avg"] = torch.zeros(2, 4)
    assert findings(model, optimizer)[0].evidence["differs"] == ("shape", "layout")


def test_main_parameters_and_gradients():
    model = nn.Linear(4, 2).to(torch.bfloat16)
    for parameter in model.parameters():
        parameter.main_param = nn.Parameter(parameter.detach().float())
        parameter.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
    optimizer = torch.optim.AdamW([parameter.main_param for parameter in model.parameters()])
    assert codes(model, optimizer) == []
    model.weight.main_grad = torch.zeros(8)
    model.bias.main_param = nn.Parameter(torch.zeros(1))
    found = findings(model, optimizer)
    assert [(item.code, item.subject, item.evidence["role"]) for item in found if item.code == "D601"] == [
        ("D601", "bias", "main parameter"),
        ("D601", "weight", "main gradient"),
    ]


@pytest.mark.live("D602")
def test_an_empty_plain_shard():
    """A unit of a framework whose empty shards forget their layout, told by what it has."""

    class Bag:
        def __init__(self, **items):
            self.__dict__.update(items)

    model = nn.Linear(4, 1, bias=False)
    model.weight = nn.Parameter(torch.empty(0, 4))
    managed = Bag(sharded_param=model.weight, _param_fqn="weight", _orig_size=(1, 4))
    model.hsdp_scheduler = Bag(hsdp_state=Bag(hsdp_params=[managed]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert codes(model, optimizer) == [("D602", "weight")]


@pytest.mark.live("D608")
def test_bfloat16_parameters_that_steps_of_the_rate_cannot_move():
    model = llama().to(torch.bfloat16)
    found = [item for item in findings(model, torch.optim.AdamW(model.parameters(), lr=1e-6)) if item.code == "D608"]
    assert {item.subject for item in found} == set(names(model))
    moved = model.lm_head.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0).step()
    assert (model.lm_head.weight == moved).float().mean() > 0.9
    assert "D608" not in {item.code for item in findings(model, torch.optim.AdamW(model.parameters(), lr=1.0))}


def test_units_in_mixed_precision_keep_float32_parameters(one_rank):
    model = shard(llama(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    assert findings(model, torch.optim.AdamW(model.parameters(), lr=1e-6)) == []
