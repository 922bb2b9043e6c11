"""The `plan` section: what a loader would do with a checkpoint and a model, from headers alone."""

from __future__ import annotations

import msgspec
from attrs import frozen


class TensorPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """
    Where one live tensor of `state_dict()` comes from.

    `status` is one of:

    - loaded: `sources` fill it, through `operations` when there are any;
    - tied: it has no source and shares the values of `tied_to`;
    - missing, missing-ignored, missing-excluded: no source; the latter two name the pattern in `reason`;
    - mismatched: the sources give `converted_shape`, which is not `shape`;
    - error: an operation failed, `reason` says how.

    `shape` is the live global shape in elements, `dtype` what the tensor has after loading (torch's name without the
    prefix). `stored_dtypes` are the format's names. `converted_shape` is None where it is `shape` or nothing was
    followed; then `reason` says why.

    A `msgspec.Struct` rather than an attrs class: there are a hundred thousand of them, each built in a tenth of the
    time, and out of sight of the garbage collector, since none can be part of a cycle.
    """

    name: str
    status: str
    shape: tuple[int, ...]
    dtype: str
    sources: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    stored_dtypes: tuple[str, ...] = ()
    converted_shape: tuple[int, ...] | None = None
    tied_to: str | None = None
    reason: str = ""


@frozen(kw_only=True)
class LeftoverKey:
    """
    A stored key that reaches no live tensor.

    `renamed` is its name after all renamings. `reason` is unexpected, ignored (an ignore list of the class, `pattern`
    says which), excluded (a contract's glob, `pattern`), non-persistent (the live buffer is never loaded),
    derived (a buffer that older versions stored and that is recomputed) or other-state (no part of the model: state of
    the optimizer, or another state dict of the same folder).
    """

    key: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    renamed: str
    reason: str
    pattern: str = ""


@frozen(kw_only=True)
class LoadRemark:
    """
    Something that the loader passes over in silence. `kind` is one of:

    - duplicate-source: two keys for one live tensor, the first wins;
    - double-write: two conversions write one live tensor, the last wins;
    - ambiguous-prefix: with and without the base-model prefix a key names a live tensor, `keys` has both;
    - mixed-group: fused and separate copies of one tensor in one checkpoint;
    - shared-pattern: two different conversions take the same source pattern;
    - numbering: the numbers behind a `*` do not run from 0 without a gap, and are ignored;
    - odd-shape: of the tensors that a conversion puts together, `keys` have another shape than the rest, so it fails;
    - integer-cast: stored integers become floating-point values without any scale.
    """

    kind: str
    name: str
    keys: tuple[str, ...]
    detail: str


@frozen(kw_only=True)
class TiePlan:
    """
    A declared tie. `both_stored` when the checkpoint has a source for either end.

    `equal` says whether the stored bytes are the same, None when they were not compared (`detail` says why).
    """

    name: str
    source: str
    both_stored: bool
    equal: bool | None = None
    detail: str = ""


@frozen(kw_only=True)
class RoundTrip:
    """
    A live name that saving and loading do not bring back to itself.

    `key` is its source, `saved` the name under which it would be saved, `loaded` where that name would be loaded.
    """

    name: str
    key: str
    saved: str
    loaded: str


@frozen(kw_only=True)
class HeadFacts:
    """
    What the class that a checkpoint names and the class that loads it do not have in common, of what found no place.

    `stored_class` is the class that the checkpoint names, `assumed` says that it names none and this one was taken.
    `new` are live names that only the loading class has, `lacking` those that the stored class has as well; `unused`
    are stored keys that only the stored class has. What is in none of them belongs to neither class.
    """

    stored_class: str
    assumed: bool = False
    new: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()


@frozen(kw_only=True)
class Renaming:
    """
    A renaming, as an entry of `checkpoint.renames`, that would give the tensors `names` the stored `keys` as sources.

    `source` is a regular expression and `target` its replacement. The load was planned with it to be sure.
    """

    source: str
    target: str
    keys: tuple[str, ...]
    names: tuple[str, ...]


@frozen(kw_only=True)
class PlanFacts:
    """
    The whole plan. `loader` names whose rules were followed (`transformers 5.24.0`, `identity`).

    `basis` is `model` (the live module tree) or `config` (a model built on meta from `config.json`). `unread` are
    files that count and could not be read: what they hold is unknown, so missing tensors may lie there.
    `quantization` says which scheme was planned and how, empty without one. `conversions` are those that took part.
    `heads` is None where nothing is without a place, or a class is not one of the library's.
    `cures` are renamings that would give a source to tensors that have none, found by looking at names and shapes.
    `part` stands before the names of the one module whose checkpoint this is, empty where it is the whole model's.
    """

    loader: str
    basis: str
    architecture: str = ""
    tensors: tuple[TensorPlan, ...] = ()
    leftovers: tuple[LeftoverKey, ...] = ()
    remarks: tuple[LoadRemark, ...] = ()
    ties: tuple[TiePlan, ...] = ()
    round_trips: tuple[RoundTrip, ...] = ()
    round_trips_checked: int = 0
    conversions: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    quantization: str = ""
    heads: HeadFacts | None = None
    cures: tuple[Renaming, ...] = ()
    part: str = ""

    def tensor_by_name(self) -> dict[str, TensorPlan]:
        """Every live name with its plan."""
        return {tensor.name: tensor for tensor in self.tensors}

    def names_by_key(self) -> dict[str, tuple[str, ...]]:
        """Every stored key that is used, with the live tensors that it fills."""
        found: dict[str, list[str]] = {}
        for tensor in self.tensors:
            if tensor.tied_to is None:
                for key in tensor.sources:
                    found.setdefault(key, []).append(tensor.name)
        return {key: tuple(names) for key, names in found.items()}
