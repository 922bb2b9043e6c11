"""The loader that loads every key under its own name, after declared renamings, with or without a base prefix."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..facts import EntryFacts, LoadRemark, RoundTrip
from .loader import Converted, Ignored, PlannedTarget, PlanUnknownError, Routes


class IdentityLoader:
    """
    Identity, plus `renames`: pairs of a regular expression and its replacement, each applied in turn to every key.

    A name that is not live is the live one with the prefix of the base model, or without it, as in Transformers.

    Raises `PlanUnknownError` for an expression that does not compile.
    """

    title = "identity"
    quantization = ""

    def __init__(self, renames: Sequence[tuple[str, str]] = (), base_prefix: str = "") -> None:
        self._prefix = f"{base_prefix}." if base_prefix else ""
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
        names = [self._renamed(key) for key in keys] if self._renames else keys
        return Routes([self._based(name, live) for name in names] if self._prefix else names, {})

    def _based(self, name: str, live: Mapping[str, PlannedTarget]) -> str:
        if name in live:
            return name
        other = name.removeprefix(self._prefix) if name.startswith(self._prefix) else self._prefix + name
        return other if other in live else name

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
