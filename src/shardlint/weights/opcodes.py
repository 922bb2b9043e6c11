"""
Read pickled data without executing anything: classes and calls become plain records.

torch.distributed.checkpoint keeps its metadata, and torch.save the description of a tensor, in that format. The
opcodes are told apart by the standard library's disassembler; nothing is imported, called or built.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from attrs import define, frozen

MAX_OPCODES = 50_000_000


class OpcodeError(ValueError):
    """Data that is damaged, or that uses what no such file needs."""


@frozen
class Symbol:
    """The name of a class or function."""

    module: str
    name: str


@define(eq=False)
class Made:
    """What a call would make: of which symbol, with which arguments, with which state set afterwards."""

    symbol: Any
    arguments: Any
    state: Any = None

    def is_a(self, name: str) -> bool:
        """Whether it is made of a symbol of that name, whatever its module."""
        return isinstance(self.symbol, Symbol) and self.symbol.name == name


@frozen
class Reference:
    """A reference to something that is stored elsewhere: what `torch.save` writes for a storage."""

    identity: Any


class _Mark:
    pass


_MARK = _Mark()
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "INT", "LONG", "FLOAT"}
_VALUES |= {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}
_VALUES |= {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "SHORT_BINSTRING", "BINSTRING"}
_NOTHING = {"PROTO", "FRAME"}


def read(data: bytes) -> Any:
    """The value that the data describes, in plain records. Raises `OpcodeError`."""
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > MAX_OPCODES:
                raise OpcodeError(f"more than {MAX_OPCODES} opcodes")
            if opcode.name == "STOP":
                return machine.result()
            machine.step(opcode.name, argument)
    except OpcodeError:
        raise
    except Exception as error:
        raise OpcodeError(f"damaged data: {type(error).__name__}: {error}") from error
    raise OpcodeError("the data ends before it is complete")


class _Machine:
    """A stack and a memo, as in the format."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        if name in _NOTHING:
            return
        if name in _VALUES:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        else:
            action = _ACTIONS.get(name)
            if action is None:
                raise OpcodeError(f"unexpected opcode {name}")
            action(self, argument)

    def result(self) -> Any:
        """What is left in the end: a value, not the mark of a list that was never closed."""
        value = self.stack.pop()
        if value is _MARK:
            raise OpcodeError("a mark where a value is expected")
        return value

    def popped(self) -> list[Any]:
        """All that lies above the last mark."""
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
        found = self.stack[at + 1 :]
        del self.stack[at:]
        return found

    def symbol(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(Symbol(module, name))

    def stack_symbol(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise OpcodeError("a symbol whose name is no text")
        self.stack.append(Symbol(module, name))

    def make(self) -> None:
        arguments, symbol = self.stack.pop(), self.stack.pop()
        self.stack.append(Made(symbol, arguments))

    def build(self) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], Made):
            self.stack[-1].state = state

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, dict):
            if not all(map(_is_key, items[::2])):
                raise OpcodeError("a key of a mapping is neither plain nor an object")
            target.update(zip(items[::2], items[1::2], strict=True))

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(items)

    def tuple_of(self, count: int) -> None:
        items = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        self.stack.append(items)

    def pair(self) -> list[Any]:
        value = self.stack.pop()
        return [self.stack.pop(), value]


def _is_key(value: Any) -> bool:
    """Whether hashing the value is cheap: tuples of tuples of shared tuples would take for ever."""
    parts = value if isinstance(value, tuple) else (value,)
    return all(part is None or isinstance(part, (str, int, float, bytes, Made, Symbol)) for part in parts)


_ACTIONS: dict[str, Callable[[_Machine, Any], Any]] = {
    "MARK": lambda machine, _: machine.stack.append(_MARK),
    "GLOBAL": lambda machine, argument: machine.symbol(argument),
    "STACK_GLOBAL": lambda machine, _: machine.stack_symbol(),
    "REDUCE": lambda machine, _: machine.make(),
    "NEWOBJ": lambda machine, _: machine.make(),
    "BUILD": lambda machine, _: machine.build(),
    "BINPERSID": lambda machine, _: machine.stack.append(Reference(machine.stack.pop())),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_TUPLE": lambda machine, _: machine.stack.append(()),
    "EMPTY_SET": lambda machine, _: machine.stack.append([]),
    "ADDITEMS": lambda machine, _: machine.extend(machine.popped()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.popped())),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "SETITEM": lambda machine, _: machine.set_items(machine.pair()),
    "SETITEMS": lambda machine, _: machine.set_items(machine.popped()),
    "APPEND": lambda machine, _: machine.extend([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.popped()),
    "POP": lambda machine, _: machine.stack.pop(),
}
