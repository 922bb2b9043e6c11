"""Gradients are observed when they are accumulated, whatever order a loop steps and clears in."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

import shardlint


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def backward(model, scale=1.0):
    loss = model(torch.ones(3, 4)).square().mean() * scale
    loss.backward()
    return loss


def by_closure(optimizer_class, **more):
    def run(model):
        optimizer = optimizer_class(model.parameters(), **more)

        def closure():
            optimizer.zero_grad()
            return backward(model)

        with shardlint.trace(model, optimizer) as t:
            optimizer.step(closure)
        return t, optimizer

    return run


def by_named_closure(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with shardlint.trace(model, optimizer) as t:
        optimizer.step(closure=lambda: backward(model))
        optimizer.zero_grad()
    return t, optimizer


def by_hand(model):
    with shardlint.trace(model) as t:
        backward(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.1)
                parameter.grad = None
    return t, None


def in_the_backward(model):
    """Each parameter has an optimizer of its own, which steps and clears as soon as its gradient is there."""
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)
    with shardlint.trace(model) as t:
        backward(model)
    return t, None


def skipped_by_a_scaler(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    with shardlint.trace(model, optimizer) as t:
        scaler.scale(model(torch.ones(3, 4) * 1e10).square().sum() * 1e30).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return t, optimizer


LOOPS = {
    "closure of SGD": by_closure(torch.optim.SGD, lr=0.1),
    "closure of LBFGS": by_closure(torch.optim.LBFGS, max_iter=3),
    "named closure": by_named_closure,
    "by hand": by_hand,
    "in the backward": in_the_backward,
    "skipped by a scaler": skipped_by_a_scaler,
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_sound_loop_is_silent(loop):
    model = small()
    trace, optimizer = loop(model)
    report = shardlint.lint(model, optimizer=optimizer, trace=trace, config=False, select=["D7"])
    assert not report.findings, [(finding.code, finding.subject, finding.message) for finding in report.findings]
    assert all(gradient.accumulated for gradient in trace.runtime.gradients)


@pytest.mark.parametrize("loop", ["closure of SGD", "named closure", "by hand"])
def test_a_gradient_that_is_nan_is_found_in_every_loop(loop):
    model = small()
    model[2].weight.register_hook(lambda gradient: gradient * float("nan"))
    trace, optimizer = LOOPS[loop](model)
    report = shardlint.lint(model, optimizer=optimizer, trace=trace, config=False, select=["D707"])
    assert [finding.subject for finding in report.findings] == ["2.weight"]


def test_a_gradient_that_is_cleared_before_the_step_is_found():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with shardlint.trace(model, optimizer) as t:
        backward(model)
        model[0].weight.grad = None
        optimizer.step()
    report = shardlint.lint(model, optimizer=optimizer, trace=t, config=False, select=["D706"])
    ((subject, message),) = [(finding.subject, finding.message) for finding in report.findings]
    assert subject == "0.weight"
    assert "gone when the optimizer stepped" in message


def test_synchronisation_that_was_left_switched_off(one_rank):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    model[1].set_requires_gradient_sync(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with shardlint.trace(model, optimizer) as t:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    report = shardlint.lint(model, optimizer=optimizer, trace=t, config=False, select=["D706"])
    assert [finding.subject for finding in report.findings] == ["1"]


def test_a_step_within_a_step_counts_once():
    class Outer(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    model = small()
    optimizer = Outer(model.parameters(), lr=0.1)
    with shardlint.trace(model, optimizer) as t:
        backward(model)
        optimizer.step()
    assert t.runtime.looks == ("optimizer-step",)


def test_a_step_that_raises_does_not_hide_the_next():
    class Stranger:
        def __init__(self):
            self.calls = 0

        def step(self):
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("overflow")

    model, optimizer = small(), Stranger()
    with shardlint.trace(model, optimizer) as t:
        for _ in range(2):
            backward(model)
            try:
                optimizer.step()
            except RuntimeError:
                continue
    assert t.runtime.looks == ("optimizer-step", "optimizer-step")


class Factors(nn.Module):
    def __init__(self, container):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.inner = nn.Module()
        self.inner.factors = container

    def forward(self, x):
        factors = self.inner.factors
        values = factors.values() if isinstance(factors, nn.ParameterDict) else factors
        x = self.linear(x)
        for factor in values:
            x = x @ factor
        return x


def parameters():
    return [nn.Parameter(torch.eye(3)) for _ in range(2)]


@pytest.mark.parametrize(
    "container",
    [nn.ParameterList(parameters()), nn.ParameterDict(dict(zip("ab", parameters(), strict=True)))],
    ids=["list", "dict"],
)
def test_a_container_of_parameters_is_no_unit(container):
    model = nn.Sequential(Factors(container))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with shardlint.trace(model, optimizer) as t:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    report = shardlint.lint(model, optimizer=optimizer, trace=t, config=False, select=["D7"])
    assert not report.findings
    assert {unit.name for unit in t.runtime.units} == {"0", "0.linear"}


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def encode(self, x):
        return torch.tanh(self.fc(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower, self.head = Tower(), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.tower.encode(x))


@pytest.mark.parametrize("registered", [True, False])
def test_a_registered_method_is_a_forward(one_rank, registered):
    net = Net()
    fully_shard(net.tower)
    fully_shard(net)
    if registered:
        register_fsdp_forward_method(net.tower, "encode")
    before = dict(vars(net.tower._get_fsdp_state()))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.MonkeyPatch.context() as patch:
        if not registered:
            patch.setattr(net.tower.fc, "forward", lambda x: x)  # the sharded weights cannot be used
        with shardlint.trace(net, optimizer) as t:
            net(torch.ones(3, 8)).square().mean().backward()
            optimizer.step()
    assert set(vars(net.tower._get_fsdp_state())) == set(before)
    report = shardlint.lint(net, optimizer=optimizer, trace=t, config=False, select=["D701"])
    assert bool(report.findings) is not registered


VIEWS = {
    "T": lambda w: w.T,
    "mT": lambda w: w.mT,
    "data": lambda w: w.data.t(),
    "detach": lambda w: w.detach().t(),
}


class ReadsWeight(nn.Module):
    def __init__(self, view):
        super().__init__()
        self.head, self.view = nn.Linear(4, 4, bias=False), view

    def forward(self, x):
        return x @ self.view(self.head.weight)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_a_sharded_weight_is_a_use(one_rank, name):
    model = ReadsWeight(VIEWS[name])
    fully_shard(model.head)
    fully_shard(model)
    with pytest.raises(RuntimeError, match="Tensor and DTensor"), shardlint.trace(model) as t:
        model(torch.ones(2, 4)).sum().backward()
    assert {use.parameter for use in t.runtime.direct_uses} == {"head.weight"}


def test_reading_what_a_sharded_weight_is_like_is_no_use(one_rank):
    model = nn.Sequential(nn.Linear(4, 4))
    fully_shard(model[0])
    fully_shard(model)
    with shardlint.trace(model) as t:
        model(torch.ones(2, 4)).sum().backward()
        weight = model[0].weight
        assert (weight.shape, weight.dtype, weight.device.type, weight.is_leaf) is not None
        weight.detach().norm()
    assert t.runtime.direct_uses == ()
