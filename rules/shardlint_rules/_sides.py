"""What the other side of a checkpoint is called: a live model, or the architecture that its own configuration names."""

from __future__ import annotations

from attrs import frozen

from shardlint import Facts


@frozen(kw_only=True)
class SideWords:
    """The words of messages that compare stored keys with what they are for."""

    model: str
    of_class: str
    tensor: str
    tensors: str
    named_tensor: str
    no_place: str
    not_there: str
    is_as: str


_LIVE = SideWords(
    model="the live model",
    of_class="the live class",
    tensor="live tensor",
    tensors="live tensors",
    named_tensor="the live tensor",
    no_place="has no live tensor",
    not_there="which is not live",
    is_as="and live as",
)
_ARCHITECTURE = SideWords(
    model="the architecture",
    of_class="the architecture",
    tensor="tensor of the architecture",
    tensors="tensors of the architecture",
    named_tensor="the architecture's tensor",
    no_place="has no place in the architecture",
    not_there="which the architecture does not have",
    is_as="and are to be",
)


def side_of(facts: Facts) -> SideWords:
    """The words for these facts: where a checkpoint was linted alone, its tensors are those of the architecture."""
    return _LIVE if facts.model is not None else _ARCHITECTURE
