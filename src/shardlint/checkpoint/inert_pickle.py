"""
Serialised Python objects as inert data: what a stream says is written down, nothing that it names is ever called.

The stream is only taken apart into its instructions (`pickletools` does that without running any). Names become
`Name`, calls become `InertObject`, references to storages become `Outside`. Whatever a hostile stream asks for, the
result is tuples, lists, dicts, texts and numbers, of a size that the limits bound.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from attrs import define, field, frozen

from ..names import first_line

MAX_INSTRUCTIONS = 20_000_000
MAX_COPIED = 20_000_000
_MARK = object()


class StreamError(ValueError):
    """A stream that is cut off, uses an instruction that is not known here, or is larger than the limits."""


@frozen
class Name:
    """A name that the stream imports: `module` and `name`. It stays a text."""

    module: str
    name: str


@define(eq=False)
class Outside:
    """A reference to something that the stream does not hold, such as a storage."""

    key: Any


@define(eq=False)
class InertObject:
    """An object that the stream asks to be made: what would be called, with what, and what is put into it."""

    callee: Any
    arguments: Any
    state: Any = None
    items: dict[Any, Any] = field(factory=dict)
    members: list[Any] = field(factory=list)

    @property
    def called(self) -> str:
        """The name of what would be called, empty when it is none."""
        return self.callee.name if isinstance(self.callee, Name) else ""


def read_stream(data: bytes) -> Any:
    """Return what the stream describes, as inert data. Raises `StreamError`."""
    try:
        return _Machine().run(data)
    except StreamError:
        raise
    except Exception as error:  # pickletools raises many kinds of errors for invalid data
        text = first_line(error)
        raise StreamError(f"it cannot be taken apart: {text}") from error


class _Machine:
    """The stack and the memo of one stream."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.items_copied = 0

    def run(self, data: bytes) -> Any:
        for count, (instruction, argument, _) in enumerate(pickletools.genops(data)):
            if count > MAX_INSTRUCTIONS:
                raise StreamError(f"it has more than {MAX_INSTRUCTIONS} instructions")
            if instruction.name == "STOP":
                return self.result()
            act = _ACTIONS.get(instruction.name)
            if act is None:
                raise StreamError(f"the instruction {instruction.name} is not known here")
            act(self, argument)
        raise StreamError("it is cut off")

    def result(self) -> Any:
        """What is left in the end, when every mark was closed."""
        if any(value is _MARK for value in self.stack):
            raise StreamError("a mark was never closed")
        return self.take(1)[0]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def top(self) -> Any:
        """The value on top of the stack. Raises `StreamError` for a mark, which is not a value."""
        if not self.stack or self.stack[-1] is _MARK:
            raise StreamError("a value is missing")
        return self.stack[-1]

    def since_mark(self) -> list[Any]:
        stack, place = self.stack, len(self.stack) - 1
        while place >= 0 and stack[place] is not _MARK:
            place -= 1
        if place < 0:
            raise StreamError("a mark is missing")
        values = stack[place + 1 :]
        del stack[place:]
        return values

    def take(self, count: int) -> tuple[Any, ...]:
        values = tuple(self.stack[-count:]) if count else ()
        if len(values) != count:
            raise StreamError("the stack is empty")
        if any(value is _MARK for value in values):
            raise StreamError("a mark where a value is expected")
        del self.stack[len(self.stack) - count :]
        return values

    def memoize(self, key: int | None) -> None:
        self.memo[len(self.memo) if key is None else key] = self.top()

    def append(self, values: list[Any]) -> None:
        holder = self.top()
        if isinstance(holder, InertObject):
            holder.members.extend(values)
        elif isinstance(holder, list):
            holder.extend(values)
        else:
            raise StreamError(f"values are appended to a {type(holder).__name__}")

    def set_items(self, values: list[Any]) -> None:
        holder = self.top()
        target = holder.items if isinstance(holder, InertObject) else holder
        if not isinstance(target, dict) or len(values) % 2:
            raise StreamError(f"items are set in a {type(holder).__name__}")
        if not all(map(_is_key, values[::2])):
            raise StreamError("a key of a mapping is neither plain nor an object")
        target.update(zip(values[::2], values[1::2], strict=True))

    def build(self) -> None:
        (state,) = self.take(1)
        holder = self.top()
        if isinstance(holder, InertObject):
            holder.state = state

    def make(self, count: int) -> None:
        callee, *arguments = self.take(count)
        given = arguments[0]
        self.push(InertObject(callee, self.copied(given) if isinstance(given, list) else given))

    def copied(self, values: list[Any]) -> tuple[Any, ...]:
        """A copy. Many instructions may ask for one of the same list, so items count, not bytes of the stream."""
        self.items_copied += len(values)
        if self.items_copied > MAX_COPIED:
            raise StreamError(f"it copies more than {MAX_COPIED} items")
        return tuple(values)

    def name_from_stack(self) -> None:
        module, name = self.take(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise StreamError("a name is imported that is not a string")
        self.push(Name(module, name))

    def name_from_text(self, text: str) -> None:
        module, _, name = text.partition(" ")
        self.push(Name(module, name))


def _is_key(value: Any) -> bool:
    """Whether hashing the value is cheap: tuples of tuples of shared tuples would never end."""
    parts = value if isinstance(value, tuple) else (value,)
    return all(part is None or isinstance(part, (str, int, float, bytes, InertObject, Name, Outside)) for part in parts)


_Action = Callable[[_Machine, Any], None]


def _constant(value: Any) -> _Action:
    return lambda machine, _: machine.push(value)


def _tuple_of(count: int) -> _Action:
    return lambda machine, _: machine.push(machine.take(count))


def _argument(machine: _Machine, argument: Any) -> None:
    machine.push(argument)


def _nothing(machine: _Machine, argument: Any) -> None:
    """Frames and protocol numbers say nothing about the content."""


def _dict_since_mark(machine: _Machine, argument: Any) -> None:
    values = machine.since_mark()
    machine.push({})
    machine.set_items(values)


def _drop(machine: _Machine, argument: Any) -> None:
    """Take off a value, or a mark: that is how the beginning of an empty list is dropped."""
    if not machine.stack:
        raise StreamError("the stack is empty")
    machine.stack.pop()


def _drop_to_mark(machine: _Machine, argument: Any) -> None:
    machine.since_mark()


_ARGUMENTS = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
)

