"""
Collect facts: from live objects, from a checkpoint's headers, from a facts file. The only part that touches torch.

Importing this package imports no torch; collecting from a model does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from attrs import evolve

from ..facts import Facts, FrozenDict, Section
from ..target import Target, TargetError
from .collection import Assembly
from .options import CollectOptions
from .targets import Resolved, resolve

if TYPE_CHECKING:
    from ..introspect.walk import Walk

__all__ = ["CollectOptions", "Collector", "Resolved", "TargetError", "collect", "collect_resolved", "resolve"]


@runtime_checkable
class Collector(Protocol):
    """
    What a pack's `shardlint_collectors` returns: something that fills a section of the facts.

    `section` is the name of the section (`sharding`). `collect` gets the target, the walk over its model (None when
    there is no model) and the facts collected so far, and returns the section's facts, or None to leave it as it is.
    It must not change anything that it is given. What it raises is reported (SL002), and everything else goes on.
    """

    name: str
    section: str

    def collect(self, target: Target, walk: Walk | None, facts: Facts) -> Any:
        """Return the facts of the section, or None."""


def collect(target: Target, options: CollectOptions | None = None) -> Facts:
    """
    Collect every section that `target` has something for. Nothing of the target is changed.

    A section that is absent says why; a collector that failed stands in `Facts.problems`.

    Raises `TargetError` for a model that is not a module, a load report that is none, a contract name that does not
    exist.
    """
    return Assembly(target, options or CollectOptions()).run()


def collect_resolved(
    resolved: Resolved, options: CollectOptions | None = None, checkpoint: str | Path | None = None
) -> Facts:
    """
    Return the facts of what `resolve` found. A facts file is taken as it stands.

    `checkpoint` (of `--checkpoint`) wins over the one that the target names. Raises `TargetError` as `collect` does,
    and for a checkpoint or contract given together with a facts file.
    """
    options = options or CollectOptions()
    if resolved.facts is not None:
        given = [name for name, value in (("--checkpoint", checkpoint), ("--contract", options.contract)) if value]
        if given:
            raise TargetError(f"{' and '.join(given)} cannot be added to facts that were collected before")
        return resolved.facts
    if resolved.build is not None and resolved.build.failed:
        reason = "building the model failed"
        absent = {section.value: reason for section in Section if section is not Section.BUILD}
        return Facts(target=resolved.text, build=resolved.build, absent=FrozenDict(absent))
    target = resolved.target or Target()
    if checkpoint is not None:
        target = evolve(target, checkpoint=checkpoint)
    return collect(target, evolve(options, build=resolved.build))
