"""What the planner and the loaders that it asks have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

from ..facts import EntryFacts, LoadRemark, RoundTrip


class PlanUnknownError(Exception):
    """No plan can be made. The text is one clause that says why; it becomes the reason why the section is absent."""


class ConfigRefusedError(PlanUnknownError):
    """
    No plan can be made because the installed library refuses the configuration.

    `field` is the dotted name of the field that is at fault, empty when it is not known; `detail` what is wrong.
    """

    def __init__(self, detail: str, field: str = "") -> None:
        super().__init__(f"config.json is refused: {f'{field}: ' if field else ''}{detail}")
        self.detail = detail
        self.field = field


@frozen(kw_only=True)
class PlannedTarget:
    """What the planner must know of a live tensor: global shape in elements, dtype as torch names it, its record."""

    shape: tuple[int, ...]
    dtype: str
    identity: str  # the canonical name: equal for all aliases of one tensor


@frozen
class LoadRecipe:
    """A loader's conversion, and the source pattern by which one key is part of it."""

    conversion: Any
    pattern: str


@frozen
class Routes:
    """
    Where stored keys go: of each the live name, or its last name when that is not live, in the order of the keys.

    `recipes` holds the conversions by position; a key without one is merely renamed.
    """

    names: Sequence[str]
    recipes: Mapping[int, LoadRecipe]


@frozen
class Converted:
    """What a conversion gives: shapes by live name, None where the shape could not be followed; or the error."""

    shapes: Mapping[str, tuple[int, ...] | None]
    error: str = ""


@frozen
class Ignored:
    """A list of patterns of names that a loader does not report."""

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()


class Loader(Protocol):
    """The rules of one loader for one model."""

    title: str
    quantization: str

    def ordered(self, keys: Sequence[str]) -> Sequence[str]:
        """Return the keys in the order in which the loader takes them."""

    def routes(self, keys: Sequence[str], live: Mapping[str, PlannedTarget]) -> Routes:
        """Return the routes of the keys."""

    def operations(self, conversion: Any) -> tuple[str, ...]:
        """Return the class names of the operations of a conversion."""

    def convert(self, name: str, conversion: Any, parts: Sequence[tuple[str, EntryFacts]], dtype: str) -> Converted:
        """Follow the shapes of `parts` (pattern and entry) through a conversion whose first live name is `name`."""

    def ties(self) -> Mapping[str, str]:
        """Return the declared ties, live name to live name."""

    def quantised(self) -> frozenset[str]:
        """Return the live names of tensors that were quantised while loading: new values, of other dtype and shape."""

    def ignored(self) -> Ignored:
        """Return the ignore lists."""

    def remarks(self) -> Sequence[LoadRemark]:
        """Return what is wrong with the rules themselves."""

    def round_trips(
        self, sources: Mapping[str, str], live: Mapping[str, PlannedTarget]
    ) -> tuple[Sequence[RoundTrip], int]:
        """Save and load the names of `sources` (live name to key) and return what does not come back, and the count."""

    def conversions(self) -> tuple[str, ...]:
        """Describe the conversions that took part."""
