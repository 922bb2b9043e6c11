"""Tensors that are not what `torch.Tensor` is: collectors say what they can and never fall over."""

import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from shardlint.collect.model import model_facts
from shardlint.introspect.walk import walk


class Packed(torch.Tensor):
    """A quantised weight as libraries build it: a wrapper without storage, every operation its own."""

    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.bfloat16)

    def __init__(self, data):
        self.data_int8 = data

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:  # nn.Parameter needs this much
            return cls(args[0].data_int8)
        raise NotImplementedError(f"no {function}")


class Refusing(torch.Tensor):
    """Its properties raise."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError("hands off")


class Sharded:
    """A distributed tensor of another framework, told by what it has."""

    class Mesh:
        mesh_dim_names = ("dp", "ep")
        shape = (2, 4)

    def __init__(self):
        self.placements = ("Shard(0)", "Replicate()")
        self.device_mesh = self.Mesh()
        self.shape = torch.Size([8, 2])
        self.dtype = torch.float16
        self.device = torch.device("cpu")
        self.is_meta = False
        self.requires_grad = True
        self._local_tensor = torch.ones(4, 2)


def holding(tensor, registry="_parameters"):
    model = nn.Module()
    getattr(model, registry)["x"] = tensor
    return model


def fact_of(tensor, registry="_parameters"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (found,) = model_facts(walk(holding(tensor, registry))).tensors
    return found


def test_a_wrapper_subclass():
    found = fact_of(nn.Parameter(Packed(torch.ones(2, 3, dtype=torch.int8)), requires_grad=False))
    assert (found.shape, found.dtype, found.storage, found.unreadable) == ((2, 3), "bfloat16", None, None)


def test_a_tensor_that_refuses_is_told():
    found = fact_of(torch.ones(2).as_subclass(Refusing))
    assert found.shape == ()
    assert "hands off" in found.unreadable


@pytest.mark.parametrize(
    ("build", "dtype"),
    [
        (lambda: torch.eye(3).to_sparse(), "float32"),
        (lambda: torch.quantize_per_tensor(torch.ones(3, 3), 0.1, 0, torch.qint8), "qint8"),
        (lambda: torch.ones(3, 3, dtype=torch.float8_e4m3fn), "float8_e4m3fn"),
        (lambda: torch.ones(3, 3, dtype=torch.complex64), "complex64"),
    ],
)
def test_kinds_of_tensors(build, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = build()
    found = fact_of(tensor, "_buffers")
    assert (found.shape, found.dtype, found.unreadable) == ((3, 3), dtype, None)


def test_sparse_compressed_and_nested_tensors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compressed = torch.eye(3).to_sparse_csr()
        nested = torch.nested.nested_tensor([torch.ones(1, 2), torch.ones(3, 2)], layout=torch.jagged)
    assert fact_of(compressed, "_buffers").shape == (3, 3)
    assert fact_of(nested, "_buffers").unreadable or fact_of(nested, "_buffers").shape


def test_fake_tensors_have_no_memory():
    with FakeTensorMode():
        tensor = torch.empty(2, 2)
    found = fact_of(tensor, "_buffers")
    assert (found.shape, found.unreadable) == ((2, 2), None)


def test_a_distributed_tensor_by_what_it_has():
    found = fact_of(Sharded())
    assert (found.shape, found.local_shape, found.dtype) == ((8, 2), (4, 2), "float16")
    assert found.layout.mesh_axes == ("dp", "ep")
    assert found.layout.mesh_shape == (2, 4)
    assert found.layout.placements == ("'Shard(0)'", "'Replicate()'")


@pytest.mark.parametrize("value", [3, "text", [1, 2], object()])
def test_what_is_no_tensor_is_told(value):
    assert fact_of(value, "_buffers").unreadable


def test_tensors_inside_functional_transforms():
    seen = []

    def loss(values):
        model = holding(values, "_buffers")
        seen.append(model_facts(walk(model)).tensors[0])
        return (values**2).sum()

    torch.func.grad(loss)(torch.ones(3))
    torch.func.vmap(loss)(torch.ones(2, 3))
    assert [item.shape for item in seen] == [(3,), (3,)]
