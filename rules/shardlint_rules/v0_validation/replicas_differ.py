"""V003 replicas-differ."""

from __future__ import annotations

from collections.abc import Iterator

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

from ._flat import FLATTENED, flattened

_UNDECIDED = "ranks that share no mesh and no wrapper hold different bits, and nothing says that they hold replicas"


@frozen(kw_only=True)
class ReplicaOptions:
    """
    `threads` None: all cores.

    `rank_timeout` is how many seconds a rank may be silent; None: as long as ranks wait for each other elsewhere.
    """

    threads: int | None = None
    rank_timeout: float | None = None


class ReplicasDiffer(HeavyRule):
    """
    Ranks that hold the same part of the same tensor hold different bits.

    ## What it does
    Takes a digest of every shard that more than one rank holds (same tensor, same indices) and compares the digests
    between the ranks. No checkpoint is read; each rank sends about 80 bytes for a shard. Which ranks hold replicas is
    told by what relates them: the mesh of the tensor, the wrapper that reduces its gradient, and, for tensors on none,
    any mesh or wrapper that the ranks share. Ranks that share nothing (stages of a pipeline, shards that a library
    keeps as plain tensors) hold replicas only where most of their matrices are equal; else what differs is not
    evaluated. Parameters that are marked as parts (`tensor_model_parallel`, `partition_dim`, `allreduce=False`) are no
    replicas, and running statistics of batch norm only before the first batch. A persistent buffer that some ranks
    lack, or that has another shape there, is a difference too.

    ## Why it is unsafe
    Replicas are kept equal only by starting equal and applying the same updates. When they start different they stay
    different: the gradient is an average over models that are not the same, and what is saved depends on the rank
    that saves.

    ## What to do
    Load or initialise on one rank and broadcast, or give every rank the same seed before tensors are initialised.
    State that is meant to differ between ranks does not belong into persistent buffers.
    """

    code = "V003"
    name = "replicas-differ"
    phase = Phase.V0
    severity = Severity.ERROR
    options_type = ReplicaOptions

    noun = "replicated shard"

    def unready(self, facts: Facts, live: LiveTarget) -> str:
        if live.model is None:
            return "it compares live replicas, and no model was built"
        return FLATTENED if flattened(facts) else ""

    def check_live(self, facts: Facts, live: LiveTarget) -> Iterator[Finding | Examined]:
        from shardlint.weights import RANK_SECONDS, compare_replicas

        if lacking := self.unready(facts, live):
            raise NotEvaluated(lacking)
        result = compare_replicas(
            live.model,
            threads=self.options.threads,
            rank_timeout=self.options.rank_timeout or live.rank_timeout or RANK_SECONDS,
            stop=live.stop,
        )
        if result.crashed:
            raise RuntimeError(f"the comparison itself failed: {dict(result.errors)[result.crashed[0]]}")
        for rank, text in result.errors:
            yield self.finding(
                subject=f"rank {rank}",
                kind=SubjectKind.RANK,
                message=f"rank {rank} could not compare: {text}",
                ranks=(rank,),
            )
        for group in result.replicas:
            yield self.finding(
                subject=group.name,
                message=group.text,
                evidence={"reference": group.reference, "differing": group.ranks},
                ranks=group.everywhere,
            )
        compared = result.compared_replicas
        evidence = f"{counted(compared, 'shard')} on more than one of {counted(result.world_size, 'rank')}: same bits"
        undecided = result.undecided
        yield Examined(
            judged=compared,
            unknown=len(undecided),
            first_unknown=f"{undecided[0]}: {_UNDECIDED}" if undecided else "",
            evidence=evidence if compared and not result.replicas else "",
        )
        if result.incomplete:
            raise Unfinished(result.incomplete)
        if result.world_size == 1 and not result.errors:
            raise NotEvaluated("there is one rank, so there are no replicas")
