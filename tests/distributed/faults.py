"""
What the other ranks of a job see when one is killed, frozen or ended: run by hand, it prints the table of the docs.

    python -m tests.distributed.faults [STAGE ...]
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from attrs import frozen
from safetensors.torch import save_file

WORLD = 3
RANK_TIMEOUT = 5
LIMIT = 120
HOW = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP, "ended": signal.SIGTERM}
BUILD = """
import os, signal, time
from pathlib import Path
import torch
from shardlint.ranks.job import Job
from shardlint.weights.compare import threads


def model(stage="", victim="0", number="9"):
    def strike(*_, **__):
        Path("struck").write_text(str(time.time()))
        os.kill(os.getpid(), int(number))
        time.sleep(1)

    found = torch.nn.ModuleDict({name: torch.nn.Linear(4, 3, bias=False) for name in "abcdef"})
    for part in found.values():
        part.weight.data[:] = torch.arange(12.0).reshape(3, 4)
    if os.environ["RANK"] != str(victim):
        return found
    if stage == "building":
        strike()
    methods = {"comparing": "share", "agreeing": "agree_on_heavy", "reporting": "agree", "leaving": "meet"}
    if stage in methods:
        kept = getattr(Job, methods[stage])
        setattr(Job, methods[stage], lambda *args: (strike(), kept(*args))[1])
    if stage == "reading":
        checked = threads.check_tile
        threads.check_tile = lambda *args, **more: (strike(), checked(*args, **more))[1]
    return found
"""
STAGES = ("building", "comparing", "agreeing", "reading", "reporting", "leaving")


@frozen
class Seen:
    """Exit status, seconds since the blow, and what was printed, of every rank; the victim's when it ended itself."""

    statuses: dict[int, int]
    seconds: dict[int, float]
    texts: dict[int, str]

    def others(self, victim):
        return [rank for rank in self.statuses if rank != victim]


def strike(folder, stage, victim, how):
    """Run a job of the command in which `victim` is struck at `stage`. No process outlives the call."""
    (folder / "build.py").write_text(BUILD)
    stored = {f"{name}.weight": torch.arange(12.0).reshape(3, 4) for name in "abcdef"}  # ranks take turns to read
    save_file(stored, folder / "model.safetensors")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    arguments = [f"stage={stage}", f"victim={victim}", f"number={int(HOW[how])}"]
    command = [sys.executable, "-W", "ignore", "-m", "shardlint", "lint", "build.py:model", "--isolated", "--heavy"]
    command += ["--checkpoint", "model.safetensors", "--rank-timeout", str(RANK_TIMEOUT)]
    command += [part for argument in arguments for part in ("--arg", argument)]
    job = {"WORLD_SIZE": str(WORLD), "LOCAL_WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = []
    try:
        for rank in range(WORLD):
            with (folder / f"{rank}.log").open("wb") as log:
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
                run = subprocess.Popen(command, cwd=folder, env={**os.environ, **job, **place}, stdout=log, stderr=log)
                started.append(run)
        ends = _ends(started, [rank for rank in range(WORLD) if how != "frozen" or rank != victim])
    finally:
        for process in started:
            process.kill()
            process.wait()
    struck = float((folder / "struck").read_text())
    return Seen(
        statuses={rank: started[rank].returncode for rank in ends},
        seconds={rank: end - struck for rank, end in ends.items()},
        texts={rank: (folder / f"{rank}.log").read_text(errors="replace") for rank in ends},
    )


def _ends(started, ranks):
    """When each of the ranks ended, by rank; those that have not within the limit are not there."""
    ends = {}
    until = time.monotonic() + LIMIT
    while len(ends) < len(ranks) and time.monotonic() < until:
        ends |= {rank: time.time() for rank in ranks if rank not in ends and started[rank].poll() is not None}
        time.sleep(0.05)
    return ends


def _said(text):
    """The sentence that names a rank, as short as it goes."""
    found = re.search(r"(ranks? [0-9][0-9,. ]*(?:has not|is alive|did not|:)|the store of the job)[^;\n]{0,60}", text)
    return found.group().strip() if found else "nothing"


def main(stages):
    print("| at | rank | is | noticed by (exit status, seconds) | first words |\n| --- | --- | --- | --- | --- |")
    for stage in stages:
        for victim in (0, 1):
            for how in ("killed", "frozen"):
                with tempfile.TemporaryDirectory() as folder:
                    seen = strike(Path(folder), stage, victim, how)
                others = seen.others(victim)
                noticed = ", ".join(f"rank {rank} ({seen.statuses[rank]}, {seen.seconds[rank]:.1f})" for rank in others)
                said = _said(seen.texts[others[-1]]) if others else "nobody ended"
                print(f"| {stage} | {victim} | {how} | {noticed} | {said} |", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main(sys.argv[1:] or STAGES)
