"""Facts that say which of their fields are read, and facts of which one field is not known."""

import functools
import inspect
from collections.abc import Iterator

import attrs

import shardlint.facts
from shardlint import Unknown
from shardlint.engine.runner import SelectedRule, Status, evaluate

FACT_CLASSES = {
    value
    for value in vars(shardlint.facts).values()
    if inspect.isclass(value) and attrs.has(value) and value is not Unknown
}


def status_of(rule, facts):
    """What becomes of one rule over `facts`, as of a built-in one (which is trusted not to change them)."""
    (outcome,) = evaluate(facts, [SelectedRule(rule=rule)]).outcomes
    return outcome.status


def reads(rule, facts):
    """
    What becomes of `rule`, and the leaf fields that it reads: the path of each, and the class that it is a field of.

    A section that is not there is None, never unknown: `Facts.absent` says why.
    """
    log = {}
    status = status_of(rule, _recording(facts, (), log))
    return status, [(path, kind) for path, kind in log if kind != "Facts" and _is_leaf(_at(facts, path))]


def with_unknown(facts, path):
    """`facts` with `Unknown` at `path`; everything else is shared."""
    return _replaced(facts, path, Unknown("swept"))


def _is_fact(value):
    return type(value) in FACT_CLASSES


def _is_leaf(value):
    """Whether no other facts stand below: an empty sequence, which may hold some, is none."""
    return not _is_fact(value) and not (isinstance(value, tuple) and any(_is_fact(member) for member in value))


def _at(value, path):
    for step in path:
        value = value[step] if isinstance(step, int) else getattr(value, step)
    return value


def _replaced(value, path, new):
    if not path:
        return new
    step, *rest = path
    if isinstance(step, int):
        return (*value[:step], _replaced(value[step], rest, new), *value[step + 1 :])
    # Not by evolve(): converters and validators would use the value.
    changed = object.__new__(type(value))
    for field in attrs.fields(type(value)):
        held = getattr(value, field.name)
        object.__setattr__(changed, field.name, _replaced(held, rest, new) if field.name == step else held)
    return changed


@functools.cache
def _recording_class(kind):
    def recorded(field):
        slot = inspect.getattr_static(kind, field.name)

        def read(self):
            self._log[(*self._path, field.name), kind.__name__] = None
            return slot.__get__(self)

        return property(read)

    # Comparing and hashing look at every field, and decide nothing by themselves: they are no reading.
    members = {field.name: recorded(field) for field in attrs.fields(kind)}
    members["__eq__"] = lambda self, other: self._plain == getattr(other, "_plain", other)
    members["__hash__"] = lambda self: hash(self._plain)
    return type(kind.__name__, (kind,), members)


def _recording(value, path, log):
    if isinstance(value, tuple):
        return tuple(_recording(member, (*path, position), log) for position, member in enumerate(value))
    if not _is_fact(value):
        return value
    kind = type(value)
    recording = object.__new__(_recording_class(kind))
    for field in attrs.fields(kind):
        held = _recording(getattr(value, field.name), (*path, field.name), log)
        inspect.getattr_static(kind, field.name).__set__(recording, held)
    for name, extra in (("_log", log), ("_path", path), ("_plain", value)):
        object.__setattr__(recording, name, extra)
    return recording


def judged(status) -> bool:
    """Whether a rule had something to judge, and all that it needed."""
    return status in (Status.CLEAN, Status.FOUND)


def chosen(places, generator, limit) -> Iterator:
    """At most `limit` places of each field of each class, drawn by `generator`."""
    by_field = {}
    for path, kind in places:
        by_field.setdefault((kind, path[-1]), []).append((path, kind))
    for same in by_field.values():
        yield from generator.sample(same, min(limit, len(same)))
