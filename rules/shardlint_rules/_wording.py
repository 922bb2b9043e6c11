"""Words for the other side of a checkpoint: a live model, or the architecture that its own configuration names."""

from __future__ import annotations

from shardlint import Facts

# Longer phrases first: each is replaced where it stands.
_WITHOUT_MODEL = (
    ("has no live tensor", "has no place in the architecture"),
    ("the live tensor ", "the architecture's tensor "),
    ("live tensors", "tensors of the architecture"),
    ("live tensor", "tensor of the architecture"),
    ("the live model", "the architecture"),
    ("the live class", "the architecture"),
    ("which is not live", "which the architecture does not have"),
    (" and live as ", " and are to be "),
)


def spoken(facts: Facts, text: str) -> str:
    """
    Return `text`, which speaks of a live model, as it must be said of these facts.

    Where a checkpoint was linted alone there is no live model, and its tensors are those of the architecture.
    """
    if facts.model is None:
        for live, alone in _WITHOUT_MODEL:
            text = text.replace(live, alone)
    return text
