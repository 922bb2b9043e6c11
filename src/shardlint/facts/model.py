"""The `model` section: the finally built module tree, its tensors, and what its class declares."""

from __future__ import annotations

import math

from attrs import frozen

from .adapters import AdapterFacts
from .frozen import EMPTY, FrozenDict
from .unknown import Unknown


@frozen(kw_only=True)
class TensorLayout:
    """How a DTensor is laid out: mesh axis names (empty when unnamed), mesh shape, placements as text."""

    mesh_axes: tuple[str, ...] = ()
    mesh_shape: tuple[int, ...] = ()
    placements: tuple[str, ...] = ()


@frozen(kw_only=True)
class TensorFacts:
    """
    One parameter or buffer, by identity: tied names are aliases of one record.

    `fqn` is the smallest alias. `shape` is the global shape, in elements. `dtype` is torch's name without the prefix
    (`bfloat16`). `storage` numbers the places in memory at which the tensors of this snapshot begin (equal number:
    same first element) and is None for meta tensors and where no memory can be read. `persistent` is None for
    parameters; `hidden_aliases` are names under which a buffer is registered as non-persistent although another name
    is persistent. `unreadable` says why shape, dtype or device could not be read (an uninitialised lazy parameter, a
    tensor class that refuses): they are then empty and mean nothing. `digest` stands for the values of a non-persistent
    buffer in a job of several ranks, None elsewhere and for large ones.
    """

    fqn: str
    aliases: tuple[str, ...]
    kind: str  # "parameter" or "buffer"
    shape: tuple[int, ...]
    dtype: str
    device: str
    requires_grad: bool
    is_meta: bool
    persistent: bool | None = None
    local_shape: tuple[int, ...] | None = None
    layout: TensorLayout | None = None
    storage: int | None = None
    hidden_aliases: tuple[str, ...] = ()
    unreadable: str | None = None
    digest: str | None = None

    @property
    def is_parameter(self) -> bool:
        """Whether the tensor is a parameter (else it is a buffer)."""
        return self.kind == "parameter"

    @property
    def in_state_dict(self) -> bool:
        """Whether `state_dict()` holds the tensor: parameters and persistent buffers."""
        return self.kind == "parameter" or bool(self.persistent)

    @property
    def state_dict_names(self) -> tuple[str, ...]:
        """The aliases under which `state_dict()` holds the tensor."""
        if not self.in_state_dict:
            return ()
        if not self.hidden_aliases:
            return self.aliases
        return tuple(alias for alias in self.aliases if alias not in self.hidden_aliases)

    @property
    def numel(self) -> int:
        """Number of elements of the global tensor."""
        return math.prod(self.shape)


@frozen(kw_only=True)
class ModuleFacts:
    """
    One module, by identity; wrappers are listed apart (`WrapperFacts`).

    `qualified_type` is the class as its author wrote it: classes that sharding derives from it are looked through.
    `forward_signature` has no annotations and no defaults but plain ones. `placeholder` says why the module cannot be
    executed, when it cannot. `settings` are the plain attributes that results may depend on: a dropout rate, an
    epsilon, the name of an activation function.
    """

    fqn: str
    aliases: tuple[str, ...]
    qualified_type: str
    forward_signature: str
    training: bool
    placeholder: str | None = None
    settings: FrozenDict = EMPTY


WRAPPER_KINDS = ("activation-checkpoint", "activation-offload", "compile", "ddp", "dp", "fsdp1", "wrapper")


@frozen(kw_only=True)
class WrapperFacts:
    """A wrapper that was removed from names: `kind` is one of `WRAPPER_KINDS`.

    `wrapped_type` is None for a wrapper that wraps nothing.
    """

    fqn: str
    kind: str
    qualified_type: str
    wrapped_type: str | None


@frozen(kw_only=True)
class RebuildableBufferFacts:
    """A derived buffer that its module promises to rebuild, and what is left of the promise."""

    fqn: str
    has_source: bool
    has_factory: bool
    present: bool
    persistent: bool
    is_meta: bool


@frozen(kw_only=True)
class ClassDeclaration:
    """
    What one module class of the tree declares about loading (Transformers' class attributes).

    `fqn` is the module's name, empty for the root. `tied_weights` is {target: source} as declared (names or regular
    expressions, relative to the module) when a mapping was written; `tied_weights_names` are the names when a sequence
    was; `tied_weights_form` is the Python type that it was written in (`dict`, `list`, `NoneType`, ...).
    `active_ties` are the ties in force, expanded to {target: source} tensor names relative to the module: empty when
    the configuration turns tying off, None when the library keeps no such record. `tie_word_embeddings` is the flag
    of the module's own configuration, None when that has no such flag.
    """

    fqn: str
    qualified_type: str
    tied_weights: FrozenDict = EMPTY
    tied_weights_form: str = "NoneType"
    tied_weights_names: tuple[str, ...] = ()
    active_ties: FrozenDict | None = None
    keep_in_fp32: tuple[str, ...] = ()
    keep_in_fp32_strict: tuple[str, ...] = ()
    ignore_on_load_missing: tuple[str, ...] = ()
    ignore_on_load_unexpected: tuple[str, ...] = ()
    ignore_on_save: tuple[str, ...] = ()
    no_split_modules: tuple[str, ...] = ()
    base_model_prefix: str = ""
    base_model_present: bool = False
    tie_word_embeddings: bool | None = None


