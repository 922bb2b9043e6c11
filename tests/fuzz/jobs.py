"""
`python -m tests.fuzz.jobs --count N`: jobs of two ranks, one of which is killed, frozen or told to end at any moment.

No rank runs beyond the limits, no report is half written, and no surviving rank calls a job green that lost one.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

RANK_TIMEOUT = 10
LIMIT = 90
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT)
WORKER = """
import os, sys
import torch, torch.distributed as dist
import shardlint
from pathlib import Path
from datetime import timedelta
from shardlint.cli.output import atomic_file
folder, rank = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2,
                        timeout=timedelta(seconds=30))
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(40)]))
(folder / f"ready{rank}").touch()
report = shardlint.lint(model, heavy=True, rank_timeout=float(sys.argv[3]), config=False)
with atomic_file(folder / f"report{rank}.json") as stream:
    shardlint.report.BUILTIN_REPORTERS["json"](report, stream, shardlint.report.ReportOptions())
os._exit(report.exit_status)
"""


def _started(folder: Path, rank: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", str(folder / "worker.py"), str(folder), str(rank), str(RANK_TIMEOUT)]
    with (folder / f"{rank}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _wait_for(files: list[Path], ranks: list[subprocess.Popen[bytes]]) -> None:
    until = time.monotonic() + LIMIT
    while not all(file.exists() for file in files) and time.monotonic() < until:
        if any(rank.poll() is not None for rank in ranks):
            return
        time.sleep(0.01)


def one(seed: int, folder: Path) -> str:
    """What became of the job `seed`: ended, finished before, hang, half a report or green."""
    rng = random.Random(seed)
    folder.mkdir()
    (folder / "worker.py").write_text(WORKER)
    ranks = [_started(folder, rank) for rank in (0, 1)]
    struck, number = rng.randrange(2), rng.choice(SIGNALS)
    try:
        _wait_for([folder / "ready0", folder / "ready1"], ranks)
        time.sleep(rng.random() * rng.choice((0.3, 2.0)))
        before = ranks[struck].poll() is not None
        if not before:
            os.kill(ranks[struck].pid, number)
        statuses = [_status(ranks[rank]) for rank in (0, 1) if rank != struck or number != signal.SIGSTOP]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if None in statuses:
        return f"hang ({number.name})"
    for file in folder.glob("report*.json"):
        try:
            json.loads(file.read_text())
        except ValueError:
            return f"half a report ({number.name})"
    if before or all((folder / f"report{rank}.json").exists() for rank in (0, 1)):
        return "finished before"
    return f"green ({number.name})" if statuses[-1 if struck == 0 else 0] == 0 else f"ended ({number.name})"


def _status(rank: subprocess.Popen[bytes]) -> int | None:
    try:
        return rank.wait(LIMIT)
    except subprocess.TimeoutExpired:
        return None


def table(seeds: range) -> tuple[Counter[str], list[int]]:
    """The counts of all jobs, and the seeds of those that went wrong."""
    counts: Counter[str] = Counter()
    wrong = []
    with tempfile.TemporaryDirectory() as place:
        for seed in seeds:
            came_of_it = one(seed, Path(place) / str(seed))
            counts[came_of_it] += 1
            if came_of_it.startswith(("hang", "half", "green")):
                wrong.append(seed)
                print(seed, *(log.read_text()[-600:] for log in (Path(place) / str(seed)).glob("*.log")), sep="\n")
    return counts, wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--start", type=int, default=0)
    chosen = parser.parse_args()
    results, failed = table(range(chosen.start, chosen.start + chosen.count))
    print(*(f"{what}: {count}" for what, count in sorted(results.items())), sep="\n")
    print("seeds that went wrong:", *failed)
    sys.exit(bool(failed))
