"""Tensor facts: shape, dtype, device, layout and memory of each parameter and buffer, read without touching values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ..facts import TensorFacts, TensorLayout
from ..introspect.attributes import read
from ..introspect.walk import Walk, WalkedTensor
from ..names import natural_key
from .fast_build import open_class
from .sharding.beside import Beside

DIGEST_BYTES = 1 << 22
"""Of larger buffers (masks, tables) no digest is taken: reading them all takes longer than everything else."""


SAMPLED = 8
"""So many matrices of a model are looked into where ranks tell equal models from different ones."""


class TensorReader:
    """
    Turns walked tensors into facts.

    `beside` are the layouts that stand beside plain local tensors. Dtypes, devices and layouts are few, so their texts
    are kept; places in memory are numbered as they are met. With `digests` the values of non-persistent buffers are
    read, so that ranks can compare them.
    """

    def __init__(self, beside: Mapping[int, Beside] = MappingProxyType({}), *, digests: bool = False) -> None:
        import torch

        self._beside = beside
        self._digests = digests

        self._ordinary = frozenset({torch.nn.Parameter, torch.Tensor})
        self._open: Any = open_class(TensorFacts)
        self._texts: dict[Any, str] = {}
        self._layouts: dict[Any, tuple[Any, TensorLayout]] = {}
        self._places: dict[tuple[str, int], int] = {}

    def read(self, walked: WalkedTensor) -> TensorFacts:
        """Return the facts of one tensor; what cannot be read is said in `unreadable`."""
        try:
            if id(walked.tensor) in self._beside:
                return self._part(walked, self._beside[id(walked.tensor)])
            if type(walked.tensor) in self._ordinary and len(walked.names) == 1:
                return self._plain(walked)
            return self._special(walked)
        except Exception as error:  # tensor classes run their own code in every property
            reason = _lazy_reason(walked.tensor) or f"{type(error).__name__}: {error}"
            return self._facts(walked, shape=(), dtype="", device="", is_meta=False, unreadable=reason)

    def _plain(self, walked: WalkedTensor) -> TensorFacts:
        # The common case, written out: one name, an ordinary tensor. It decides how long a large model takes.
        names, tensor, texts = walked.names, walked.tensor, self._texts
        is_meta = tensor.is_meta
        dtype, device = tensor.dtype, tensor.device
        device_text = texts.get(device) or self._text(device)
        facts: Any = object.__new__(self._open)
        facts.fqn = names[0]
        facts.aliases = tuple(names)
        facts.kind = walked.kind
        facts.shape = tuple(tensor.shape)
        facts.dtype = texts.get(dtype) or self._text(dtype)
        facts.device = device_text
        facts.requires_grad = tensor.requires_grad
        facts.is_meta = is_meta
        facts.persistent = None if walked.kind == "parameter" else not walked.hidden
        facts.local_shape = None
        facts.layout = None
        facts.storage = None if is_meta else self._place(tensor, device_text)
        facts.hidden_aliases = ()
        facts.unreadable = None
        facts.digest = digest_of(tensor) if self._digests and walked.hidden else None
        facts.__class__ = TensorFacts
        return facts  # type: ignore[no-any-return]

    def _special(self, walked: WalkedTensor) -> TensorFacts:
        tensor = walked.tensor
        lazy = _lazy_reason(tensor)
        if lazy is not None:
            device, dtype = self._text(tensor.device), self._text(tensor.dtype)
            return self._facts(walked, shape=(), dtype=dtype, device=device, is_meta=False, unreadable=lazy)
        layout = self._layout(tensor)
        local = _local_tensor(tensor) if layout is not None else None
        is_meta = bool(tensor.is_meta) or bool(read(local, "is_meta", False))
        device = self._text(tensor.device)
        return self._facts(
            walked,
            shape=tuple(int(size) for size in tensor.shape),
            dtype=self._text(tensor.dtype),
            device=device,
            is_meta=is_meta,
            local_shape=None if local is None else tuple(int(size) for size in local.shape),
            layout=layout,
            storage=None if is_meta else self._place(tensor if local is None else local, device),
            digest=digest_of(tensor) if self._digests and walked.hidden and layout is None else None,
        )

    def _part(self, walked: WalkedTensor, beside: Beside) -> TensorFacts:
        """The facts of a plain local part: the shape is that of the whole, as a distributed tensor gives it."""
        tensor, mesh = walked.tensor, beside.mesh
        device, is_meta = self._text(tensor.device), bool(tensor.is_meta)
        texts = tuple(placement.text for placement in beside.placements)
        return self._facts(
            walked,
            shape=beside.shape,
            dtype=self._text(tensor.dtype),
            device=device,
            is_meta=is_meta,
            local_shape=tuple(int(size) for size in tensor.shape),
            layout=TensorLayout(mesh_axes=mesh.axes, mesh_shape=mesh.shape, placements=texts),
            storage=None if is_meta else self._place(tensor, device),
        )

    def _facts(
        self,
        walked: WalkedTensor,
        *,
        shape: tuple[int, ...],
        dtype: str,
        device: str,
        is_meta: bool,
        local_shape: tuple[int, ...] | None = None,
        layout: TensorLayout | None = None,
        storage: int | None = None,
        unreadable: str | None = None,
        digest: str | None = None,
    ) -> TensorFacts:
        names = walked.names
        if len(names) > 1:
            names = sorted(set(names), key=natural_key)
        hidden = walked.hidden
        persistent = None if walked.kind == "parameter" else len(hidden) < len(walked.names)
        return TensorFacts(
            fqn=names[0],
            aliases=tuple(names),
            kind=walked.kind,
            shape=shape,
            dtype=dtype,
            device=device,
            requires_grad=bool(read(walked.tensor, "requires_grad", False)),
            is_meta=is_meta,
            persistent=persistent,
            local_shape=local_shape,
            layout=layout,
            storage=storage,
            hidden_aliases=tuple(sorted(set(hidden), key=natural_key)) if hidden and persistent else (),
            unreadable=unreadable,
            digest=digest,
        )

    def _text(self, value: Any) -> str:
        text = self._texts.get(value)
        if text is None:
            text = self._texts[value] = str(value).removeprefix("torch.")
        return text

    def _place(self, tensor: Any, device: str) -> int | None:
        # The address of the first element and not the storage: views of one flat buffer share the storage, and
        # they are not tied. An empty storage has address 0.
        try:
            address = tensor.data_ptr()
        except Exception:  # sparse and wrapper tensors have none
            return None
        return self._places.setdefault((device, address), len(self._places)) if address else None

    def _layout(self, tensor: Any) -> TensorLayout | None:
        placements = read(tensor, "placements")
        mesh = next(filter(_some, (read(tensor, name) for name in ("device_mesh", "mesh", "_device_mesh"))), None)
        if mesh is None or not isinstance(placements, (tuple, list)):
            return None
        key = (id(mesh), tuple(map(repr, placements)))
        if key not in self._layouts:
            layout = TensorLayout(mesh_axes=_axes(mesh), mesh_shape=_mesh_shape(mesh), placements=key[1])
            self._layouts[key] = (mesh, layout)  # the mesh too: its id is part of the key
        return self._layouts[key][1]


def digest_of(tensor: Any) -> str | None:
    """A digest of the bits of an ordinary tensor; None when it has none that can be read, or too many."""
    import torch

    if tensor.is_meta or tensor.numel() * tensor.element_size() > DIGEST_BYTES:
        return None
    try:
        with torch.no_grad():
            # A copy: what `Tensor.numpy` has seen can never be resized again, and FSDP frees its memory by resizing.
            flat = tensor.detach().clone().cpu().contiguous().reshape(-1).view(torch.uint8)
        return hashlib.blake2b(flat.numpy().data, digest_size=8).hexdigest()
    except Exception:  # sparse, quantised, or of another backend
        return None


def sample_of(walk: Walk) -> str | None:
    """A digest of the first values of the first matrices, of this rank's parts; None when none can be read."""
    digests: list[str] = []
    for walked in walk.tensors:
        if len(digests) == SAMPLED:
            break
        local = read(walked.tensor, "_local_tensor", walked.tensor)
        if walked.kind == "parameter" and read(local, "ndim", 0) > 1 and read(local, "is_meta", True) is False:
            digest = digest_of(local[:1].reshape(-1)[:64])
            digests += [digest] if digest is not None else []
    return hashlib.blake2b("".join(digests).encode(), digest_size=8).hexdigest() if digests else None


def _some(value: Any) -> bool:
    return value is not None


def _axes(mesh: Any) -> tuple[str, ...]:
    return tuple(str(name) for name in read(mesh, "mesh_dim_names") or ())


def _mesh_shape(mesh: Any) -> tuple[int, ...]:
    shape = read(mesh, "shape")
    if callable(shape) or shape is None:
        shape = read(read(mesh, "mesh"), "shape") or ()
    return tuple(int(size) for size in shape)


def _local_tensor(tensor: Any) -> Any:
    """The local part of a distributed tensor: the attribute where there is one, `to_local()` costs an operation."""
    local = read(tensor, "_local_tensor")
    if local is not None:
        return local
    to_local: Callable[[], Any] | None = read(tensor, "to_local")
    if to_local is None:
        return None
    import torch

    with torch.no_grad():
        return to_local()


def _lazy_reason(tensor: Any) -> str | None:
    """Why a lazy tensor has no shape; None when it is not a lazy tensor."""
    if any(base.__name__ == "UninitializedTensorMixin" for base in type(tensor).__mro__):
        return "uninitialised: its module takes the shape from the first forward, which has not run"
    return None
