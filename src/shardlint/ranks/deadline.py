"""
Calls to the store with a deadline: the host of the store may be frozen, and a call would then wait for ever.

The calls run in a thread of their own, so that the rank can give up, and a signal still reaches it.
"""

from __future__ import annotations

import queue
import threading
from typing import Any


class StoreSilentError(Exception):
    """The store did not answer in time: its host is frozen, or cannot be reached."""


class StoreLine:
    """
    One line to a store: calls are made one after another by a daemon thread, which does not keep a process alive.

    A store inside this process always answers, so it is called directly.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._direct = type(store).__name__ == "HashStore"
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._silent = False

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        """
        What the store's method of that name returns.

        Raises `StoreSilentError` when it has not answered within `seconds`, and then at once until it does; else what
        the method raises.
        """
        if self._direct:
            return getattr(self._store, name)(*arguments)
        if self._silent:
            raise StoreSilentError("it has stopped answering")
        self._start()
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._calls.put((name, arguments, answer))
        try:
            error, value = answer.get(timeout=seconds)
        except queue.Empty:
            self._silent = True
            raise StoreSilentError(f"it has not answered for {seconds:g} s") from None
        if error is not None:
            raise error
        return value

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="shardlint-store", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        while True:
            name, arguments, answer = self._calls.get()
            said: tuple[Exception | None, Any]
            try:
                said = None, getattr(self._store, name)(*arguments)
            except Exception as error:
                said = error, None
            self._silent = False
            answer.put(said)
