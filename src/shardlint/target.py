"""What `lint` is pointed at, as live objects. Nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    """

    model: Any = None
    optimizer: Any = None
    checkpoint: str | Path | None = None
    contract: Contract | None = None
    load_info: Mapping[str, Any] | None = None
    data: DataPipeline | None = None
    trace: Any = None
    name: str = ""


@frozen(kw_only=True)
class LiveTarget:
    """
    The live objects that a heavy rule may read, and its limits.

    `progress(done, total, what)` is called with bytes done and to do. `max_memory` is in bytes, None without a limit.
    `sample` is the fraction of the weights to compare; below one, nothing passes. `reports` is a folder for report
    files. `reference` is another checkpoint to compare `checkpoint` with, when there is no model. `renames` are the
    owner's renamings of checkpoint keys. `external` describes tensors outside the module
    (`shardlint.weights.ExternalState`). `replicas` is `digest` or `full`, None for what the rule's options say.
    `rank_timeout` is how many seconds a rank of a job may be silent, None for the rule's own limit. `stop` is asked
    again and again whether to end early, with what was found until then.
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
    replicas: Literal["digest", "full"] | None = None
    rank_timeout: float | None = None
    stop: Callable[[], bool] | None = None
