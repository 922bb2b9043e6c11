"""
One rank of a job that lints together, through good and bad times, and writes down what it saw.

    python joint_worker.py FOLDER RANK WORLD
"""

import datetime
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from shardlint.api import lint


def model(mesh, *, odd=False):
    torch.manual_seed(0)
    built = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    if odd:
        built[1].to(torch.bfloat16)
        built[0].extra = nn.Parameter(torch.zeros(8))
    for layer in built:
        fully_shard(layer, mesh=mesh)
    return fully_shard(built, mesh=mesh)


def seen(call):
    started = time.monotonic()
    try:
        report = call()
    except Exception as error:
        result = {"error": type(error).__name__, "text": str(error)}
    else:
        result = {
            "status": report.exit_status,
            "findings": [[item.code, item.subject, list(item.ranks), item.message] for item in report.findings],
            "not_evaluated": [item.code for item in report.outcomes if item.status.value == "not-evaluated"],
        }
    return result | {"seconds": time.monotonic() - started}


def main():
    folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=timeout)
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))
    out = {}

    def check(target, **options):
        return seen(lambda: lint(target, config=False, select=["D3"], **{"rank_timeout": 60.0, **options}))

    out["sound"] = check(model(mesh))
    out["odd"] = check(model(mesh, odd=rank == 1))
    out["raises"] = check("no module" if rank == 2 else model(mesh))
    sound = model(mesh)
    dist.barrier()
    if rank == 3:
        time.sleep(4.0)
    out["late"] = check(sound, rank_timeout=1.5)
    total = torch.ones(1)
    dist.all_reduce(total)
    out["sum"] = total.item()
    out["again"] = check(sound)
    out["alone"] = check(sound, rank_timeout=0.0) if rank == 0 else None
    (folder / f"seen.{rank}").write_text(json.dumps(out))
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    out["dead"] = check(sound, rank_timeout=2.0)
    (folder / f"seen.{rank}").write_text(json.dumps(out))
    os._exit(0)  # the group lost a rank: nothing to be torn down in order


if __name__ == "__main__":
    main()
