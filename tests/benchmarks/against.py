"""
Compare this tree with another one, say `git worktree add ../before COMMIT`, side by side.

    python tests/benchmarks/against.py ../before

Each command is run in both trees in turn, each time in a process of its own. Printed is the median CPU time of each,
in seconds, and the median of the ratios this/other.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parents[2]
SMALL = {"model.embed.weight": ("BF16", [16, 8]), "model.norm.weight": ("BF16", [8])}


def cpu_seconds(tree: Path, command: Sequence[str]) -> float:
    """CPU time of the command with the code of `tree`, in seconds. An exit status above 1 is an error."""
    path = os.pathsep.join(str(tree / part) for part in ("src", "rules"))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment, check=False, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{tree}: {' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def folders(root: Path) -> tuple[Path, Path]:
    """A small checkpoint, and one of 45,000 keys whose files are full of holes."""
    sys.path.insert(0, str(HERE / "tests" / "benchmarks"))
    from plan_scale import DEEPSEEK, deepseek_tensors, write

    small, large = root / "small", root / "large"
    write(small, ((key, dtype, shape) for key, (dtype, shape) in SMALL.items()), 1)
    write(large, deepseek_tensors(), 163)
    (large / "config.json").write_text(json.dumps(DEEPSEEK))
    return small, large


def main(other: Path, turns: int) -> None:
    """Print a line for each command."""
    with tempfile.TemporaryDirectory() as root:
        small, large = folders(Path(root))
        lint = ["-m", "shardlint", "lint", str(small), "--isolated"]
        commands = {
            "shardlint rules": ["-m", "shardlint", "rules"],
            "lint of a small folder": lint,
            "plan of 45,000 keys": ["tests/benchmarks/plan_scale.py", "deepseek", str(large)],
        }
        for name, command in commands.items():
            pairs = [(cpu_seconds(HERE, command), cpu_seconds(other, command)) for _ in range(turns + 1)][1:]
            mine, theirs = (median(times) for times in zip(*pairs, strict=True))
            ratio = median(left / right for left, right in pairs)
            print(f"{name}: {mine:.2f} s here, {theirs:.2f} s there, ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 7)
