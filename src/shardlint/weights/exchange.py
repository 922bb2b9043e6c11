"""
Messages between ranks through the store of the running process group: JSON bytes, no collective, no device.

A rank that raises, dies or never calls does not block the others: every rank beats every two seconds while it works,
and one that has not been heard of for the time limit is named in a `RankError`.
"""

from __future__ import annotations

import itertools
import threading
import time
from types import TracebackType
from typing import Any

BEAT_SECONDS = 2.0
POLL_SECONDS = 0.02
CHUNK_BYTES = 4 << 20

_CALLS = itertools.count(1)


class RankError(RuntimeError):
    """A rank that did not answer within the time limit. `rank` says which."""

    def __init__(self, rank: int, text: str) -> None:
        self.rank = rank
        super().__init__(text)


class Exchange:
    """
    One conversation of all ranks. A context manager; without a process group it talks to itself.

    `limit` is how many seconds a rank may be silent. `sent` counts the bytes that this rank sent.
    """

    def __init__(self, *, limit: float = 60.0, name: str = "weights") -> None:
        self.rank, self.world_size, self._store = _job()
        self._prefix = f"shardlint/{name}/{next(_CALLS)}"
        self._limit = limit
        self._rounds = itertools.count()
        self._done = threading.Event()
        self.sent = 0

    def __enter__(self) -> Exchange:
        if self._store is not None:
            self._store.set(f"{self._prefix}/beat/{self.rank}", "0")
            threading.Thread(target=self._beat, name="shardlint-beat", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()

    def _beat(self) -> None:
        for count in itertools.count(1):
            if self._done.wait(BEAT_SECONDS):
                return
            try:
                self._store.set(f"{self._prefix}/beat/{self.rank}", str(count))
            except Exception:  # the job is going down; the waiting rank says so
                return

    def gather(self, blob: bytes) -> list[bytes]:
        """Send `blob` to rank 0. Returns all ranks' blobs there, an empty list elsewhere. Raises `RankError`."""
        turn = next(self._rounds)
        if self.rank:
            self._put(f"{turn}/{self.rank}", blob)
            return []
        return [blob, *(self._get(f"{turn}/{rank}", rank) for rank in range(1, self.world_size))]

    def scatter(self, blobs: list[bytes]) -> bytes:
        """From rank 0 to each rank its own blob (`blobs` counts there only). Raises `RankError`."""
        turn = next(self._rounds)
        if self.rank:
            return self._get(f"{turn}/{self.rank}", 0)
        for rank in range(1, self.world_size):
            self._put(f"{turn}/{rank}", blobs[rank])
        return blobs[0]

    def broadcast(self, blob: bytes) -> bytes:
        """From rank 0 to all. Raises `RankError`."""
        turn = next(self._rounds)
        if self.rank:
            return self._get(f"{turn}/all", 0)
        self._put(f"{turn}/all", blob)
        return blob

    def _put(self, key: str, blob: bytes) -> None:
        if self._store is None:
            return
        chunks = [blob[at : at + CHUNK_BYTES] for at in range(0, len(blob), CHUNK_BYTES)] or [b""]
        for number, chunk in enumerate(chunks):
            self._store.set(f"{self._prefix}/{key}/{number}", chunk)
        self._store.set(f"{self._prefix}/{key}", str(len(chunks)))
        self.sent += len(blob)

    def _get(self, key: str, rank: int) -> bytes:
        self._await(f"{self._prefix}/{key}", rank)
        count = int(self._store.get(f"{self._prefix}/{key}"))
        return b"".join(bytes(self._store.get(f"{self._prefix}/{key}/{number}")) for number in range(count))

    def _await(self, key: str, rank: int) -> None:
        """Poll, for a blocking wait would hold the store against the beating thread."""
        beat, heard, checked = b"", time.monotonic(), 0.0
        while not self._store.check([key]):
            now = time.monotonic()
            if now - checked > BEAT_SECONDS:
                checked = now
                latest = self._latest_beat(rank)
                if latest != beat:
                    beat, heard = latest, now
            if now - heard > self._limit:
                raise RankError(rank, f"rank {rank} has not been heard of for {self._limit:g} seconds")
            time.sleep(POLL_SECONDS)

    def _latest_beat(self, rank: int) -> bytes:
        key = f"{self._prefix}/beat/{rank}"
        return bytes(self._store.get(key)) if self._store.check([key]) else b""


def _job() -> tuple[int, int, Any]:
    """Rank, world size and store of the running job; 0, 1 and None without one."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return 0, 1, None
    from torch.distributed.distributed_c10d import _get_default_store

    return dist.get_rank(), dist.get_world_size(), _get_default_store()
