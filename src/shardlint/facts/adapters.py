"""Adapters (PEFT) of a model: what was declared, and what came of it. Part of the `model` section."""

from __future__ import annotations

from attrs import frozen

from .frozen import EMPTY, FrozenDict


@frozen(kw_only=True)
class AdapterFacts:
    """
    One adapter of one base model.

    `base` is the FQN of the base model (empty for the root), `base_type` its class. `targets` are the declared names of
    modules, each matching whole trailing segments, or `pattern` is a declared expression. `target_parameters` and
    `modules_to_save` are declared likewise, `task_modules` those of them that the library added for the task, of which
    one is enough. `layers` are the numbers of the layers that are chosen (None when none are), found in names by
    `layers_pattern`. `rank_patterns` are the names and expressions for which ranks or scales of their own are declared.
    `matched` are the FQNs of the modules that carry the adapter, `matched_parameters` the names (in the base model) of
    the parameters that carry one by themselves, `saved` those of the modules that are trained and saved whole, `keys`
    the names of its tensors. `stored_as` gives, by the key under which an adapter file holds it, the name of each
    tensor that is saved with the adapter: an empty name where the library computes what it saves, no entry where that
    is not known. `restricted` says that layers are chosen or excluded by other options, `active` whether the forward
    uses the adapter, None when nothing tells.
    """

    name: str
    kind: str
    base: str
    base_type: str
    targets: tuple[str, ...] = ()
    pattern: str = ""
    target_parameters: tuple[str, ...] = ()
    modules_to_save: tuple[str, ...] = ()
    task_modules: tuple[str, ...] = ()
    layers: tuple[int, ...] | None = None
    layers_pattern: tuple[str, ...] = ()
    rank_patterns: tuple[str, ...] = ()
    matched: tuple[str, ...] = ()
    matched_parameters: tuple[str, ...] = ()
    saved: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    stored_as: FrozenDict = EMPTY
    restricted: bool = False
    active: bool | None = None
