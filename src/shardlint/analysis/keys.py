"""Checkpoint keys and live names: resolving one to the other, and guessing which was meant. Public; no torch."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import define, field

from ..facts import CheckpointFacts, ClassDeclaration, Facts, ModelFacts
from ..names import closest
from .model_config import all_integers, is_quantised
from .wrapper_names import without_adapter

_NUMBER = re.compile(r"[0-9]+")
_POOL = 200  # patterns compared with one name: difflib is quadratic, and real families have far fewer


def root_declaration(model: ModelFacts) -> ClassDeclaration | None:
    """Return what the root class declares; of a model wrapped by an adapter, what the class inside declares."""
    if is_adapter(model):
        return min(model.declarations, key=lambda item: len(item.fqn), default=None)
    return next((item for item in model.declarations if not item.fqn), None)


def is_adapter(model: ModelFacts) -> bool:
    """Whether PEFT modules stand in the tree, so that live names differ from those of the base checkpoint."""
    return any(module.qualified_type.startswith("peft.") for module in model.modules)


class KeyResolver:
    """
    Finds the live name that a checkpoint key is for, in a model whose key mapping is the identity.

    The base-model prefix is added or taken away where that makes the name exist, as loading does. Names that an adapter
    wrapped are known under their plain name too.
    """

    def __init__(self, model: ModelFacts) -> None:
        root = root_declaration(model)
        self.prefix = f"{root.base_model_prefix}." if root and root.base_model_prefix else ""
        names = model.state_dict_keys()
        self._live = {name: name for name in names}
        if is_adapter(model):
            self._live = {without_adapter(name): name for name in names} | self._live

    def live_name(self, key: str) -> str | None:
        """Return the live name for `key`, None when no persistent tensor answers to it."""
        return next((self._live[name] for name in self.variants(key) if name in self._live), None)

    def variants(self, key: str) -> Iterator[str]:
        """Every name that `key` may stand for, the likeliest first."""
        yield key
        if self.prefix:
            if key.startswith(self.prefix):
                yield key[len(self.prefix) :]
            yield self.prefix + key


def identity_reason(facts: Facts) -> str | None:
    """
    Return why stored keys and live names cannot be compared one by one; None when they can.

    They cannot where a conversion maps them, where nobody knows whether one does, and where the checkpoint is quantised
    or holds an adapter: then one live tensor has several stored parts, or none.
    """
    model, checkpoint = facts.model, facts.checkpoint
    if model is None or checkpoint is None:
        return "no model or no checkpoint to compare"
    if checkpoint.format == "adapter":
        return "the checkpoint holds an adapter, not the tensors of the model"
    if checkpoint.format not in ("safetensors", "safetensors-sharded"):
        return f"a checkpoint in the format {checkpoint.format} has no headers whose names could be compared"
    if any(is_quantised(config) for config in (model.config, checkpoint.config)):
        return "the checkpoint is quantised: a live tensor may be stored as several"
    if model.key_mapping == "identity":
        return None
    if model.key_mapping is None and model.model_type is None and not model.declarations:
        return None  # a plain module: nothing stands between its names and its file
    if model.key_mapping is None:
        return "nobody knows whether a conversion maps the checkpoint's keys to the live names"
    return "a conversion maps the checkpoint's keys to the live names, and no load report tells what it did"


def unread_files(checkpoint: CheckpointFacts) -> tuple[str, ...]:
    """Files that count and whose keys are unknown because their header could not be read."""
    named = set(checkpoint.index.weight_map.values()) if checkpoint.index else None
    broken = {problem.file for problem in checkpoint.problems if problem.key is None}
    read = {entry.file for entry in checkpoint.entries}
    return tuple(sorted(file for file in broken - read if named is None or file in named))


def list_lengths(names: Iterable[str]) -> dict[str, int]:
    """For every prefix that is followed by a number (`model.layers`): the largest number plus one."""
    lengths: dict[str, int] = {}
    for name in names:
        for number in _NUMBER.finditer(name):
            begin, end = number.span()
            if begin and name[begin - 1] == "." and name[end : end + 1] == ".":
                prefix, length = name[: begin - 1], int(number.group()) + 1
                if length > lengths.get(prefix, 0):
                    lengths[prefix] = length
    return lengths


def config_cuts(live: Mapping[str, Any] | None, stored: Mapping[str, Any] | None) -> set[int]:
    """The live values of integer settings that are smaller in the live configuration than in the stored one."""
    before, after = dict(all_integers(stored or {})), dict(all_integers(live or {}))
    return {value for key, value in after.items() if value < before.get(key, value)}


def layer_counts(config: Mapping[str, Any] | None) -> set[int]:
    """The values of the settings of a configuration that count layers."""
    return {value for key, value in all_integers(config or {}) if "layer" in key or key.endswith(("depth", "depths"))}


@define
class Candidates:
    """
    The stored or live names that look most like a given one, found by pattern, so that thousands of names stay cheap.

    Numbers are taken out before names are compared; among the names of the nearest pattern, the one with the same
    numbers is preferred.
    """

    names: tuple[str, ...]
    _by_pattern: dict[str, dict[tuple[str, ...], str]] = field(init=False)
    _nearest: dict[str, tuple[str, ...]] = field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self._by_pattern = {}
        for name in self.names:
            members = self._by_pattern.setdefault(_NUMBER.sub("#", name), {})
            members.setdefault(tuple(_NUMBER.findall(name)), name)

    def near(self, name: str) -> tuple[str, ...]:
        """At most three names that look like `name`, best first."""
        pattern = _NUMBER.sub("#", name)
        if pattern not in self._nearest:
            self._nearest[pattern] = closest(pattern, self._pool(pattern))
        numbers = tuple(_NUMBER.findall(name))
        return tuple(self._best(found, numbers) for found in self._nearest[pattern])

    def _pool(self, pattern: str) -> list[str]:
        ending = pattern.rpartition(".")[2]
        same_end = [item for item in self._by_pattern if item.rpartition(".")[2] == ending]
        return (same_end + [item for item in self._by_pattern if item not in set(same_end)])[:_POOL]

    def _best(self, pattern: str, numbers: tuple[str, ...]) -> str:
        members = self._by_pattern[pattern]
        return members[numbers] if numbers in members else next(iter(members.values()))


@define
class ShapedCandidates:
    """
    The names of the other side that may be meant, with their shapes and dtypes (both as anything that can be compared).

    Names of the same layer and shape come first, those of the same dtype before others, then what looks most alike;
    where no name has the shape, names alone decide.
    """

    forms: Mapping[str, tuple[tuple[int, ...], str]]
    _by_place: dict[tuple[tuple[int, ...], tuple[str, ...]], list[str]] = field(init=False, factory=dict)
    _by_name: Candidates = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._by_name = Candidates(tuple(self.forms))
        for name, (shape, _) in self.forms.items():
            self._by_place.setdefault((shape, _layer(name)), []).append(name)

    def near(self, name: str, form: tuple[tuple[int, ...], str] | None) -> tuple[str, ...]:
        """At most three names that may be meant by `name`, best first; `form` is its shape and dtype when known."""
        if form is None:
            return self._by_name.near(name)
        shape, dtype = form
        ending = name.rpartition(".")[2]
        same = [
            other
            for other in self._by_place.get((shape, _layer(name)), ())[:_POOL]
            if other.rpartition(".")[2] == ending
        ]
        matcher = difflib.SequenceMatcher(None, "", name)  # it remembers what it knows of its second text

        def likeness(other: str) -> tuple[bool, float]:
            matcher.set_seq1(other)
            return self.forms[other][1] == dtype, matcher.ratio()

        return tuple(sorted(same, key=likeness, reverse=True)[:3]) or self._by_name.near(name)


def _layer(name: str) -> tuple[str, ...]:
    """The first number of a name, which is that of its layer; nothing without one."""
    return tuple(_NUMBER.findall(name)[:1])
