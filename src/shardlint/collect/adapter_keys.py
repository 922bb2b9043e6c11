"""Under which keys an adapter file holds the tensors of a live adapter: asked of PEFT, where that is possible."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

from ..analysis.wrapper_names import PEFT_PREFIXES, base_name
from ..facts import FrozenDict
from ..introspect.attributes import read
from ..introspect.plain import encodable
from ..introspect.walk import Walk, WalkedModule
from ..names import below


def stored_as(walk: Walk, holder: WalkedModule, adapter: str, config: Any) -> FrozenDict:
    """
    The names of the adapter's tensors by the keys of its file; an empty name where PEFT computes what it saves.

    A tensor that layers share has a name for each key. Empty for prompts whose file holds computed values.

    PEFT gets the tensors by name, not the module's `state_dict()`: that would gather shards.
    """
    start = f"{holder.fqn}." if holder.fqn else ""
    tensors = {
        name.removeprefix(start): (name, tensor.tensor)
        for tensor in walk.tensors
        for name in tensor.names
        if below(name, holder.fqn) and name not in tensor.hidden
    }
    if read(config, "is_prompt_learning") is True:
        return _prompt(tensors, adapter)
    asked = _asked(holder.module, adapter, {key: tensor for key, (_, tensor) in tensors.items()})
    if asked is None:
        asked = {_without(key, adapter): tensor for key, (_, tensor) in tensors.items() if _is_own(key, adapter)}
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.values():
        names.setdefault(id(tensor), []).append(name)
    own = {id(tensor) for tensor in asked.values()}
    taken = {number: iter(aliases) for number, aliases in names.items() if number in own}
    whole, inner = PEFT_PREFIXES
    prefix = inner if type(holder.module).__module__.startswith("peft.") else whole
    return FrozenDict(
        {
            encodable(key if key.startswith(prefix) else prefix + key): encodable(next(taken[id(tensor)], ""))
            if id(tensor) in taken
            else ""
            for key, tensor in asked.items()
        }
    )


def _asked(model: Any, adapter: str, tensors: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What PEFT would save of these tensors; None when it is not there or refuses."""
    library = sys.modules.get("peft")
    ask = getattr(library, "get_peft_model_state_dict", None)
    if ask is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = ask(model, state_dict=dict(tensors), adapter_name=adapter, save_embedding_layers=False)
    except Exception:  # another version's: the names tell as well
        return None
    return found if isinstance(found, Mapping) else None


def _prompt(tensors: Mapping[str, tuple[str, Any]], adapter: str) -> FrozenDict:
    """The embeddings of a prompt, which are stored as they are unless other layers compute on them."""
    own = [key for key in tensors if key.startswith(f"prompt_encoder.{adapter}.")]
    embedding = f"prompt_encoder.{adapter}.embedding.weight"
    return FrozenDict({"prompt_embeddings": tensors[embedding][0]} if own == [embedding] else {})


def _is_own(key: str, adapter: str) -> bool:
    return base_name(key) is None and adapter in key.split(".")


def _without(key: str, adapter: str) -> str:
    return ".".join(part for part in key.split(".") if part not in (adapter, "modules_to_save"))
