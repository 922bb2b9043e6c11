"""Wrappers that no list names: modules that leave their child's segment out of their own names."""

import pytest
import torch
from torch import nn

from shardlint.collect.model import model_facts
from shardlint.introspect.walk import walk
from shardlint.introspect.wrappers import wrapping


def strip_hook(segment):
    def hook(module, state, prefix, metadata):
        for key in [key for key in state if key.startswith(f"{prefix}{segment}.")]:
            state[key.replace(f"{prefix}{segment}.", prefix, 1)] = state.pop(key)

    return hook


def by_hook(segment):
    class Around(nn.Module):
        def __init__(self, inner):
            super().__init__()
            setattr(self, segment, inner)
            self._register_state_dict_hook(strip_hook(segment))

    return Around


def by_names(segment):
    class Around(nn.Module):
        def __init__(self, inner):
            super().__init__()
            setattr(self, segment, inner)

        def named_parameters(self, *args, **options):
            for name, parameter in super().named_parameters(*args, **options):
                yield name.replace(f"{segment}.", ""), parameter

    return Around


def by_state_dict(segment):
    class Around(nn.Module):
        def __init__(self, inner):
            super().__init__()
            setattr(self, segment, inner)

        def state_dict(self, *args, **options):
            return getattr(self, segment).state_dict(*args, **options)

    return Around


def renamed(kind, name):
    return type(name, (kind,), {})


def names_of(model):
    return [tensor.fqn for tensor in model_facts(walk(model)).tensors]


@pytest.mark.parametrize(
    "around",
    [
        by_hook("_wrapped_module"),
        by_hook("inner"),
        by_names("_swap_wrapped_module"),
        by_names("_anything"),
        by_state_dict("core"),
        renamed(by_hook("_wrapped_module"), "CheckpointWrapper"),
    ],
)
def test_what_strips_itself_is_a_wrapper(around):
    model = nn.Sequential(around(nn.Linear(2, 2)), nn.Linear(2, 2), around(around(nn.Linear(2, 2, bias=False))))
    assert names_of(model) == ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight"]
    assert names_of(around(nn.Linear(2, 2))) == ["weight", "bias"]


class Kept(nn.Module):
    """A child of its own, below names that it keeps."""

    def __init__(self, inner):
        super().__init__()
        self._wrapped_module = inner


class NamesAlone(by_names("net")):
    """A public child that only `named_parameters()` leaves out: every checkpoint has its name."""


class Counted(by_hook("_wrapped_module")):
    def __init__(self, inner):
        super().__init__(inner)
        self.scale = nn.Parameter(torch.ones(1))


class Broken(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self._inner = inner

    def named_parameters(self, *args, **options):
        raise RuntimeError("not before the first forward")


@pytest.mark.parametrize("around", [Kept, NamesAlone, Counted, Broken, nn.Sequential])
def test_what_keeps_its_child_in_its_names_is_none(around):
    assert wrapping(around(nn.Linear(2, 2))) is None


def test_nothing_below_that_acts_when_it_is_saved_is_asked():
    inner = nn.Linear(2, 2)
    inner.register_state_dict_pre_hook(lambda *_: pytest.fail("the model was asked to save itself"))
    assert wrapping(by_state_dict("core")(inner)) is None


def test_the_kind_follows_the_name_of_the_class():
    wrapper = renamed(by_hook("_wrapped_module"), "CheckpointWrapper")
    (facts,) = model_facts(walk(nn.Sequential(wrapper(nn.Linear(2, 2))))).wrappers
    assert (facts.fqn, facts.kind, facts.wrapped_type) == (
        "0",
        "activation-checkpoint",
        "torch.nn.modules.linear.Linear",
    )


def test_a_wrapper_around_nothing_is_listed():
    wrapper = type("CheckpointWrapper", (nn.Module,), {})
    empty = wrapper()
    empty._wrapped_module = None
    (facts,) = model_facts(walk(nn.Sequential(empty))).wrappers
    assert (facts.fqn, facts.wrapped_type) == ("0", None)
    assert walk(empty).root is empty
