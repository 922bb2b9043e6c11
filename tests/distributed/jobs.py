"""Start the ranks of a job as processes, and wait for all of them."""

import subprocess
import sys
import time
from pathlib import Path


def run_ranks(folder, world, worker, *arguments, expected=None, limit=300):
    """
    Run `worker FOLDER RANK WORLD ARGUMENTS...`, a file beside this one, for each rank; the output goes to `RANK.log`.

    The exit statuses must be `expected` (zeros), within `limit` seconds. No process outlives the call.
    """
    script = str(Path(__file__).with_name(worker))
    logs = [folder / f"{rank}.log" for rank in range(world)]
    ranks = []
    try:
        for rank, log in enumerate(logs):
            command = [sys.executable, "-W", "ignore", script, str(folder), str(rank), str(world), *arguments]
            with log.open("wb") as stream:
                ranks.append(subprocess.Popen(command, stdout=stream, stderr=stream))
        deadline = time.monotonic() + limit
        statuses = [rank.wait(max(1, deadline - time.monotonic())) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    wanted = [0] * world if expected is None else expected
    assert statuses == wanted, "\n".join(log.read_text(errors="replace")[-2500:] for log in logs)
