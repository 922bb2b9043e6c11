"""Verify a live model against its checkpoint, on one rank or on all of a job together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from attrs import evolve, frozen

from ..analysis.contract_globs import exclusions_of
from ..analysis.wrapper_names import base_name
from ..checkpoint.folder import collect_checkpoint
from ..collect.model import model_facts as collect_model_facts
from ..introspect.walk import walk
from ..loading.declared import declared_targets, logical_shapes
from ..loading.heads import heads_of
from ..loading.live_names import is_adapted
from ..loading.loader import PlanUnknownError
from ..names import first_line
from ..ranks.exchange import Exchange, RankError
from . import replicas
from .adapter_forward import forward_of_adapter
from .compare.threads import Options
from .excuses import excuses_of
from .forward import Forward, forward, forward_of_folder
from .merge import INTERRUPTED, merged, unwritten
from .options import VerifyOptions
from .rank_part import RankPart
from .relations import Relations, relations_of
from .report_files import begun, failed_result, reported, write_rank
from .result import ReplicaGroup, Result
from .shards import Shard, shards_of
from .worker import Worker

T = TypeVar("T")


@frozen
class _Local:
    forward: Forward
    shards: tuple[Shard, ...]


def run(model: Any, checkpoint: Path, options: VerifyOptions) -> Result:
    """
    Verify `model` on all ranks together; every rank gets the result of all.

    What fails on one rank (a file, a shard, a dead rank) is told in `Result.errors`, on every rank, and never hangs.
    """
    try:
        with Exchange(limit=options.rank_timeout, stop=options.stop) as exchange:
            refused = begun(options, exchange, str(checkpoint))
            return refused or _Verification(model, checkpoint, options, exchange).run()
    except RankError as error:
        return failed_result(error, str(checkpoint), options)


def run_replicas(model: Any, options: VerifyOptions) -> Result:
    """Compare replicas without a checkpoint; every rank gets the result of all."""
    try:
        with Exchange(limit=options.rank_timeout, name="replicas", stop=options.stop) as exchange:
            return _replicas_alone(model, options.comparing(exchange.step), exchange)
    except RankError as error:
        return failed_result(error, "", options)


def _replicas_alone(model: Any, options: Options, exchange: Exchange) -> Result:
    part, interrupted = RankPart(rank=exchange.rank), False
    shards: tuple[Shard, ...] = ()
    mine: dict[str, str] = {}
    relations = Relations()
    try:
        relations = relations_of(model)
        shards = tuple(filter(relations.keeps, shards_of(model)))
    except Exception as failure:  # told as a rank error, whatever it is
        part.failed(failure)
    orders, groups = replicas.assign(exchange, shards, relations)
    try:
        mine = replicas.digests(shards, orders.digests, options)
    except KeyboardInterrupt:
        interrupted = True
    except Exception as failure:
        part.failed(failure)
    judgement = replicas.judgement(groups, replicas.gathered(exchange, mine))
    told = _json((part.error, part.crashed, interrupted))
    said = [msgspec.json.decode(blob, type=tuple[str, bool, bool]) for blob in exchange.gather(told)]
    result = Result(
        rows=(),
        replicas=judgement.differing,
        undecided=judgement.undecided,
        errors=tuple((rank, text) for rank, (text, _, _) in enumerate(said) if text),
        crashed=tuple(rank for rank, (_, crashed, _) in enumerate(said) if crashed),
        incomplete=INTERRUPTED if any(ended for _, _, ended in said) else "",
        world_size=exchange.world_size,
        compared_replicas=judgement.judged,
    )
    return msgspec.json.decode(exchange.broadcast(_json(result)), type=Result)


_json = msgspec.json.encode


class _Verification:
    """The steps of one verification. Each is made on every rank, also on one that failed, so that none waits."""

    def __init__(self, model: Any, checkpoint: Path, options: VerifyOptions, exchange: Exchange) -> None:
        self.model = model
        self.checkpoint = checkpoint
        self.options = options
        self.exchange = exchange
        self.comparing = options.comparing(exchange.step)
        self.part = RankPart(rank=exchange.rank)

    def run(self) -> Result:
        local = self._guarded(self._prepare)
        shards = local.shards if local else ()
        orders, groups = replicas.Orders(), replicas.Groups()
        if self.exchange.world_size > 1 and self.options.replicas == "digest":
            relations = self._guarded(lambda: relations_of(self.model)) or Relations()
            orders, groups = replicas.assign(self.exchange, shards, relations)
        if local:
            self._guarded(lambda: self._compare(local, frozenset(orders.followed)))
        wrong: tuple[ReplicaGroup, ...] = ()
        if self.exchange.world_size > 1 and self.options.replicas == "digest":
            wrong = self._replicas(local, orders, groups)
        self._report(local)
        return self._finish(local, wrong, groups)

    def _guarded(self, step: Callable[[], T]) -> T | None:
        """A step of this rank alone: what it raises is told to all ranks at the end."""
        try:
            return step()
        except KeyboardInterrupt:
            self.part.interrupted = True
        except PlanUnknownError as error:
            self.part.error, self.part.unplanned = str(error), True
        except Exception as error:  # told as a rank error, whatever it is
            self.part.failed(error)
        return None

    def _prepare(self) -> _Local:
        load = self.options.load
        checkpoint = load.checkpoint_facts or collect_checkpoint(self.checkpoint)
        walked = walk(self.model)
        facts = load.model_facts or collect_model_facts(walked)
        declared = declared_targets(walked, load.contract, self.options.external)
        exclusions = exclusions_of(load.contract)
        shapes = logical_shapes(walked, load.contract)
        shards = shards_of(self.model, self.options.external, shapes)
        if checkpoint.format == "adapter":
            return _Local(forward_of_adapter(facts, checkpoint), shards)
        follow = forward_of_folder if checkpoint.format == "dcp" else forward
        plan = follow(self.model, facts, checkpoint, renames=load.renames, exclusions=exclusions, declared=declared)
        with_heads = evolve(plan.plan, heads=heads_of(self.model, plan.plan, checkpoint))
        plan = evolve(plan, plan=with_heads, excuses=excuses_of(facts, checkpoint, with_heads, load.contract))
        return _Local(plan, tuple(map(_in_base, shards)) if is_adapted(self.model) else shards)

    def _compare(self, local: _Local, followed: frozenset[str]) -> None:
        worker = Worker(local.forward, self.comparing, self.exchange.rank)
        self.part = worker.part
        worker.run(local.shards, followed)

    def _replicas(self, local: _Local | None, orders: replicas.Orders, groups: replicas.Groups) -> tuple[Any, ...]:
        """Compare digests; a rank whose bits are not its leader's compares them with the file itself."""
        shards = local.shards if local else ()
        mine = self._guarded(lambda: replicas.digests(shards, orders.digests, self.comparing)) or {}
        digests = replicas.gathered(self.exchange, mine)
        wrong = replicas.differing(groups, digests)
        again: dict[int, list[str]] = {rank: [] for rank in range(self.exchange.world_size)}
        for group in wrong:
            for rank in group.ranks:
                again[rank].append(group.name)
        blobs = [msgspec.json.encode(names) for names in again.values()]
        names = set(msgspec.json.decode(self.exchange.scatter(blobs), type=list[str]))
        if names and local:
            self._guarded(lambda: self._recheck(local, names))
        return replicas.judgement(groups, digests).differing

    def _recheck(self, local: _Local, names: set[str]) -> None:
        worker = Worker(local.forward, evolve(self.comparing, progress=None), self.exchange.rank)
        found = worker.run([shard for shard in local.shards if shard.name in names])
        self.part.counts += found.counts
        self.part.layouts += found.layouts
        self.part.live = [live for live in self.part.live if live.name not in names] + found.live
        self.part.interrupted |= found.interrupted

    def _finish(self, local: _Local | None, wrong: Sequence[ReplicaGroup], groups: replicas.Groups) -> Result:
        self.part.sent = self.exchange.sent
        blobs = self.exchange.gather(msgspec.json.encode(self.part))
        answer = b""
        if blobs:
            parts = [msgspec.json.decode(blob, type=RankPart) for blob in blobs]
            result = merged(local.forward, parts, groups.by_name) if local else _failed(parts)
            result = evolve(
                result,
                replicas=tuple(wrong),
                compared_replicas=len(groups.members),
                checkpoint=str(self.checkpoint),
                phase=self.options.phase,
                exchanged=tuple(part.sent + len(blob) for part, blob in zip(parts, blobs, strict=True)),
            )
            answer = msgspec.json.encode(reported(result, self.options.reports))
        return msgspec.json.decode(self.exchange.broadcast(answer), type=Result)

    def _report(self, local: _Local | None) -> None:
        """A report that cannot be written is told to all ranks, and keeps this one from nothing."""
        if self.options.reports is None:
            return
        sources = local.forward.sources.tensors if local else {}
        files = {name for key in self.part.read if key in sources for name in sources[key].files}
        try:
            write_rank(
                self.part,
                self.options.reports,
                checkpoint=str(self.checkpoint),
                phase=self.options.phase,
                files=files,
            )
        except OSError as error:
            self.part.unwritten = first_line(error)


def _in_base(shard: Shard) -> Shard:
    """The shard by the names that its tensor has in the base model, as load plans have them."""
    return evolve(shard, names=tuple(dict.fromkeys(base_name(name) or name for name in shard.names)))


def _failed(parts: Sequence[RankPart]) -> Result:
    """The result when rank 0, whose plan counts for all, has none."""
    errors = tuple((part.rank, part.error) for part in parts if part.error and not part.unplanned)
    crashed = tuple(part.rank for part in parts if part.crashed)
    incomplete = INTERRUPTED if any(part.interrupted for part in parts) else ""
    if parts[0].unplanned:
        incomplete = f"no load plan can be made: {parts[0].error}"
    return Result(
        rows=(),
        errors=errors,
        crashed=crashed,
        incomplete=incomplete,
        world_size=len(parts),
        unwritten=unwritten(parts),
    )
