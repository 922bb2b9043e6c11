"""The D7 rules on traced steps of live models, with faults as users met them. One process; FSDP2 on a group of one."""

import contextlib
import itertools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import shardlint
from shardlint import Severity
from shardlint.contract import Contract, DataSemantics, Invariant, SharedState
from shardlint.engine.runner import SelectedRule, Status, evaluate
from shardlint_rules.pack import shardlint_rules
from support.models import bert, llama, mixtral, t5

IDS = torch.arange(16).reshape(2, 8)
RULES = {rule.code: rule for rule in shardlint_rules() if rule.code.startswith("D7")}
TOKENS = {"input_ids": IDS, "labels": IDS}


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
    dist.destroy_process_group()


def sharded(model, mesh, layers, **options):
    for layer in layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def traced(model, step=None, optimizer=None, contract=None, raises=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)

    def plain_step():
        model(**TOKENS).loss.backward()

    outcome = pytest.raises(raises) if raises else contextlib.nullcontext()
    with outcome, shardlint.trace(model, optimizer, contract=contract) as t:
        (step or plain_step)()
        optimizer.step()
        optimizer.zero_grad()
    return t


def run(model, t, contract=None, **options):
    """Findings by code, of everything but info; no rule crashed."""
    facts = shardlint.snapshot(model, trace=t, contract=contract, config=False)
    chosen = [SelectedRule(rule=rule(rule.options_type(**options.get(code, {})))) for code, rule in RULES.items()]
    evaluation = evaluate(facts, chosen)
    assert Status.CRASHED not in {outcome.status for outcome in evaluation.outcomes}, evaluation.findings
    found = {}
    for finding in evaluation.findings:
        if finding.severity is not Severity.INFO:
            found.setdefault(finding.code, []).append(finding)
    return found


def subjects(findings):
    return sorted(finding.subject for finding in findings)


HEALTHY = {
    "llama": (llama, TOKENS),
    "llama-tied": (lambda: llama(tie_word_embeddings=True), TOKENS),
    "mixtral": (mixtral, TOKENS),
    "t5": (lambda: t5(decoder_start_token_id=0), TOKENS),
    "bert": (bert, {"input_ids": IDS}),
}


def loss_of(output):
    return output.loss if getattr(output, "loss", None) is not None else output[0].sum() + output[1].sum()


def layers_of(model):
    """The repeated blocks, by class name."""
    names = ("DecoderLayer", "BertLayer", "T5Block")
    return [module for module in model.modules() if type(module).__name__.endswith(names)]


@pytest.mark.parametrize("how", ["plain", "fsdp2", "ddp"])
@pytest.mark.parametrize("family", HEALTHY)
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")  # T5 blocks return views
def test_healthy_steps_are_silent(family, how, mesh):
    build, batch = HEALTHY[family]
    model = build().train()
    if how == "fsdp2":
        layers = layers_of(model)
        assert len(layers) >= 2
        sharded(model, mesh, layers)
    elif how == "ddp":
        model = nn.parallel.DistributedDataParallel(model)

    def step():
        for _ in range(2):
            loss_of(model(**batch)).backward()

    t = traced(model, step)
    assert run(model, t) == {}
    assert [len(t.runtime.steps), t.runtime.looks] == [2, ("optimizer-step",)]
    assert t.runtime.order("backward")


class FusedLoss(nn.Module):
    """A model with a loss that reads the weight of the head instead of calling the head."""

    def __init__(self):
        super().__init__()
        self.lm = llama()

    def forward(self, input_ids, labels):
        hidden = self.lm.model(input_ids=input_ids).last_hidden_state
        weight = self.lm.lm_head.weight
        weight = weight.to_local() if hasattr(weight, "to_local") else weight
        return F.cross_entropy(F.linear(hidden, weight).flatten(0, 1), labels.flatten())


