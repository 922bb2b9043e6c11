"""
What the fields of a contract take: converters, checks, and the kind and the help of the setting that stands for each.

The classes in `contract.py` are the one definition of a contract; the settings (`config/contract_table.py`) and the
reader of plain data (`contract_mapping.py`) are made from their fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import NOTHING, Attribute, field, frozen

from .facts import EMPTY, FrozenDict

LIFECYCLE_PHASES = ("structure", "materialization", "checkpoint", "runtime")
"""The phases of an invariant. One that declares another phase is not evaluated, and reported as D101."""

PROBE_STAGES = ("build", "load", "train", "save")
"""When a probe is to be compared: after building, after loading, after a training step, after saving."""

COMPARISONS = ("exact", "numeric")
"""How two values are compared: bit by bit, or as numbers."""

IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\Z")


class ContractError(ValueError):
    """
    A contract, or a part of it, that cannot be used.

    `where` is the field (`probes[0].glob`), `problem` what was expected and what was found. `problems` holds all of
    them as pairs when a whole mapping was read.
    """

    def __init__(self, where: str, problem: str, problems: Iterable[tuple[str, str]] = ()) -> None:
        self.where = where
        self.problem = problem
        self.problems = tuple(problems) or ((where, problem),)
        super().__init__("\n".join(f"{place}: {text}" for place, text in self.problems))


@frozen(kw_only=True)
class Setting:
    """
    How a field is written in the settings: its `kind`, its `meaning`, and what the kind needs.

    `choices` are the values of a choice, `part` the class of a table or of the items of a list of tables, `unique` the
    field whose values must differ among them.
    """

    kind: str
    meaning: str
    choices: tuple[str, ...] = ()
    part: type | None = None
    unique: str = ""


def setting_of(attribute: Attribute[Any]) -> Setting:
    """The setting that stands for a field of a class of the contract."""
    setting: Setting = attribute.metadata["setting"]
    return setting


def shown(value: object) -> str:
    """What stood there, and its type."""
    return f"{value!r} ({type(value).__name__})"


def wrong_value(instance: object, attribute: Any, expected: str, value: object) -> ContractError:
    """The error for a value of a field: what was expected, and what was found."""
    return ContractError(f"{type(instance).__name__}.{attribute.name}", f"expected {expected}, got {shown(value)}")


def is_name(instance: object, attribute: Any, value: Any) -> None:
    """A string that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise wrong_value(instance, attribute, "a name that is not empty", value)


def is_text(instance: object, attribute: Any, value: Any) -> None:
    """A string."""
    if not isinstance(value, str):
        raise wrong_value(instance, attribute, "a string", value)


def is_bool(instance: object, attribute: Any, value: Any) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise wrong_value(instance, attribute, "true or false", value)


def is_optional_bool(instance: object, attribute: Any, value: Any) -> None:
    """True, false or None."""
    if value is not None:
        is_bool(instance, attribute, value)


def is_sequence(instance: object, attribute: Any, value: Any) -> tuple[object, ...]:
    """A sequence, which converters have made a tuple of."""
    if not isinstance(value, tuple):
        raise wrong_value(instance, attribute, "a sequence", value)
    return value


def are_names(instance: object, attribute: Any, value: Any) -> None:
    """Names or globs that are not empty."""
    for item in is_sequence(instance, attribute, value):
        if not isinstance(item, str) or not item.strip():
            raise wrong_value(instance, attribute, "names or globs that are not empty", item)


def are_stages(instance: object, attribute: Any, value: Any) -> None:
    """Stages of a probe."""
    for item in is_sequence(instance, attribute, value):
        if item not in PROBE_STAGES:
            raise wrong_value(instance, attribute, f"stages among {', '.join(PROBE_STAGES)}", item)


def are_groups(instance: object, attribute: Any, value: Any) -> None:
    """Groups of at least two names or globs."""
    for group in is_sequence(instance, attribute, value):
        if not isinstance(group, tuple) or len(group) < 2:
            raise wrong_value(instance, attribute, "groups of at least two names or globs", group)
        are_names(instance, attribute, group)


def is_comparison(instance: object, attribute: Any, value: Any) -> None:
    """How values are compared."""
    if value not in COMPARISONS:
        raise wrong_value(instance, attribute, f"one of {', '.join(COMPARISONS)}", value)


def is_callable(instance: object, attribute: Any, value: Any) -> None:
    """A callable, or the import path of one."""
    if callable(value) or (isinstance(value, str) and IMPORT_PATH.match(value)):
        return
    raise wrong_value(instance, attribute, "a callable or an import path `package.module:name`", value)


def are_shapes(instance: object, attribute: Any, value: Any) -> None:
    """Shapes of whole numbers above 0, by glob."""
    if not isinstance(value, FrozenDict):
        raise wrong_value(instance, attribute, "a mapping of globs to shapes", value)
    for glob, shape in value.items():
        sizes = shape if isinstance(shape, tuple) else ("",)
        if not glob.strip() or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
            raise wrong_value(instance, attribute, f"a shape of whole numbers above 0 for {glob!r}", shape)


def are_names_by_key(instance: object, attribute: Any, value: Any) -> None:
    """Names or globs that are not empty, by a key that is not."""
    if not isinstance(value, FrozenDict):
        raise wrong_value(instance, attribute, "a mapping of names to sequences of names", value)
    for key, names in value.items():
        if not key.strip():
            raise wrong_value(instance, attribute, "keys that are not empty", key)
        if not isinstance(names, tuple) or not names:
            raise wrong_value(instance, attribute, f"a sequence of names for {key!r}", names)
        are_names(instance, attribute, names)


