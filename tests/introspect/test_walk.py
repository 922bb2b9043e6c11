"""The walk: names, aliases, wrappers by type, depth, cycles, and shared modules nested without end."""

import functools

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper, offload_wrapper

from shardlint.introspect import walk as walk_module
from shardlint.introspect.walk import walk
from shardlint.introspect.wrappers import wrapper_segment


def tensor_names(model):
    return {name for item in walk(model).tensors for name in item.names}


def module_names(model):
    return {name for item in walk(model).modules if not item.wrapper for name in item.names}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(2, 3)
        self.down = nn.Linear(3, 2)
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("cache", torch.ones(1), persistent=False)

    def forward(self, x):
        return self.down(self.up(x)) * self.scale


def test_names_are_those_of_torch():
    model = nn.Sequential(Block(), nn.ModuleDict({"a": Block(), "b": nn.ParameterList([nn.Parameter(torch.ones(1))])}))
    named = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    assert tensor_names(model) == named
    assert module_names(model) == {name for name, _ in model.named_modules()}


def test_every_alias_of_shared_modules_and_tied_tensors():
    block = Block()
    model = nn.Sequential(block, Block(), block)
    model[1].down.bias = model[1].up.bias = nn.Parameter(torch.ones(3))
    found = walk(model)
    shared = found.find_module(block)
    assert shared.names == ["0", "2"]
    assert shared.fqn == "0"
    assert found.find_tensor(block.up.weight).names == ["0.up.weight", "2.up.weight"]
    assert found.find_tensor(model[1].up.bias).names == ["1.up.bias", "1.down.bias"]
    assert found.find_tensor(model[1].up.bias).fqn == "1.down.bias"
    expected = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    expected |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    assert tensor_names(model) == expected


def test_numbers_count_as_numbers_in_the_smallest_alias():
    block = nn.Linear(1, 1)
    model = nn.ModuleList([nn.Identity() for _ in range(11)])
    model[10], model[9] = block, block
    assert walk(model).find_module(block).fqn == "9"


@pytest.mark.parametrize(
    ("wrap", "kind"), [(checkpoint_wrapper, "activation-checkpoint"), (offload_wrapper, "activation-offload")]
)
def test_activation_wrappers_leave_no_segment(wrap, kind):
    model = nn.Sequential(wrap(Block()), Block())
    plain = nn.Sequential(Block(), Block())
    assert tensor_names(model) == tensor_names(plain)
    assert module_names(model) == module_names(plain)
    assert [(item.fqn, item.wrapper) for item in walk(model).wrappers] == [("0", kind)]


def test_compiled_modules_leave_no_segment():
    model = nn.Sequential(torch.compile(Block()), Block())
    assert tensor_names(torch.compile(model)) == tensor_names(nn.Sequential(Block(), Block()))
    found = walk(torch.compile(model))
    assert [(item.fqn, item.wrapper) for item in found.wrappers] == [("", "compile"), ("0", "compile")]
    assert found.root is model


def test_wrappers_in_wrappers():
    inner = Block()
    found = walk(nn.DataParallel(torch.compile(checkpoint_wrapper(inner))))
    assert [item.wrapper for item in found.wrappers] == ["dp", "compile", "activation-checkpoint"]
    assert found.root is inner
    assert {item.fqn for item in found.tensors} == {item.fqn for item in walk(inner).tensors}


def test_subclasses_of_wrappers_count():
    class Mine(nn.DataParallel):
        pass

    assert tensor_names(Mine(Block())) == tensor_names(Block())