@pytest.mark.live("D701")
def test_d701_a_fused_loss_that_reads_the_weight_of_the_head(mesh):
    model = FusedLoss()
    t = traced(model, lambda: model(**TOKENS).backward())
    (finding,) = run(model, t)["D701"]
    assert (finding.subject, finding.severity) == ("lm.lm_head", Severity.WARNING)
    sharded(model, mesh, [*model.lm.model.layers, model.lm.lm_head])
    t = traced(model, lambda: model(**TOKENS).backward())
    (finding,) = run(model, t)["D701"]
    assert (finding.subject, finding.severity) == ("lm.lm_head", Severity.ERROR)
    assert "lm.lm_head.weight got gradients" in finding.message


def test_d701_a_weight_used_while_sharded_names_the_line(mesh):
    model = llama()
    sharded(model, mesh, [model.lm_head])
    hidden = torch.randn(2, 16)
    t = traced(model, lambda: F.linear(hidden, model.lm_head.weight).sum(), raises=RuntimeError)
    (finding,) = run(model, t)["D701"]
    assert finding.subject == "lm_head"
    assert "linear() was given the sharded lm_head.weight at" in finding.message
    assert "test_live_runtime.py" in finding.message


@pytest.mark.parametrize("way", ["forward", "method"])
def test_d701_a_child_bypassed_by_forward_or_by_a_method_of_its_own(way, mesh):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x):
            return self.down(self.up(x))

        def encode(self, x):
            return self.down(self.up(x)) + x

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x):
            x = self.blocks[0](x)
            x = self.blocks[1].forward(x) if way == "forward" else self.blocks[1].encode(x)
            return self.blocks[2](x)

    model = Net()
    t = traced(model, lambda: model(torch.ones(2, 4)).sum().backward())
    assert subjects(run(model, t)["D701"]) == ["blocks.1"]
    sharded(model, mesh, model.blocks)
    t = traced(model, lambda: model(torch.ones(2, 4)).sum().backward(), raises=Exception)
    (finding,) = run(model, t)["D701"]
    assert (finding.subject, finding.severity) == ("blocks.1", Severity.ERROR)
    assert "blocks.1.up ran while its parameters were sharded" in finding.message


def twelve(mesh):
    model = llama(num_hidden_layers=12)
    layers = list(model.model.layers)
    return sharded(model, mesh, layers), layers


@pytest.mark.live("D702")
def test_d702_a_prefetch_list_in_text_order_of_twelve_layers(mesh):
    model, layers = twelve(mesh)
    order = sorted(range(12), key=str)
    for number, following in itertools.pairwise(order):
        layers[number].set_modules_to_forward_prefetch([layers[following]])
    found = {item.subject: item for item in run(model, traced(model))["D702"]}
    assert {name.rpartition(".")[2]: item.severity.value for name, item in found.items()} == {
        "1": "warning",
        "11": "error",
    }
    assert "ran before it" in found["model.layers.11"].message


@pytest.mark.live("D703")
def test_d702_right_lists_and_a_backward_that_is_not_the_reverse(mesh):
    model, layers = twelve(mesh)
    for number, layer in enumerate(layers):
        layer.set_modules_to_forward_prefetch(layers[number + 1 : number + 3])
        layer.set_modules_to_backward_prefetch(layers[max(0, number - 2) : number][::-1])
    assert run(model, traced(model)) == {}

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.a(x), self.b(x)

    model = Two()
    sharded(model, mesh, [model.a, model.b])

    def step():
        first, second = model(torch.ones(1, 4))
        first.sum().backward(retain_graph=True)
        second.sum().backward()

    model.a.set_modules_to_backward_prefetch([model.b])
    t = traced(model, step)
    assert [name for name in t.runtime.order("backward") if name != "<root>"] == ["a", "b"]
    assert "D702" not in run(model, t)


