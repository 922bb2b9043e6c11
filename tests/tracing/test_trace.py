"""The trace on live models: what it sees, what it leaves alone, and that it is gone afterwards."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils import checkpoint
from torch.utils.checkpoint import CheckpointFunction

import shardlint
from shardlint.facts.codec import decode_facts, encode_facts
from shardlint.introspect.walk import walk
from shardlint.tracing import TraceError, units
from support.models import llama, mixtral

IDS = torch.arange(16).reshape(2, 8)
TOKENS = {"input_ids": IDS, "labels": IDS}
LAYERS = ("model.layers.0", "model.layers.1")
ORDER = ("model.embed_tokens", *LAYERS, "model.norm", "lm_head")


def hooks_of(model):
    names = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_always_called", "_forward_hooks_with_kwargs")
    names += ("_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks")
    return {name: [len(getattr(module, name)) for module in model.modules()] for name in names}


def globals_of():
    from torch.nn.modules import module
    from torch.optim import optimizer

    return (
        dict(module._global_forward_hooks),
        dict(module._global_forward_pre_hooks),
        dict(optimizer._global_optimizer_pre_hooks),
        vars(CheckpointFunction).get("apply"),
        torch._C._len_torch_function_stack(),
    )


def train(model, steps, trace):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with shardlint.trace(model, optimizer) if trace else contextlib.nullcontext() as t:
        for _ in range(steps):
            model(**TOKENS).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return t, [item.detach().clone() for item in model.parameters()], torch.get_rng_state()


@pytest.mark.parametrize("build", [llama, mixtral])
@pytest.mark.parametrize("reentrant", [None, True, False])
def test_the_same_bits_and_the_same_random_state(build, reentrant):
    after = {}
    for trace in (False, True):
        model = build(attention_dropout=0.2).train()
        if reentrant is not None:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        before = hooks_of(model), globals_of()
        t, parameters, state = train(model, 2, trace)
        assert (hooks_of(model), globals_of()) == before
        after[trace] = parameters, state
    assert all(map(torch.equal, after[False][0], after[True][0]))
    assert torch.equal(after[False][1], after[True][1])
    assert len(t.runtime.steps) == 2


def test_everything_is_gone_after_a_step_that_raised():
    model = llama()
    before = hooks_of(model), globals_of()

    def fails(*_):
        raise ValueError("no tokens")

    handle = model.model.layers[1].mlp.register_forward_pre_hook(fails)
    t = shardlint.trace(model)
    with pytest.raises(ValueError, match="no tokens"), t:
        model(**TOKENS)
    handle.remove()
    assert (hooks_of(model), globals_of()) == before
    assert (t.runtime.raised, t.runtime.raised_in) == ("ValueError: no tokens", "model.layers.1")
    assert t.runtime.order("forward") == ORDER[:3]
    report = shardlint.lint(model, trace=t, config=False, select=["D7"])
    assert {"D706", "D709"} & {item.code for item in report.outcomes if item.status.value == "not-evaluated"}


def test_orders_fields_looks_and_micro_steps():
    model = llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with shardlint.trace(model, optimizer) as t:
        for _ in range(2):
            model(IDS, labels=IDS, attention_mask=None).loss.backward()
        optimizer.step()
        with torch.no_grad():
            model(IDS)
    runtime = t.facts()
    assert runtime is t.runtime
    assert [step.fields for step in runtime.steps] == [("input_ids", "labels")] * 2 + [("input_ids",)]
    assert [step.with_gradients for step in runtime.steps] == [True, True, False]
    assert [runtime.order("forward", step) for step in range(3)] == [ORDER] * 3
    assert [runtime.order("backward", step) for step in range(3)] == [ORDER[::-1]] * 2 + [()]
    assert runtime.looks == ("optimizer-step",)
    assert all(item.present == 1 and item.module_ran for item in runtime.gradients)
    facts = shardlint.snapshot(model, trace=t, config=False)
    assert decode_facts(encode_facts(facts)) == facts


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_told_apart_in_transformers(reentrant):
    model = llama().train()
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    with shardlint.trace(model) as t:
        model(**TOKENS).loss.backward()
    assert t.runtime.order("forward") == ORDER
    assert t.runtime.order("backward") == ORDER[::-1]
    assert t.runtime.order("recompute") == LAYERS[::-1]
    kind = "reentrant" if reentrant else "non-reentrant"
    assert {unit.name: unit.checkpointed for unit in t.runtime.units if unit.checkpointed} == dict.fromkeys(
        LAYERS, kind
    )
    assert t.runtime.looks == ("backward", "end")


@pytest.mark.parametrize("kind", list(CheckpointImpl))
def test_recomputation_is_told_apart_with_wrappers_around_units(kind):
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)))
    for index in range(3):
        model[index] = checkpoint_wrapper(model[index], checkpoint_impl=kind)
    with shardlint.trace(model) as t:
        model(torch.ones(1, 4, requires_grad=True)).sum().backward()
    assert t.runtime.order("forward") == ("0", "1", "2")
    assert t.runtime.order("recompute") == ("2", "1", "0")
    assert t.runtime.order("backward") == ("2", "1", "0")
    assert [unit.cut_off for unit in t.runtime.units] == [False] * 3


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # dynamo looks at it while compiling
@pytest.mark.parametrize("way", ["wrapped", "in-place", "whole"])
def test_compiled_blocks(way):
    torch._dynamo.reset()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)))
    target = model
    if way == "wrapped":
        for index in range(2):
            model[index] = torch.compile(model[index], backend="eager")
    elif way == "in-place":
        for block in model:
            block.compile(backend="eager")
    else:
        target = torch.compile(model, backend="eager")
    x = torch.ones(1, 4)
    target(x).sum().backward()
    model.zero_grad()
    inner = [vars(block).get("_compiled_call_impl") for block in model]
    with shardlint.trace(target) as t:
        target(x).sum().backward()
    assert [vars(block).get("_compiled_call_impl") for block in model] == inner
    assert all(item.present == 1 for item in t.runtime.gradients)
    assert len(t.runtime.steps) == 1
    report = shardlint.lint(target, trace=t, config=False, select=["D7"])
    assert [item for item in report.findings if item.severity.value != "info"] == []
    outcome = next(item for item in report.outcomes if item.code == "D701")
    if way == "whole":
        assert outcome.status.value == "not-evaluated"
        assert {unit.observed for unit in t.runtime.units} == {False}
    else:
        assert outcome.status.value == "clean"
        assert t.runtime.order("forward") == ("0", "1")
        assert t.runtime.order("backward") == ("1", "0")


def test_optimizers_of_several_kinds_are_noticed():
    model = llama()

    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

        def step(self):
            self.optimizer.step()

    class Stranger:
        def step(self):
            return "stepped"

    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    stranger = Stranger()
    for given, step, looks in (
        (None, inner.step, 1),
        (Wrapper(inner), Wrapper(inner).step, 1),
        ([inner], inner.step, 1),
        (None, other.step, 0),
    ):
        with shardlint.trace(model, given) as t:
            step()
        assert t.runtime.looks == (("optimizer-step",) * looks or ("end",))
    with shardlint.trace(model, stranger) as t:
        assert stranger.step() == "stepped"
    assert t.runtime.looks == ("optimizer-step",)
    assert vars(stranger) == {}
    assert stranger.step() == "stepped"


def test_the_direct_use_of_gradients_kept_elsewhere():
    model = nn.Linear(4, 4)
    with shardlint.trace(model) as t:
        model(torch.ones(1, 4)).sum().backward()
        for parameter in model.parameters():
            parameter.main_grad, parameter.grad = parameter.grad, None
    assert [item.present for item in t.runtime.gradients] == [1, 1]


def test_sparse_empty_and_frozen_gradients():
    model = nn.Module()
    model.table = nn.Embedding(8, 4, sparse=True)
    model.empty = nn.Parameter(torch.zeros(0))
    model.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    with shardlint.trace(model) as t:
        (model.table(torch.tensor([1, 2])).sum() + model.empty.sum()).backward()
    assert {item.fqn: item.present for item in t.runtime.gradients} == {"table.weight": 1, "empty": 1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_and_tiny_gradients_are_finite_and_not_zero(dtype):
    extreme = torch.finfo(dtype)
    cases = {
        "large": extreme.max,
        "tiny": extreme.smallest_normal,
        "zero": 0.0,
        "nan": float("nan"),
        "inf": float("inf"),
    }
    model = nn.ParameterDict({name: nn.Parameter(torch.zeros(64, dtype=dtype)) for name in cases})
    with shardlint.trace(model) as t:
        for name, value in cases.items():
            model[name].grad = torch.full((64,), value, dtype=dtype)
    found = {item.fqn: (item.not_finite, item.zero) for item in t.runtime.gradients}
    silent, bad = ((), 0), ((0,), 0)
    assert found == {"large": silent, "tiny": silent, "zero": ((), 1), "nan": bad, "inf": bad}


def test_plain_units_are_repeated_blocks_and_what_stands_beside_them():
    tree = units.Tree(walk(mixtral()))
    assert {unit.name for unit in units.find_units(tree)} == set(ORDER)
    nested = nn.Sequential(nn.MultiheadAttention(4, 1), nn.Linear(4, 4))
    found = {unit.name: unit for unit in units.find_units(units.Tree(walk(nested)))}
    assert set(found) == {"0", "1"}
    assert len(found["0"].parameters) == 4


def hyperparallel(model, pending=False):
    """Schedulers as HyperParallel hangs them on modules, by the attributes that are read."""
    for block in model:
        params = [
            SimpleNamespace(
                sharded_param=parameter,
                allgather_comm_ctx=SimpleNamespace(allgather_handle=None, allgather_output=None),
            )
            for parameter in block.parameters()
        ]
        state = SimpleNamespace(hsdp_params=params)
        block.hsdp_scheduler = SimpleNamespace(hsdp_state=state, forward_prefetch_cells=[], backward_prefetch_cells=[])
    if pending:
        ctx = model[1].hsdp_scheduler.hsdp_state.hsdp_params[0].allgather_comm_ctx
        ctx.allgather_output = torch.zeros(1)
    return model


def test_schedulers_of_hyperparallel():
    model = hyperparallel(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))))
    model[0].hsdp_scheduler.forward_prefetch_cells = [model[1]]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        with shardlint.trace(model, optimizer) as t:
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        report = shardlint.lint(model, trace=t, config=False, select=["D7"])
        return t.runtime, {(item.code, item.subject) for item in report.findings if item.severity.value != "info"}

    runtime, found = step()
    assert found == set()
    assert {unit.kind for unit in runtime.units} == {"hyperparallel"}
    assert runtime.unit_by_name()["0"].forward_prefetch == ("1",)
    model[2].hsdp_scheduler.forward_prefetch_cells = [model[1]]
    hyperparallel(model, pending=True)
    model[2].hsdp_scheduler.forward_prefetch_cells = [model[1]]
    assert step()[1] == {("D702", "2"), ("D703", "1")}
    hyperparallel(model)
    model[1].forward_past = model[1].forward
    with shardlint.trace(model, optimizer) as t:
        model[2](model[1].forward_past(model[0](torch.ones(1, 4)))).sum().backward()
    report = shardlint.lint(model, trace=t, config=False, select=["D701"])
    assert [(item.subject, item.severity.value) for item in report.findings] == [("1", "error")]


def test_misuse_is_told():
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module to trace, got int"):
        shardlint.trace(3)
    t = shardlint.trace(nn.Linear(2, 2))
    with pytest.raises(TraceError, match="has not ended"):
        t.facts()
    with t, pytest.raises(TraceError, match="entered once"), t:
        pass
    with pytest.raises(TraceError, match="entered once"), t:
        pass
    with pytest.raises(Exception, match=r"expected what shardlint\.trace\(\) gave as the trace, got str"):
        shardlint.lint(nn.Linear(2, 2), trace="step", config=False)


def test_without_a_trace_the_rules_say_so():
    report = shardlint.lint(nn.Linear(2, 2), config=False, select=["D701"])
    (outcome,) = report.outcomes
    assert (outcome.status.value, outcome.reason) == ("not-evaluated", "no step was traced (shardlint.trace)")


def test_reentrant_functions_are_put_back_when_patched_before():
    original = vars(CheckpointFunction).get("apply")
    assert original is None
    CheckpointFunction.apply = staticmethod(lambda *args: "mine")
    try:
        with shardlint.trace(nn.Linear(2, 2)):
            pass
        assert checkpoint.checkpoint(lambda: None, use_reentrant=True) == "mine"
    finally:
        del CheckpointFunction.apply
