"""
Building an architecture once in a process of its own, to see whether it ends within limits of time and memory.

A configuration with ordinary numbers is built at once: only what may grow large pays for the process.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from .build_limits import CPU_SECONDS, MEMORY, BuildGivenUp, memory_limit

WALL_SECONDS = 120.0
"""From start to end, with the imports of the process."""

_MOST_ITEMS = 4096
# The largest number, by the name of its key, with which building takes a moment; None where it costs nothing.
_ORDINARY = (
    (re.compile(r"id$|ids$|index$|seed|theta|freq|base$|scal|param|eps|clip|softcap|value", re.IGNORECASE), None),
    (re.compile(r"label", re.IGNORECASE), 2**17),
    (re.compile(r"image|patch|resolution|height|width|frames", re.IGNORECASE), 768),
    (re.compile(r"vocab|position|seq|token|bucket|len", re.IGNORECASE), 2**24),
    (re.compile(r"size$|dim|channel|feature|rank|planes", re.IGNORECASE), 2**18),
    (re.compile(r"expert", re.IGNORECASE), 1024),
    (
        re.compile(
            r"layer(s|_types)?$|depth|block(s|_repeats)?$|stage|repeat|coef|mult|ratio|expan|attention_types",
            re.IGNORECASE,
        ),
        256,
    ),
    (re.compile(""), 2**15),
)
_START = (
    "import json, sys; job = json.load(sys.stdin); sys.path[:] = job['path']; "
    "from shardlint.loading.trial import run; sys.exit(run(job['config'], job['seconds'], job['memory']))"
)
_NO_MEMORY = 3


def is_ordinary(config: Any) -> bool:
    """Whether nothing in the plain configuration, of whatever class, can make building long or large."""
    numbers = list(_numbers(config, "", [_MOST_ITEMS]))
    return all(abs(number) <= limit for number, limit in numbers if limit is not None)


def _numbers(value: Any, key: str, left: list[int]) -> Iterator[tuple[float, float | None]]:
    """Every number with what is ordinary for it; one that is not for a configuration of too many values."""
    left[0] -= 1
    if left[0] < 0:
        yield 1, 0
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not re.search("id2label|label2id", str(name)):
                yield from _numbers(inner, str(name), left)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _numbers(inner, key, left)
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        yield value, next(limit for pattern, limit in _ORDINARY if pattern.search(key))


def try_building(config: Mapping[str, Any]) -> None:
    """
    Build `config` in a process of its own, which is ended at the limits. Returns whatever else becomes of it.

    Raises `BuildGivenUp` when it took too long, and `MemoryError` when it grew too large.
    """
    job = {"path": sys.path, "config": config, "seconds": CPU_SECONDS, "memory": MEMORY}
    command = [sys.executable, "-I", "-W", "ignore", "-c", _START]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(job).encode(),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=WALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildGivenUp(f"more than {WALL_SECONDS:g} seconds") from error
    except OSError as error:
        raise BuildGivenUp(f"no process to try it in: {error.strerror}") from error
    if done.returncode == _NO_MEMORY:
        raise BuildGivenUp(f"more than {MEMORY // 2**20} MiB of memory")
    if done.returncode < 0:
        raise BuildGivenUp(f"more than {CPU_SECONDS:g} seconds of processor time")


def run(config: dict[str, Any], seconds: float, memory: int) -> int:
    """Build `config` in this process, which is there for nothing else; the exit status."""
    import resource

    from .meta_model import build_plain

    for name in ("torch", "transformers"):  # before anything is bounded
        importlib.import_module(name)
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = max(1, round(used.ru_utime + used.ru_stime + seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    try:
        with memory_limit(memory):
            build_plain(config)
    except MemoryError:
        os._exit(_NO_MEMORY)  # freeing what was built takes long
    except BaseException:  # said where it is built in earnest
        os._exit(0)
    os._exit(0)