def test_d703_an_all_gather_that_nobody_waits_for(mesh):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.a(x)

    model = Net()
    model.b.requires_grad_(False)
    sharded(model, mesh, [model.a, model.b])
    model.a.set_modules_to_forward_prefetch([model.b])
    found = run(model, traced(model, lambda: model(torch.ones(2, 4)).sum().backward()))
    assert [(item.subject, item.severity.value) for item in found["D703"]] == [("b", "warning")]
    assert "thrown away unconsumed at the end of the backward; prefetched by a" in found["D703"][0].message
    assert subjects(found["D702"]) == ["a"]

    def gathers_early():
        model(torch.ones(2, 4)).sum().backward()
        model.b.unshard(async_op=True)

    model.a.set_modules_to_forward_prefetch([])
    (finding,) = run(model, traced(model, gathers_early))["D703"]
    assert (finding.subject, finding.severity.value) == ("b", "error")
    assert "still unconsumed at the optimizer step" in finding.message


@pytest.mark.live("D704")
def test_d704_runtime_invariants_run_with_a_trace_alone():
    model = llama()
    contract = Contract(invariants=(Invariant(name="odd", phase="runtime", checker=lambda _: {"left": 3}),))
    assert subjects(run(model, traced(model), contract)["D704"]) == ["odd"]
    assert "D704" not in run(model, None, contract)


@pytest.mark.live("D705")
def test_d705_a_declared_field_that_the_batch_lacks():
    model = llama()
    contract = Contract(data=DataSemantics(forward_fields=("input_ids", "position_ids")))
    assert subjects(run(model, traced(model), contract)["D705"]) == ["position_ids"]

    def positional():
        model(IDS, position_ids=torch.arange(8)[None], labels=IDS).loss.backward()

    assert run(model, traced(model, positional), contract) == {}


def test_d706_reentrant_checkpointing_with_frozen_inputs():
    model = llama().train()
    model.model.embed_tokens.requires_grad_(False)
    model.activation_checkpointing_enable({"use_reentrant": True})
    assert run(model, traced(model)) == {}  # Transformers makes the inputs need gradients
    model.disable_input_require_grads()
    with pytest.warns(UserWarning, match="None of the inputs"):
        t = traced(model)
    found = run(model, t)["D706"]
    assert {item.subject: item.severity.value for item in found} == {
        "model.layers.0": "error",
        "model.layers.1": "error",
    }
    model.activation_checkpointing_enable({"use_reentrant": False})
    assert run(model, traced(model)) == {}


@pytest.mark.live("D706")
def test_d706_a_checkpoint_around_the_units():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))

    def step():
        x = checkpoint(model[:2], torch.ones(2, 4), use_reentrant=True)
        model[2](x).sum().backward()

    with pytest.warns(UserWarning, match="None of the inputs"):
        t = traced(model, step)
    found = run(model, t)["D706"]
    assert {item.owner for item in found} == {"0", "1"}
    assert {item.severity for item in found} == {Severity.ERROR}


def test_d706_a_head_that_no_loss_reads_unless_it_is_declared():
    model = bert()

    def step():
        model(input_ids=IDS)[0].sum().backward()

    t = traced(model, step)
    assert all("pooler" in item.subject for item in run(model, t)["D706"])
    assert run(model, t, D706={"unused": ("pooler.**",)}) == {}


def test_d706_experts_without_tokens():
    class Moe(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            return self.experts[1](x) + self.experts[2](x)

    model = nn.Sequential(nn.Linear(4, 4), Moe())
    assert run(model, traced(model, lambda: model(torch.ones(1, 4)).sum().backward())) == {}


class Captioner(nn.Module):
    """Takes images or none; `always` calls the tower, and drops what it gives."""

    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, tokens, pixel_values=None):
        x = tokens if pixel_values is None else tokens + self.tower(pixel_values).detach()
        return self.blocks[0](x)


@pytest.mark.live("D706")
def test_d706_a_step_without_images():
    text = run(model := Captioner(), traced(model, lambda: model(torch.ones(1, 4)).sum().backward()))
    assert subjects(text["D706"]) == ["blocks.1"]
    both = run(model, traced(model, lambda: model(torch.ones(1, 4), torch.ones(1, 4)).sum().backward()))
    assert subjects(both["D706"]) == ["blocks.1", "tower.0", "tower.2"]


