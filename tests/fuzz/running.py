"""Run mutated folders through collection, each with a limit of time, and count what came of them."""

import random
import resource
import shutil
import signal
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from safetensors import SafetensorError, safe_open

from shardlint.checkpoint.folder import CheckpointError, collect_checkpoint
from shardlint.checkpoint.optimizer_state import stored_optimizers
from shardlint.facts import Facts
from shardlint.facts.codec import FactsError, decode_facts, encode_facts

from .mutate import folder, mutated

SECONDS = 10


class Hang(BaseException):
    """The limit of time."""


def _hang(number, frame):
    raise Hang


def one(seed: int, place: Path) -> str:
    """What became of the input `seed`: ok, clean error, traceback, hang or wrong green."""
    rng = random.Random(seed)
    path = place / str(seed)
    before = signal.signal(signal.SIGALRM, _hang)
    signal.alarm(SECONDS)
    try:
        part = folder(rng, path)
        facts = collect_checkpoint(path)
        stored = stored_optimizers(path)
        encoded = encode_facts(Facts(checkpoint=facts))
        decode_facts(encoded)
        _decoded(mutated(rng, encoded))
        if part == "header" and _refused(path / "model.safetensors") and not facts.problems:
            return "wrong green"
        return "clean error" if facts.problems or any(item.problem for item in stored) else "ok"
    except CheckpointError:
        return "clean error"
    except Hang:
        return "hang"
    except Exception:
        traceback.print_exc()
        return "traceback"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        shutil.rmtree(path, ignore_errors=True)


def _decoded(data: bytes) -> None:
    try:
        decode_facts(data)
    except FactsError:
        return


def _refused(file: Path) -> bool:
    try:
        with safe_open(str(file), "pt"):
            return False
    except SafetensorError:
        return True


def table(seeds: range) -> tuple[Counter[str], list[int]]:
    """The counts of all inputs, and the seeds of those that went wrong."""
    counts: Counter[str] = Counter()
    wrong = []
    with tempfile.TemporaryDirectory() as place:
        for seed in seeds:
            came_of_it = one(seed, Path(place))
            counts[came_of_it] += 1
            if came_of_it in ("traceback", "hang", "wrong green"):
                wrong.append(seed)
    counts["memory (MiB)"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return counts, wrong
