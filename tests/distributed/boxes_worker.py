"""
Real shards of given layouts: every rank is a thread of this one process, so eight of them are cheap.

Reads a JSON list of layouts: a tensor shape, a mesh shape, placements `[kind, dim, split_factor]`, and whether the
first rank sends the others their parts or each rank cuts its own. Writes for each layout the coordinate of every rank,
and the shape and the elements of its local tensor of an arange.
"""

import json
import os
import sys
import threading
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg


def placement(kind, dim, split_factor):
    if kind == "replicate":
        return Replicate()
    return Shard(dim) if kind == "shard" else _StridedShard(dim, split_factor=split_factor)


def shards(layouts):
    """What this rank holds of each layout. Every rank must run the same layouts in the same order."""
    meshes = {}
    for layout in layouts:
        size = tuple(layout["mesh"])
        if size not in meshes:
            meshes[size] = init_device_mesh("cpu", size)
        shape = layout["shape"]
        whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
        if layout["sent"] and dist.get_rank():
            whole = torch.full_like(whole, -1)
        placements = [placement(*item) for item in layout["placements"]]
        source = 0 if layout["sent"] else None
        local = distribute_tensor(whole, meshes[size], placements, src_data_rank=source).to_local()
        yield [meshes[size].get_coordinate(), list(local.shape), local.flatten().tolist()]


def run(rank, world, store, layouts, results):
    try:
        dist.init_process_group("threaded", rank=rank, world_size=world, store=store)
        results[rank] = list(shards(layouts))
    except BaseException:
        # The other ranks wait for this one in a collective and no one can wake them.
        traceback.print_exc()
        os._exit(1)


def main():
    world, source, target = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    store, results = dist.HashStore(), {}
    layouts = json.loads(source.read_text())
    ranks = [threading.Thread(target=run, args=(rank, world, store, layouts, results)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    target.write_text(json.dumps([[results[rank][index] for rank in range(world)] for index in range(len(layouts))]))


if __name__ == "__main__":
    main()
