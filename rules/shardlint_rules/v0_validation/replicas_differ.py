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
from shardlint.names import counted, ranges


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
    between the ranks. No checkpoint is read; each rank sends 24 bytes for a shard.

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

    def check_live(self, facts: Facts, live: LiveTarget) -> Iterator[Finding | Examined]:
        from shardlint.weights import RANK_SECONDS, compare_replicas

        if live.model is None:
            raise NotEvaluated("it compares live replicas, and no model was built")
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
                message=f"its bits on rank {ranges(group.ranks)} are not those on rank {group.reference}",
                evidence={"reference": group.reference, "differing": group.ranks},
                ranks=(group.reference, *group.ranks),
            )
        compared = result.compared_replicas
        evidence = f"{counted(compared, 'shard')} on more than one of {counted(result.world_size, 'rank')}: same bits"
        yield Examined(judged=compared, evidence=evidence if compared and not result.replicas else "")
        if result.incomplete:
            raise Unfinished(result.incomplete)
        if result.world_size == 1 and not result.errors:
            raise NotEvaluated("there is one rank, so there are no replicas")