_ACTIONS: dict[str, _Action] = {
    **dict.fromkeys(_ARGUMENTS, _argument),
    **dict.fromkeys(("PROTO", "FRAME"), _nothing),
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "MARK": _constant(_MARK),
    "EMPTY_TUPLE": _constant(()),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_SET": lambda machine, _: machine.push(InertObject(Name("builtins", "set"), ())),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.since_mark())),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "DICT": _dict_since_mark,
    "LIST": lambda machine, _: machine.push(machine.since_mark()),
    "FROZENSET": lambda machine, _: machine.push(
        InertObject(Name("builtins", "frozenset"), tuple(machine.since_mark()))
    ),
    "APPEND": lambda machine, _: machine.append(list(machine.take(1))),
    "APPENDS": lambda machine, _: machine.append(machine.since_mark()),
    "ADDITEMS": lambda machine, _: machine.append(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set_items(list(machine.take(2))),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "POP": _drop,
    "POP_MARK": _drop_to_mark,
    "GLOBAL": lambda machine, argument: machine.name_from_text(argument),
    "STACK_GLOBAL": lambda machine, _: machine.name_from_stack(),
    "REDUCE": lambda machine, _: machine.make(2),
    "NEWOBJ": lambda machine, _: machine.make(2),
    "NEWOBJ_EX": lambda machine, _: machine.make(3),
    "BUILD": lambda machine, _: machine.build(),
    "PERSID": lambda machine, argument: machine.push(Outside(argument)),
    "BINPERSID": lambda machine, _: machine.push(Outside(*machine.take(1))),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), lambda machine, key: machine.memoize(key)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda machine, key: machine.push(machine.memo[key])),
}