@pytest.mark.live("D707")
def test_d707_a_gradient_that_is_nan():
    model = llama()
    model.model.layers[1].mlp.up_proj.weight.register_hook(lambda grad: grad * float("nan"))
    t = traced(model)
    assert subjects(run(model, t)["D707"]) == ["model.layers.1.mlp.up_proj.weight"]
    model = llama()

    def step():
        (model(**TOKENS).loss * float("inf")).backward()

    found = run(model, traced(model, step))["D707"]
    assert len(found) == len(list(model.parameters()))
    assert found[0].evidence["first_met_in"] == "lm_head"


class Sharing(nn.Module):
    """Blocks that hand a state to each other past the arguments."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.checkpointed = self.reversed = False

    def forward(self, x):
        if self.reversed:
            return self.first(self.second(x))
        x = checkpoint(self.first, x, use_reentrant=False) if self.checkpointed else self.first(x)
        return self.second(x)


@pytest.mark.live("D708")
def test_d708_shared_states_as_the_contract_declares_them():
    model = Sharing()
    contract = Contract(shared_state=(SharedState(name="kv", producers=("first",), consumers=("second",)),))

    def step():
        model(torch.ones(1, 4, requires_grad=True)).sum().backward()

    assert run(model, traced(model, step, contract=contract), contract) == {}
    model.checkpointed = True
    (finding,) = run(model, traced(model, step, contract=contract), contract)["D708"]
    assert "produced again in recomputation by first" in finding.message
    model.checkpointed, model.reversed = False, True
    (finding,) = run(model, traced(model, step, contract=contract), contract)["D708"]
    assert "consumed before it was produced by second" in finding.message


def test_d708_told_by_the_model_itself():
    model = Sharing()
    with shardlint.trace(model, state_limit=3) as t:
        t.produced("kv", by=model.first)
        t.consumed("kv", by="second")
        t.produced("kv", by=model.first)
        t.consumed("kv")
    messages = [item.message for item in run(model, t)["D708"]]
    assert any("produced twice by first" in text for text in messages)
    assert any("1 events of shared states were dropped" in text for text in messages)


class Seeing(nn.Module):
    def __init__(self, detached):
        super().__init__()
        self.vision, self.text, self.detached = nn.Linear(4, 4), nn.Linear(4, 4), detached

    def forward(self, tokens, pixel_values=None):
        x = self.text(tokens)
        if pixel_values is None:
            return x
        seen = self.vision(pixel_values)
        return x + (seen.detach() if self.detached else seen)


@pytest.mark.live("D709")
def test_d709_a_modality_without_gradient_and_text_only_steps():
    contract = Contract(
        data=DataSemantics(modality_fields={"image": ("pixel_values",)}, modality_parameters={"image": ("vision.**",)})
    )
    for detached, pixels, expected in ((True, True, ["image"]), (False, True, []), (True, False, [])):
        model = Seeing(detached)
        batch = {"pixel_values": torch.ones(1, 4)} if pixels else {}

        def step(model=model, batch=batch):
            model(torch.ones(1, 4), **batch).sum().backward()

        assert subjects(run(model, traced(model, step), contract).get("D709", [])) == expected


@pytest.mark.live("D711")
def test_d711_two_forwards_of_checkpointed_units_before_any_backward(mesh):
    def build(sharding):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)))
        for index in range(2):
            model[index] = checkpoint_wrapper(model[index], checkpoint_impl=CheckpointImpl.NO_REENTRANT)
        return sharded(model, mesh, list(model)) if sharding else model

    def twice(model):
        a, b = model(torch.ones(1, 4)), model(torch.ones(1, 4))
        (a.sum() + b.sum()).backward()

    def in_turn(model):
        for _ in range(2):
            model(torch.ones(1, 4)).sum().backward()

    model = build(True)
    assert subjects(run(model, traced(model, lambda: twice(model)))["D711"]) == ["0", "1"]
    for sharding, step in ((True, in_turn), (False, twice)):
        model = build(sharding)
        assert run(model, traced(model, lambda step=step, model=model: step(model))) == {}