@frozen(kw_only=True)
class HiddenFacts:
    """
    An attribute (`name`, the FQN of its module and its own name) that keeps modules or parameters in a plain container.

    `members` of the classes `types` hold `parameters` parameters that no module of the tree registers; `trainable` are
    those that need gradients, `with_gradient` those that have one.
    """

    name: str
    types: tuple[str, ...] = ()
    members: int = 0
    parameters: int = 0
    trainable: tuple[str, ...] = ()
    with_gradient: tuple[str, ...] = ()


@frozen(kw_only=True)
class PartConfig:
    """
    The configuration that the module `fqn` (empty for the root) carries for the parameters below it.

    `unreadable` says why it could not be read: `config` is then empty and means nothing.
    """

    fqn: str
    config: FrozenDict = EMPTY
    unreadable: str = ""


@frozen(kw_only=True)
class SkippedName:
    """
    One name that the quantisation is told to leave out, under the setting that lists it.

    `matched` are the modules with tensors that the library leaves out by it, or why nobody knows.
    """

    setting: str
    name: str
    matched: tuple[str, ...] | Unknown


@frozen(kw_only=True)
class ModelCounts:
    """Counts by identity, and the elements of all parameters."""

    modules: int
    parameters: int
    buffers: int
    parameter_elements: int


@frozen(kw_only=True)
class ModelFacts:
    """
    The final module tree.

    `config` is the configuration that describes (nearly) all parameters, as plain values, and `config_fqn` the FQN of
    the module that carries it: a wrapper's is that of the model inside. None when there is none, or when it could not
    be read, which `config_unreadable` then says. Where no configuration describes the whole, `part_configs` are those
    of the parts. `quantisation_skips` are the names that the quantisation is told to leave out, `quantised_heads` the
    modules that it leaves out by default, and that are quantised because a list of one's own replaced the default.
    `offload` says what moves parameters between devices, empty when nothing does.
    `aliases_cut` names modules that have more aliases than were followed (their tensors too), `cycles` the names at
    which a module contains itself.
    `key_mapping` says how checkpoint keys become live names: `identity` when a key is the name itself (give or take
    the base-model prefix), `conversions` when the loader renames or computes, None when nobody knows. `hidden` are
    the plain containers that keep modules or parameters which are not registered. `source` is what the caller said of
    where the model comes from. `sample` is, in a job of several
    ranks, a digest of the first values of some matrices, as this rank holds them.
    """

    qualified_type: str
    model_type: str | None = None
    architectures: tuple[str, ...] = ()
    config: FrozenDict | None = None
    config_fqn: str = ""
    config_unreadable: str = ""
    part_configs: tuple[PartConfig, ...] = ()
    modules: tuple[ModuleFacts, ...] = ()
    tensors: tuple[TensorFacts, ...] = ()
    counts: ModelCounts
    wrappers: tuple[WrapperFacts, ...] = ()
    rebuildable_buffers: tuple[RebuildableBufferFacts, ...] = ()
    declarations: tuple[ClassDeclaration, ...] = ()
    aliases_cut: tuple[str, ...] = ()
    cycles: tuple[str, ...] = ()
    key_mapping: str | None = None
    offload: tuple[str, ...] = ()
    adapters: tuple[AdapterFacts, ...] = ()
    hidden: tuple[HiddenFacts, ...] = ()
    source: FrozenDict = EMPTY
    sample: str | None = None
    quantisation_skips: tuple[SkippedName, ...] = ()
    quantised_heads: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[TensorFacts, ...]:
        """The parameters, in walk order."""
        return tuple(tensor for tensor in self.tensors if tensor.kind == "parameter")

    @property
    def buffers(self) -> tuple[TensorFacts, ...]:
        """The buffers, in walk order."""
        return tuple(tensor for tensor in self.tensors if tensor.kind != "parameter")

    def tensor_by_name(self) -> dict[str, TensorFacts]:
        """Every alias of every tensor, with its record."""
        return {alias: tensor for tensor in self.tensors for alias in tensor.aliases}

    def state_dict_keys(self) -> tuple[str, ...]:
        """The keys of `state_dict()`: all aliases of parameters and persistent buffers."""
        return tuple(alias for tensor in self.tensors if tensor.in_state_dict for alias in tensor.state_dict_names)
