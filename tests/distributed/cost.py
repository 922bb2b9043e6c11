"""
What it costs ranks to compare and agree: threads that speak the protocol to one store. Prints the table of the docs.

    python -m tests.distributed.cost [RANKS ...]
"""

import sys
import threading
import time

import torch.distributed as dist

from shardlint.facts import Facts, LayoutFacts, MeshFacts, OwnershipFacts, ReductionFacts, ShardingFacts, UnitFacts
from shardlint.ranks.job import Job
from shardlint.ranks.store import RankPlace
from shardlint.report.model import Report, Verdict

PARAMETERS = 50
TIMEOUT = 300.0


def facts_of(rank, world, *, odd):
    mesh = MeshFacts(axes=("fsdp",), shape=(world,), ranks=tuple(range(world)), coordinate=(rank,))
    layout = LayoutFacts(global_shape=(world, 4), local_shape=(1, 4), mesh=0)
    dtype = "bfloat16" if odd and rank == 1 else "float32"
    sharding = ShardingFacts(
        meshes=(mesh,),
        layouts=(layout,),
        reductions=(ReductionFacts(ranks=mesh.ranks, divisor=float(world)),),
        units=(UnitFacts(name="<root>", owner="<root>", kind="fsdp2", mesh=0, reduction=0),),
        parameters=tuple(
            OwnershipFacts(fqn=f"{number}.weight", owner="<root>", unit=0, layout=0, identity=number, dtype=dtype)
            for number in range(PARAMETERS)
        ),
    )
    return Facts(sharding=sharding)


def measure(world, *, odd=False):
    """The places of all ranks after one comparison and one agreement, and the seconds that rank 0 took for them."""
    store = dist.HashStore()
    places = [RankPlace(store, rank, world) for rank in range(world)]
    everybody = [facts_of(rank, world, odd=odd) for rank in range(world)]
    seconds = {}

    def rank(number):
        job, started = Job(places[number], TIMEOUT), time.monotonic()
        job.share(everybody[number])
        job.agree_on_heavy({})
        job.agree(Report(verdict=Verdict.PASS))
        seconds[number] = time.monotonic() - started

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return places, seconds[0]


def main(worlds):
    print("| ranks | ranks that differ | sent by a rank | received by rank 0 | sent by rank 0 | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for world in worlds:
        for odd in (False, True):
            places, seconds = measure(world, odd=odd)
            sent = places[-1].sent
            first = places[0]
            print(
                f"| {world:,} | {int(odd)} | {sent:,} | {first.received:,} | {first.sent:,} | {seconds:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [2, 4, 8, 1024])
