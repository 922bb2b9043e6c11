"""Adapters (PEFT) of a model: what was declared, and what came of it. Part of the `model` section."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class AdapterFacts:
    """
    One adapter of one base model.

    `base` is the FQN of the base model (empty for the root), `base_type` its class. `targets` are the declared names of
    modules, each matching whole trailing segments, or `pattern` is a declared expression. `target_parameters` and
    `modules_to_save` are declared likewise. `matched` are the FQNs of the modules that carry the adapter, `keys` the
    names of its tensors. `restricted` says that layers are chosen or excluded by other options, `active` whether the
    forward uses the adapter, None when nothing tells.
    """

    name: str
    kind: str
    base: str
    base_type: str
    targets: tuple[str, ...] = ()
    pattern: str = ""
    target_parameters: tuple[str, ...] = ()
    modules_to_save: tuple[str, ...] = ()
    matched: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    restricted: bool = False
    active: bool | None = None
