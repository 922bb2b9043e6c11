"""The `load` section: what a loader reported after it had filled the model."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class MismatchedKey:
    """A key whose stored shape is not the live shape."""

    key: str
    stored_shape: tuple[int, ...]
    live_shape: tuple[int, ...]


@frozen(kw_only=True)
class ConversionFacts:
    """
    One weight conversion that was recorded while loading.

    `operations` are the class names of its operations, empty for a mere renaming. `reverse_error` says why
    `reverse_transform` does not work; None when it does.
    """

    qualified_type: str
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    reverse_error: str | None = None


@frozen(kw_only=True)
class LoadFacts:
    """
    The retained load report. `loaded` is None when the loader did not say which keys it loaded.

    `reported` is False when nobody retained the keys and only recorded conversions are known: `missing`, `unexpected`
    and `mismatched` are then empty and mean nothing.
    """

    loader: str
    reported: bool = True
    loaded: tuple[str, ...] | None = None
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[MismatchedKey, ...] = ()
    errors: tuple[str, ...] = ()
    conversions: tuple[ConversionFacts, ...] = ()