@pytest.mark.parametrize("segment", ["module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_a_real_child_with_a_wrappers_segment_keeps_its_name(segment):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(segment, Block())

    class DistributedDataParallel(Holder):
        """Named like a wrapper, but from a package whose children are real."""

    assert f"{segment}.up.weight" in tensor_names(Holder())
    assert f"{segment}.up.weight" in tensor_names(DistributedDataParallel())


def test_other_children_of_a_wrapper_keep_their_names():
    wrapped = checkpoint_wrapper(Block())
    wrapped.extra = nn.Linear(1, 1)
    assert {"up.weight", "extra.weight"} <= tensor_names(wrapped)


def test_wrapper_segments_are_known_by_class():
    assert wrapper_segment(nn.DataParallel) == ("module", "dp")
    assert wrapper_segment(nn.Linear) is None


def test_depth_is_no_limit():
    model = functools.reduce(lambda inner, _: nn.Sequential(inner), range(5000), nn.Linear(1, 1))
    (weight, bias) = walk(model).tensors
    assert weight.fqn == ".".join(["0"] * 5000) + ".weight"
    assert bias.names[0].endswith(".bias")


def test_cycles_end_and_are_told():
    model = nn.Sequential(Block())
    model[0].parent = model
    model[0].itself = model[0]
    found = walk(model)
    assert found.cycles == ["0.parent", "0.itself"]
    assert len(found.tensors) == 6


def nested_sharing(depth):
    model = nn.Linear(1, 1)
    for _ in range(depth):
        model = nn.ModuleDict({"a": model, "b": model})
    return model


def test_nested_sharing_gives_every_alias_while_it_can():
    found = walk(nested_sharing(6))
    assert len(found.tensors[0].names) == 64
    assert found.cut == []


def test_nested_sharing_without_end_is_bounded_and_told():
    found = walk(nested_sharing(40))
    assert len(found.modules) == 41
    assert len(found.tensors[0].names) == walk_module.ALIAS_LIMIT
    assert found.tensors[0].fqn == ".".join(["a"] * 40) + ".weight"
    assert ".".join(["a"] * 40) in found.cut


def test_the_sum_of_all_revisits_is_bounded(monkeypatch):
    monkeypatch.setattr(walk_module, "REVISIT_LIMIT", 10)
    shared = nn.Sequential(*[nn.Linear(1, 1) for _ in range(8)])
    found = walk(nn.ModuleList([shared] * 4))
    assert len(found.modules) == 10
    assert sum(len(item.names) for item in found.modules) == 10 + 10
    assert found.cut


def test_names_with_dots_and_keys_that_are_no_strings():
    model = nn.Sequential(nn.Linear(1, 1))
    model._modules["a.b"] = nn.Linear(1, 1)
    model._modules[7] = nn.Linear(1, 1)
    model._parameters["\ud800"] = nn.Parameter(torch.ones(1))
    assert {"a.b.weight", "7.bias", "\\ud800"} <= tensor_names(model)


def test_what_is_no_module_in_the_registry_is_passed_over():
    model = nn.Sequential(nn.Linear(1, 1))
    model._modules.update(number=3, nothing=None, text="x")
    assert len(walk(model).modules) == 2


def test_a_module_whose_init_was_never_called():
    class Empty(nn.Module):
        def __init__(self):
            pass

    assert [item.fqn for item in walk(Empty()).modules] == [""]


def test_overridden_accessors_do_not_matter():
    class Hostile(Block):
        def named_modules(self, *args, **kwargs):
            raise RuntimeError("no")

        named_parameters = named_buffers = children = modules = parameters = buffers = named_children = named_modules

        def __getattr__(self, name):
            raise RuntimeError(name)

        @property
        def device(self):
            raise RuntimeError("no device")

    model = nn.Sequential(Block())
    model._modules["h"] = Hostile.__new__(Hostile)
    model._modules["h"].__dict__.update(Block().__dict__)
    assert "h.up.weight" in tensor_names(model)


def test_hidden_names_are_those_of_non_persistent_buffers():
    model = Block()
    other = Block()
    other._buffers["scale"] = model._buffers["cache"]  # non-persistent there, persistent here
    pair = nn.Sequential(model, other)
    record = walk(pair).find_tensor(model.cache)
    assert record.names == ["0.cache", "1.scale"]
    assert record.hidden == ("0.cache",)


def test_scripted_modules_are_walked():
    model = nn.Sequential(torch.jit.script(nn.Linear(2, 2)))
    assert tensor_names(model) == {"0.weight", "0.bias"}
