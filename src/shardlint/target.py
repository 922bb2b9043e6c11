"""What `lint` is pointed at, as live objects. Nothing here imports torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attrs import asdict, evolve, field, frozen

from .facts import Facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from .contract import Contract, DataPipeline


class TargetError(ValueError):
    """A target that cannot be used: what was expected, what was found, what to do."""


@frozen(kw_only=True)
class Target:
    """
    What a builder may return instead of a bare module: the model and everything that belongs to it.

    `load_info` is what `from_pretrained(..., output_loading_info=True)` returned beside the model, or any mapping
    with the keys missing_keys, unexpected_keys and (optionally) loaded_keys, mismatched_keys, error_msgs.
    `checkpoint` is a folder or file. `contract` wins over any provider. `trace` is what `shardlint.trace` gave.
    `external` describes tensors outside the module (`shardlint.weights.ExternalState`). `source` says where the model
    comes from (a commit, a recipe): plain values that stay with its inventory, and are compared with it.
    """

    model: Any = None
    optimizer: Any = None
    checkpoint: str | Path | None = None
    contract: Contract | None = None
    load_info: Mapping[str, Any] | None = None
    data: DataPipeline | None = None
    trace: Any = None
    external: Any = None
    source: Mapping[str, Any] | None = None
    name: str = ""


@frozen(kw_only=True)
class Fusion:
    """
    Stored tensors that another checkpoint stores as one: `sources`, put together along `dim`, are `target`.

    The names are whole, and each `*` in them stands for the same text in all.
    """

    sources: tuple[str, ...]
    target: str
    dim: int = 0


@frozen(kw_only=True)
class LiveTarget:
    """
    The live objects that a heavy rule may read, and its limits.

    `progress(done, total, what)` is called with bytes done and to do. `max_memory` is in bytes, None without a limit.
    `sample` is the fraction of the weights to compare; below one, nothing passes. `reports` is a folder for report
    files. `reference` is another checkpoint to compare `checkpoint` with, when there is no model. `renames` are the
    owner's renamings of checkpoint keys. `external` describes tensors outside the module
    (`shardlint.weights.ExternalState`). `allow_cast` are the dtypes that `checkpoint` may have on purpose where
    `reference` has another one, `fusions` relate tensors of the two. `replicas` is `digest` or `full`, None for what
    the rule's options say. `rank_timeout` is how many seconds a rank of a job may be silent, None for the rule's own
    limit. `stop` is asked again and again whether to end early, with what was found until then.
    """

    model: Any = None
    checkpoint: Path | None = None
    optimizer: Any = None
    max_memory: int | None = None
    progress: Callable[[int, int, str], None] | None = None
    settings: dict[str, Any] = field(factory=dict)
    sample: float = 1.0
    reports: Path | None = None
    reference: Path | None = None
    renames: tuple[tuple[str, str], ...] = ()
    external: Any = None
    allow_cast: tuple[str, ...] = ()
    fusions: tuple[Fusion, ...] = ()
    replicas: Literal["digest", "full"] | None = None
    rank_timeout: float | None = None
    stop: Callable[[], bool] | None = None


def expanded(path: str | Path) -> Path:
    """The path with a leading `~` resolved. Raises `TargetError` for the home folder of a user who does not exist."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise TargetError(f"{str(path)!r}: no home folder is known for it: {error}") from None


def completed(model: Any, more: Target) -> Target:
    """
    `model` when it is a `Target`, else one for it, with what `more` says beside.

    Raises `TargetError` when there is neither a model nor a checkpoint.
    """
    base = model if isinstance(model, Target) else Target(model=model)
    said = {name: value for name, value in asdict(more, recurse=False).items() if value is not None and name != "name"}
    target = evolve(base, **said, name=more.name or base.name)
    if target.model is None and target.checkpoint is None:
        raise TargetError("expected a model or a checkpoint to look at, got neither: the model is None")
    return target


def check_target(target: Target) -> None:
    """
    Raise `TypeError` for a part of `target` that cannot be what it is taken for.

    Optimizers are of many classes, so only what certainly is none is refused; a model is judged where torch is known.
    """
    from .contract import DataPipeline

    if isinstance(target.model, Facts):
        raise TypeError("expected a model or a shardlint.Target, got Facts: facts are linted by shardlint.lint_facts")
    checkpoint, optimizer, data = target.checkpoint, target.optimizer, target.data
    if checkpoint is not None and not isinstance(checkpoint, (str, os.PathLike)):
        raise wrong_argument("checkpoint", "the path of a folder or file", checkpoint)
    if isinstance(optimizer, type):
        raise TypeError(f"optimizer: expected an optimizer, got the class {optimizer.__name__}; pass an instance")
    if isinstance(optimizer, (str, bytes, int, float)):
        raise wrong_argument("optimizer", "an optimizer, or several in a list or mapping", optimizer)
    if data is not None and not isinstance(data, DataPipeline):
        raise wrong_argument("data", "a shardlint.contract.DataPipeline", data)
    if target.source is not None and not isinstance(target.source, Mapping):
        raise wrong_argument("source", "a mapping of plain values", target.source)
    check_external(target.external)


def check_external(external: Any) -> None:
    """Raise `TypeError` for what cannot describe tensors outside the module."""
    methods = ("parameter_names", "shards")
    if external is not None and not all(callable(getattr(external, name, None)) for name in methods):
        raise wrong_argument("external", "an object with the methods parameter_names() and shards()", external)


def wrong_argument(name: str, wanted: str, got: Any) -> TypeError:
    """The error that says what was expected of an argument, and what it is."""
    return TypeError(f"{name}: expected {wanted}, got {got!r} of type {type(got).__name__}")
