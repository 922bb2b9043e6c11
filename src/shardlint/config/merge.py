"""
How the settings of a file that extends others combine with theirs.

The files are applied in the order in which they are named, the extending file last, and the later one wins:

- a single value replaces the inherited one;
- a mapping is merged key by key, at every depth;
- a list replaces the inherited list, except those to which the schema says that they append: `lint.extend-select`,
  `lint.ignore`, `lint.suppress`, `packs.require`, `packs.disable` and `packs.local` are added after the inherited ones;
- `lint.select` replaces the selection: with it, the inherited `select`, `extend-select`, `ignore` and `severity: off`
  are forgotten. Without it, the inherited selection is edited, as the command line edits that of the file.
"""

from __future__ import annotations

from attrs import evolve

from .schema import all_keys
from .values import Value

_APPENDED = frozenset(path for path, key in all_keys() if key.appends)
_FORGOTTEN = ("select", "extend-select", "ignore")


def merge(base: Value, over: Value) -> Value:
    """The settings of `over`, with those of `base` where it says nothing."""
    return _merge(_forgetting(base) if over.get("lint", "select") else base, over, "")


def _merge(base: Value, over: Value, path: str) -> Value:
    if isinstance(base.data, dict) and isinstance(over.data, dict):
        data = dict(base.data)
        for key, value in over.data.items():
            inner = f"{path}.{key}" if path else key
            data[key] = _merge(data[key], value, inner) if key in data else value
        return Value(data, over.source)
    if path in _APPENDED:
        return Value((*base.data, *over.data), over.source)
    return over


def _forgetting(base: Value) -> Value:
    lint = base.get("lint")
    if lint is None:
        return base
    data = {key: value for key, value in lint.data.items() if key not in _FORGOTTEN}
    if "severity" in data:
        levels = {key: value for key, value in data["severity"].data.items() if value.data != "off"}
        data["severity"] = evolve(data["severity"], data=levels)
    return evolve(base, data={**base.data, "lint": evolve(lint, data=data)})
