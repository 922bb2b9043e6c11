"""V002 weights-differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attrs import frozen

from shardlint import (
    Examined,
    Facts,
    Finding,
    HeavyRule,
    LiveTarget,
    NotEvaluated,
    Phase,
    Severity,
    SubjectKind,
    Unfinished,
)
from shardlint.names import counted
from shardlint_rules._files import WHOLE_CHECKPOINT

from ._flat import FLATTENED, flattened

if TYPE_CHECKING:
    from shardlint.weights import Result, Row  # the machinery is imported where it runs: most runs do without

_KINDS = {"unread": SubjectKind.KEY, "rank": SubjectKind.RANK}


@frozen(kw_only=True)
class WeightOptions:
    """
    `replicas` is `digest` (each byte of the checkpoint is read once per job) or `full`. `threads` None: all cores.

    `rank_timeout` is how many seconds a rank may be silent; None: as long as ranks wait for each other elsewhere.
    """

    replicas: Literal["digest", "full"] = "digest"
    threads: int | None = None
    rank_timeout: float | None = None


class WeightsDiffer(HeavyRule):
    """
    Some element of the live model is not what the checkpoint holds.

    ## What it does
    Reads every persistent parameter and buffer, on every rank its own shards, and compares each element bit by bit
    with the element of the local checkpoint that the load plan puts there: through renamings, conversions (run
    symbolically, by Transformers' own operations), ties and the cast to the live dtype. There is no tolerance: +0.0
    and -0.0 differ. What the loader's cast changes is counted separately and is not a finding. Infinities and NaN,
    elements that nothing was compared with, stored elements that reach no live tensor, padding that is not zero, and
    shards whose bits are right for another placement than the declared one are findings too. The checkpoint may be one
    of safetensors or a folder of torch.distributed.checkpoint, in any sharding. With `--reference` a checkpoint takes
    the model's place.

    ## Why it is unsafe
    Training goes on from other weights than the ones that were meant: experts in another order, a transposed matrix,
    a layer that kept its random values. Nothing crashes, the loss only starts higher.

    ## What to do
    Look at the first difference: it names the live element and the stored one. Load the checkpoint again, and when
    the difference stays, correct the conversion, the sharding or the code that changes weights after loading. Tensors
    that have no source on purpose belong into `contract.training-only-targets`, stored ones without a use into
    `contract.inference-only-sources`.
    """

    code = "V002"
    name = "weights-differ"
    phase = Phase.V0
    severity = Severity.ERROR
    noun = "tensor"
    tags = (WHOLE_CHECKPOINT,)
    related_config = (
        "contract.training-only-targets",
        "contract.inference-only-sources",
        "checkpoint.renames",
        "checkpoint.fuse",
    )
    options_type = WeightOptions

    def unready(self, facts: Facts, live: LiveTarget) -> str:
        if live.checkpoint is None:
            return "it needs the checkpoint that the model was loaded from, and none was given"
        if flattened(facts):
            return FLATTENED
        return "" if live.reference or live.model is not None else "it compares a live model, and none was built"

    def check_live(self, facts: Facts, live: LiveTarget) -> Iterator[Finding | Examined]:
        if live.checkpoint is None or self.unready(facts, live):
            raise NotEvaluated(self.unready(facts, live))
        from shardlint.weights import faults

        result = (
            self._of_checkpoint(live, live.checkpoint, live.reference)
            if live.reference
            else self._of_model(facts, live, live.checkpoint)
        )
        for fault in faults(result):
            if fault.what != "report":
                yield self.finding(
                    subject=fault.subject,
                    kind=_KINDS.get(fault.what, SubjectKind.TENSOR),
                    severity=Severity.INFO if fault.what == "renamed" else None,
                    message=fault.message,
                    evidence=fault.evidence,
                    ranks=fault.ranks,
                    key=fault.what,
                )
        if result.crashed:
            raise RuntimeError(f"the comparison itself failed: {dict(result.errors)[result.crashed[0]]}")
        yield _examined(result)
        unwritten = (f"rank {rank} could not write the weight report: {why}" for rank, why in result.unwritten)
        if why := "; ".join(unwritten) or result.incomplete:
            raise Unfinished(why)

    def _of_checkpoint(self, live: LiveTarget, checkpoint: Path, reference: Path) -> Result:
        from shardlint.weights import RANK_SECONDS, compare_checkpoints

        return compare_checkpoints(
            checkpoint,
            reference,
            fusions=live.fusions,
            threads=self.options.threads,
            rank_timeout=self.options.rank_timeout or live.rank_timeout or RANK_SECONDS,
            sample=live.sample,
            max_memory=live.max_memory,
            progress=live.progress,
            stop=live.stop,
            reports=live.reports,
        )

    def _of_model(self, facts: Facts, live: LiveTarget, checkpoint: Path) -> Result:
        from shardlint.weights import RANK_SECONDS, verify

        return verify(
            live.model,
            checkpoint,
            model_facts=facts.model,
            checkpoint_facts=facts.checkpoint,
            contract=facts.contract,
            renames=live.renames,
            external=live.external,
            replicas=live.replicas or self.options.replicas,
            threads=self.options.threads,
            rank_timeout=self.options.rank_timeout or live.rank_timeout or RANK_SECONDS,
            sample=live.sample,
            max_memory=live.max_memory,
            progress=live.progress,
            stop=live.stop,
            reports=live.reports,
        )


def _examined(result: Result) -> Examined:
    """What was compared with what: `57 of 57 tensors, 63,904 elements ...: 13 EXACT, 44 CAST float32 -> bfloat16`."""
    from shardlint.weights import RowKind, RowStatus

    wanted = [row for row in result.of_kind(RowKind.LIVE) if row.status is not RowStatus.EXCLUDED]
    compared = [row for row in wanted if row.checked or not row.expected]
    text = f"{len(compared):,} of {counted(len(wanted), 'tensor')}, {sum(row.checked for row in wanted):,} elements"
    kinds = Counter(_outcome(row) for row in wanted)
    told = ", ".join(f"{kinds[kind]:,} {kind}" for kind in sorted(kinds, key=lambda kind: (-kinds[kind], kind)))
    whole = [row for row in wanted if row.checked == row.expected or row.status is not RowStatus.EXACT]
    return Examined(
        judged=len(whole if result.incomplete else wanted),
        evidence=f"{text} compared with {result.checkpoint}: {told}" if compared else "",
    )


def _outcome(row: Row) -> str:
    from shardlint.weights import RowStatus

    if row.status is RowStatus.DTYPE_CAST and row.first is not None:
        return f"CAST {row.first.reference_dtype} -> {row.first.storage_dtype}"
    return row.status.value
