"""An adapter file beside a live model: which stored key is for which live tensor. Public; no torch."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from ..facts import AdapterFacts, CheckpointFacts, ModelFacts
from .wrapper_names import PEFT_PREFIXES


@frozen(kw_only=True)
class AdapterPlaces:
    """
    The live adapter `name` that a file is for, and what lies where.

    `wanted` gives the live tensor of each key that the file must hold, `places` that of each key that it holds, None
    for a key that no live tensor takes.
    """

    name: str
    wanted: Mapping[str, str] = field(factory=dict)
    places: Mapping[str, str | None] = field(factory=dict)

    def filled(self, model: ModelFacts) -> frozenset[str]:
        """The names of all tensors that the file holds: of a shared tensor one key is enough for all its names."""
        stored = {name for name in self.places.values() if name}
        return frozenset(
            alias for tensor in model.tensors if not stored.isdisjoint(tensor.aliases) for alias in tensor.aliases
        )


def adapter_places(model: ModelFacts, checkpoint: CheckpointFacts) -> AdapterPlaces | None:
    """
    Find the live adapter that shares most keys with the file, the one of the folder's name among equals.

    None where the model has no adapter, or it is not known how its tensors are stored.
    """
    known = [adapter for adapter in model.adapters if adapter.stored_as]
    if not known:
        return None
    keys = {entry.key for entry in checkpoint.entries}
    folder = checkpoint.path.rstrip("/").rpartition("/")[2]

    def fit(adapter: AdapterFacts) -> tuple[int, bool, bool]:
        return len(keys & set(adapter.stored_as)), adapter.name == folder, adapter.name == "default"

    adapter = max(known, key=fit)
    live = frozenset(model.state_dict_keys())
    places = {
        key: adapter.stored_as[key] if key in adapter.stored_as else _kept_whole(key, live) for key in sorted(keys)
    }
    return AdapterPlaces(name=adapter.name, wanted=adapter.stored_as, places=places)


def _kept_whole(key: str, live: frozenset[str]) -> str | None:
    """The tensor of the base, an embedding that was resized, which is stored beside the adapter under its own name."""
    owner, _, last = key.rpartition(".")
    names = [key, f"{owner}.base_layer.{last}"]
    names += [name.removeprefix(PEFT_PREFIXES[0]) for name in names]
    return next((name for name in names if name in live), None)
