"""The ranks of a job as threads over one store."""

import threading

import torch.distributed as dist

from shardlint.ranks.store import RankPlace


def run_ranks(world, function, *, absent=()):
    """Run `function(place)` as every rank, on one store; what each returned or raised."""
    store = dist.HashStore()
    results = {}

    def rank(number):
        place = RankPlace(store, number, world)
        try:
            results[number] = (function(place), place)
        except Exception as error:
            results[number] = (error, place)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(world) if number not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results
