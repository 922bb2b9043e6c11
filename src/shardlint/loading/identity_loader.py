"""The loader that loads every key under its own name, after the renamings that the owner declared."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..facts import EntryFacts, LoadRemark, RoundTrip
from .loader import Converted, Ignored, PlannedTarget, PlanUnknownError, Routes


class IdentityLoader:
    """
    Identity, plus `renames`: pairs of a regular expression and its replacement, each applied in turn to every key.

    Raises `PlanUnknownError` for an expression that does not compile.
    """

    title = "identity"
    quantization = ""

    def __init__(self, renames: Sequence[tuple[str, str]] = ()) -> None:
        self._renames = []
        for source, target in renames:
            try:
                self._renames.append((re.compile(source), target))
            except re.error as error:
                raise PlanUnknownError(
                    f"the declared renaming from {source!r} is no regular expression: {error}"
                ) from error
        self._used: dict[str, None] = {}

    def ordered(self, keys: Sequence[str]) -> Sequence[str]:
        return keys

    def routes(self, keys: Sequence[str], live: Mapping[str, PlannedTarget]) -> Routes:
        return Routes([self._renamed(key) for key in keys] if self._renames else keys, {})

    def _renamed(self, key: str) -> str:
        name = key
        for pattern, replacement in self._renames:
            try:
                name, count = pattern.subn(replacement, name)
            except (re.error, IndexError) as error:
                raise PlanUnknownError(f"the declared renaming to {replacement!r} cannot be used: {error}") from error
            if count:
                self._used[f"{pattern.pattern} -> {replacement}"] = None
        return name

    def operations(self, conversion: Any) -> tuple[str, ...]:
        return ()

    def convert(self, name: str, conversion: Any, parts: Sequence[tuple[str, EntryFacts]], dtype: str) -> Converted:
        raise NotImplementedError("identity has no conversions")

    def ties(self) -> Mapping[str, str]:
        return {}

    def quantised(self) -> frozenset[str]:
        return frozenset()

    def ignored(self) -> Ignored:
        return Ignored()

    def remarks(self) -> Sequence[LoadRemark]:
        return ()

    def round_trips(
        self, sources: Mapping[str, str], live: Mapping[str, PlannedTarget]
    ) -> tuple[Sequence[RoundTrip], int]:
        return (), 0

    def conversions(self) -> tuple[str, ...]:
        return tuple(self._used)