def as_tuple(value: Any) -> Any:
    """A sequence or set as a tuple; one string is one name, not its letters. Anything else is for the validator."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(value, key=repr))
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, Mapping) else value


def as_groups(value: Any) -> Any:
    """Groups of names as tuples; a mapping of names to names gives pairs. Anything else is for the validator."""
    if isinstance(value, Mapping):
        return tuple((name, partner) for name, partner in value.items())
    groups = as_tuple(value)
    return tuple(map(as_tuple, groups)) if isinstance(groups, tuple) else groups


def as_frozen(value: Any) -> Any:
    """A mapping with frozen sequences of names. Anything else is for the validator."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        return value
    try:
        return FrozenDict({key: as_tuple(names) for key, names in value.items()})
    except TypeError:  # values that are no plain data
        return value


def as_plain(value: Any) -> Any:
    """A mapping of plain values, frozen. Anything else is for the validator."""
    try:
        return FrozenDict(value) if isinstance(value, Mapping) else value
    except TypeError:  # keys that are no strings, values that are no plain data
        return value


def is_plain_mapping(instance: object, attribute: Any, value: Any) -> None:
    """Plain values by name."""
    if not isinstance(value, FrozenDict):
        raise wrong_value(instance, attribute, "a mapping of names to plain values", value)


def are_members(kind: type) -> Callable[[object, Any, Any], None]:
    """Objects of one class."""

    def check(instance: object, attribute: Any, value: Any) -> None:
        for index, item in enumerate(is_sequence(instance, attribute, value)):
            if not isinstance(item, kind):
                where = f"{type(instance).__name__}.{attribute.name}[{index}]"
                raise ContractError(where, f"expected a {kind.__name__}, got {shown(item)}")

    return check


def name_field(meaning: str, *, glob: bool = False, default: Any = NOTHING) -> Any:
    """A name, or a glob, that is not empty."""
    setting = Setting(kind="glob" if glob else "name", meaning=meaning)
    return field(default=default, validator=is_name, metadata={"setting": setting})


def text_field(meaning: str) -> Any:
    """A string, which may be empty."""
    return field(default="", validator=is_text, metadata={"setting": Setting(kind="name", meaning=meaning)})


def names_field(meaning: str = "", *, globs: bool = False, some: bool = False) -> Any:
    """Names, or globs; with `some`, at least one in the settings."""
    setting = Setting(kind=("some " if some else "") + ("globs" if globs else "names"), meaning=meaning)
    return field(default=(), converter=as_tuple, validator=are_names, metadata={"setting": setting})


def flag_field(meaning: str, *, default: bool) -> Any:
    """True or false."""
    return field(default=default, validator=is_bool, metadata={"setting": Setting(kind="flag", meaning=meaning)})


def optional_flag_field(meaning: str = "") -> Any:
    """True, false, or None when nothing is said."""
    return field(default=None, validator=is_optional_bool, metadata={"setting": Setting(kind="flag", meaning=meaning)})


def choice_field(meaning: str, choices: tuple[str, ...], validator: Callable[..., None], default: str) -> Any:
    """One of some words."""
    setting = Setting(kind="choice", meaning=meaning, choices=choices)
    return field(default=default, validator=validator, metadata={"setting": setting})


def choices_field(meaning: str, choices: tuple[str, ...], validator: Callable[..., None]) -> Any:
    """Some of some words."""
    setting = Setting(kind="choices", meaning=meaning, choices=choices)
    return field(default=(), converter=as_tuple, validator=validator, metadata={"setting": setting})


def callable_field(meaning: str) -> Any:
    """A callable, or its import path."""
    return field(validator=is_callable, metadata={"setting": Setting(kind="import", meaning=meaning)})


def names_by_key_field(meaning: str, *, globs: bool = False) -> Any:
    """Names, or globs, by a name."""
    setting = Setting(kind="globs by name" if globs else "names by name", meaning=meaning)
    return field(default=EMPTY, converter=as_frozen, validator=are_names_by_key, metadata={"setting": setting})


def plain_field() -> Any:
    """Plain values by name: the fields that a class leaves open, see `OPEN_FIELDS`."""
    return field(default=EMPTY, converter=as_plain, validator=is_plain_mapping)


def groups_field(meaning: str) -> Any:
    """Groups of at least two globs."""
    setting = Setting(kind="groups", meaning=meaning)
    return field(default=(), converter=as_groups, validator=are_groups, metadata={"setting": setting})


def shapes_field(meaning: str) -> Any:
    """Shapes by glob."""
    setting = Setting(kind="shapes by glob", meaning=meaning)
    return field(default=EMPTY, converter=as_plain, validator=are_shapes, metadata={"setting": setting})


def members_field(kind: type, meaning: str = "", *, unique: str = "") -> Any:
    """Objects of one class; in the settings a list of tables, of which the field `unique` differs."""
    setting = Setting(kind="parts", meaning=meaning, part=kind, unique=unique)
    return field(default=(), converter=as_tuple, validator=are_members(kind), metadata={"setting": setting})


def part_field(kind: type, meaning: str) -> Any:
    """One object of a class, or None; in the settings a table."""
    return field(default=None, metadata={"setting": Setting(kind="part", meaning=meaning, part=kind)})
