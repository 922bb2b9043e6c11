"""The options of a verification: one object, from the public functions down to every rank's work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import Attribute, field, frozen
from attrs.converters import optional

if TYPE_CHECKING:
    from ..facts import CheckpointFacts, ContractFacts, ModelFacts
    from ..target import Fusion
    from .compare.threads import Options, Progress
    from .shards import ExternalState

RANK_SECONDS = 60.0
"""How many seconds a rank may be silent, unless told otherwise."""


def _check_replicas(_: object, __: Attribute[str], value: str) -> None:
    if value not in ("digest", "full"):
        raise ValueError(f"replicas: expected digest or full, got {value!r}")


def _check_sample(_: object, __: Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not 0.0 < value <= 1.0:  # which not a number is not either
        raise ValueError(f"sample: expected a fraction above 0 and at most 1, got {value!r}")


def _check_rank_timeout(_: object, __: Attribute[float], value: float) -> None:
    if not value > 0.0:
        raise ValueError(f"rank_timeout: expected seconds above 0, got {value!r}")


def _check_count(_: object, attribute: Attribute[int | None], value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{attribute.name}: expected a whole number above 0 or None, got {value!r}")


def expanded(path: str | Path) -> Path:
    """The path with `~` replaced by the user's home folder."""
    return Path(path).expanduser()


@frozen(kw_only=True)
class KnownLoad:
    """
    What is known of the load of a model. Facts that are there already are not collected again.

    `contract` and `renames` are those of the load plan.
    """

    model_facts: ModelFacts | None = None
    checkpoint_facts: CheckpointFacts | None = None
    contract: ContractFacts | None = None
    renames: tuple[tuple[str, str], ...] = ()


@frozen(kw_only=True)
class VerifyOptions:
    """
    How to verify weights, whatever they are compared with.

    `load` is what is known of the model's load, `fusions` relate the tensors of two checkpoints, `external` describes
    tensors outside the module. `replicas` is `digest` (each byte of the checkpoint is read once per job) or `full`
    (every replica reads it). `threads` None: as many as cores for each rank of the host, at most eight. `sample` is the
    fraction of the tiles to look at; `max_memory` is a bound of buffers and of conversions on values, in bytes. `stop`
    is asked again and again whether to end early.
    `rank_timeout` is how many seconds a rank may be silent. `reports` is the folder for the report files,
    `phase` what they call the moment of the check.

    Raises `ValueError` for a value out of range.
    """

    load: KnownLoad = field(factory=KnownLoad)
    fusions: tuple[Fusion, ...] = ()
    external: ExternalState | None = None
    replicas: str = field(default="digest", validator=_check_replicas)
    sample: float = field(default=1.0, validator=_check_sample)
    threads: int | None = field(default=None, validator=_check_count)
    max_memory: int | None = field(default=None, validator=_check_count)
    progress: Progress | None = None
    stop: Callable[[], bool] | None = None
    rank_timeout: float = field(default=RANK_SECONDS, validator=_check_rank_timeout)
    reports: Path | None = field(default=None, converter=optional(expanded))
    phase: str = ""

    def comparing(self, pulse: Callable[[], None] | None = None) -> Options:
        """How the threads of this rank compare; they call `pulse` after every step forward."""
        from .compare.threads import Options

        return Options(
            threads=self.threads,
            sample=self.sample,
            max_memory=self.max_memory,
            progress=self.progress,
            stop=self.stop,
            pulse=pulse,
        )
