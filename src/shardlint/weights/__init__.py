"""
Weight verification: is every element of a live model what its checkpoint holds? Public; imports torch when called.

    result = shardlint.weights.verify(model, "checkpoints/base")
    result.verdict, result.worst(), result.raise_for_failure()

Under a running process group every rank calls it, and every rank gets the result of all.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cast_counts import Cast, CastReport
from .compare.counts import Difference
from .fault_groups import Fault, faults
from .folder_values import FolderValues, StoredValues, Suspicion, suspicions
from .options import RANK_SECONDS, KnownLoad, VerifyOptions, expanded
from .result import (
    ReferenceScope,
    ReplicaGroup,
    Result,
    Row,
    RowKind,
    RowStatus,
    WeightsDifferError,
    WeightsVerdict,
    WrongLayout,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..facts import CheckpointFacts, ContractFacts, ModelFacts
    from ..target import Fusion
    from .compare.threads import Progress
    from .export_faults import ExportFaults
    from .shards import ExternalShard, ExternalState

__all__ = [
    "RANK_SECONDS",
    "Cast",
    "CastReport",
    "CastsUnknownError",
    "Difference",
    "ExportUnknownError",
    "ExternalShard",
    "ExternalState",
    "Fault",
    "FolderValues",
    "ReferenceScope",
    "ReplicaGroup",
    "Result",
    "Row",
    "RowKind",
    "RowStatus",
    "StoredValues",
    "Suspicion",
    "WeightsDifferError",
    "WeightsVerdict",
    "WrongLayout",
    "check_export",
    "compare_casts",
    "compare_checkpoints",
    "compare_replicas",
    "faults",
    "record_conversions",
    "scan_folder",
    "suspicions",
    "verify",
]


class CastsUnknownError(Exception):
    """Two checkpoints cannot be related or read, so nothing is said about their dtypes. The text says why."""


class ExportUnknownError(Exception):
    """The load or the export of a model cannot be followed, so nothing is said about it. The text says why."""


def verify(
    model: Any,
    checkpoint: str | Path,
    *,
    model_facts: ModelFacts | None = None,
    checkpoint_facts: CheckpointFacts | None = None,
    contract: ContractFacts | None = None,
    renames: tuple[tuple[str, str], ...] = (),
    external: ExternalState | None = None,
    replicas: str = "digest",
    sample: float = 1.0,
    threads: int | None = None,
    max_memory: int | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    rank_timeout: float = RANK_SECONDS,
    reports: str | Path | None = None,
    phase: str = "after loading",
) -> Result:
    """
    Compare every element of every persistent tensor of `model` with the local `checkpoint`, bit by bit.

    Nothing is written to the model and nothing is gathered. `renames` and `contract` are those of the load plan;
    facts that are there already are not collected again. `replicas` is `digest` (each byte of the checkpoint is read
    once per job) or `full`. `sample` looks at that fraction of the tiles only, and then never passes. `max_memory`
    (bytes) bounds buffers and conversions that need values. `reports` is a folder for `tensors.csv`, `summary.json`
    and a file of every rank: one that cannot be written there is a FAIL on every rank, before anything is compared.
    They say `phase`, in your own words, as the moment of the check. `rank_timeout` is how many seconds a rank may be
    silent. `stop` is asked again and again whether to end early; then, as after Ctrl-C, the verdict is no PASS. `~` in
    paths is the home folder. What fails is told in the result, on every rank; raises `ValueError` for bad arguments.
    """
    load = KnownLoad(model_facts=model_facts, checkpoint_facts=checkpoint_facts, contract=contract, renames=renames)
    options = VerifyOptions(
        load=load,
        external=external,
        replicas=replicas,
        sample=sample,
        threads=threads,
        max_memory=max_memory,
        progress=progress,
        stop=stop,
        rank_timeout=rank_timeout,
        reports=reports,
        phase=phase,
    )
    from .verification import run

    return run(model, expanded(checkpoint), options)


def compare_checkpoints(
    checkpoint: str | Path,
    reference: str | Path,
    *,
    fusions: tuple[Fusion, ...] = (),
    sample: float = 1.0,
    threads: int | None = None,
    max_memory: int | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    rank_timeout: float = RANK_SECONDS,
    reports: str | Path | None = None,
    phase: str = "after loading",
) -> Result:
    """
    Compare every element of one checkpoint with another, bit by bit, without building a model's storage.

    Each is a safetensors file or folder, or a folder of torch.distributed.checkpoint, sharded in any way. When their
    names differ, the conversions of the model type in `config.json` relate them; `fusions` are tensors that one of them
    stores as one, and tensors of the same bits are the same under any name. Rows of kind LIVE are about
    `checkpoint`, rows of kind CHECKPOINT about `reference`. Under a job the work is divided over the ranks. Raises
    `ValueError` for bad arguments.
    """
    options = VerifyOptions(
        fusions=fusions,
        sample=sample,
        threads=threads,
        max_memory=max_memory,
        progress=progress,
        stop=stop,
        rank_timeout=rank_timeout,
        reports=reports,
        phase=phase,
    )
    from .checkpoints import compare_checkpoints as compare

    return compare(expanded(checkpoint), expanded(reference), options)


def compare_casts(
    checkpoint: str | Path,
    reference: str | Path,
    *,
    allow: Iterable[str] = (),
    fusions: tuple[Fusion, ...] = (),
    threads: int | None = None,
    stop: Callable[[], bool] | None = None,
) -> CastReport:
    """
    Find the tensors whose dtype in `checkpoint` is not that in `reference`, and count what the cast changed.

    Only those tensors are read. `allow` are dtypes (torch's names) that are meant. Raises `CastsUnknownError` when the
    two cannot be related or read.
    """
    from .casts import casts

    return casts(expanded(checkpoint), expanded(reference), frozenset(allow), fusions, threads=threads, stop=stop)


def scan_folder(
    checkpoint: CheckpointFacts,
    *,
    threads: int | None = None,
    max_memory: int | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> FolderValues:
    """
    Read every tensor of a checkpoint once, a piece at a time, and say what its values look like.

    `suspicions` says what of it is suspicious. Raises `OSError` for a file that cannot be read.
    """
    from .compare.threads import Options
    from .folder_scan import scan

    return scan(checkpoint, Options(threads=threads, max_memory=max_memory, progress=progress, stop=stop))


def compare_replicas(
    model: Any,
    *,
    threads: int | None = None,
    stop: Callable[[], bool] | None = None,
    rank_timeout: float = RANK_SECONDS,
) -> Result:
    """
    Compare the bits of all replicas of every shard between the ranks of the running job, without any checkpoint.

    The result has no rows: `replicas` names the groups that differ, `errors` the ranks that failed. `stop` is asked
    again and again whether to end early. Raises `ValueError` for bad arguments.
    """
    options = VerifyOptions(threads=threads, stop=stop, rank_timeout=rank_timeout)
    from .verification import run_replicas

    return run_replicas(model, options)


def check_export(
    model: Any,
    checkpoint: str | Path,
    *,
    model_facts: ModelFacts | None = None,
    checkpoint_facts: CheckpointFacts | None = None,
    contract: ContractFacts | None = None,
    renames: tuple[tuple[str, str], ...] = (),
) -> tuple[ExportFaults, ...]:
    """
    Follow the export of `model` in its original format, without values, and compare it with `checkpoint`.

    A right export gives back exactly the checkpoint's keys, shapes and element positions: then nothing is returned.
    The arguments are those of `verify`. Nothing is saved and no tensor is read. Raises `ExportUnknownError` when the
    load or the export cannot be followed.
    """
    from ..analysis.contract_globs import exclusions_of
    from ..checkpoint.folder import CheckpointError, collect_checkpoint
    from ..collect.model import model_facts as collect_model_facts
    from ..introspect.walk import walk
    from ..loading.loader import PlanUnknownError
    from .export import check_export as check
    from .export_faults import grouped
    from .storage.stored_tensors import ReadError

    try:
        found = check(
            model,
            model_facts or collect_model_facts(walk(model)),
            checkpoint_facts or collect_checkpoint(expanded(checkpoint)),
            renames=renames,
            exclusions=exclusions_of(contract),
        )
    except (PlanUnknownError, CheckpointError, ReadError) as error:
        raise ExportUnknownError(str(error)) from error
    return grouped(found)


def record_conversions(model: Any, *, base: Iterable[Any], replacement: Iterable[Any]) -> None:
    """
    Record on `model` the weight conversions of its load in two stages, for V002, V004, D501 and D502 to follow.

    `base` leads from the checkpoint to the base model, `replacement` from there to the modules that replaced some of
    its own; either may be empty. They are Transformers' `WeightRenaming` and `WeightConverter`, or objects like them.
    The record is the attribute `_weight_conversion_stages`. Raises `TypeError` for anything else.
    """
    from ..loading.recorded_conversions import record_conversions as record

    record(model, base=base, replacement=replacement)


_SHORT_NAMES = {"Kind": RowKind, "Status": RowStatus, "Verdict": WeightsVerdict}
"""The names that these have within this module, for scripts that read `shardlint.weights.Kind.LIVE`."""


def __getattr__(name: str) -> Any:
    if name in ("ExternalShard", "ExternalState"):
        from . import shards

        return getattr(shards, name)
    if name in _SHORT_NAMES:
        return _SHORT_NAMES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
