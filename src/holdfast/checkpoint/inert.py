"""Reads a pickle as inert data: no class of the pickle is ever looked up, called or built. Pure.

An ordinary unpickler imports what a pickle names and calls it. An allow-list in front of that still leaves what the
allowed callables do, and what building state into them does. This reader has no such step. A name becomes a `Named`, an
object becomes a `Built` (the name, the arguments and the state, all as data) and a dict becomes `Pairs`, because even
the hash of a deeply nested key can overflow the C stack. The caller turns these into its own objects, field by field.

The work and the memory are linear in the length of the pickle: each opcode does a constant amount of work or uses up
what earlier ones put on the stack. Opcodes that pickle never writes for plain dataclasses are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from holdfast.errors import PeerError

PROTOCOLS = range(2, 6)


class RefusedPickleError(PeerError, ValueError):
    """The pickle is damaged, or holds something that the caller did not allow."""


class Named(NamedTuple):
    """A class, a function or a constant that the pickle names; only its name."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Built:
    """An object that the pickle would have built: by what, from what, and the state that was set on it."""

    __slots__ = ("arguments", "kind", "state")

    def __init__(self, kind: Named, arguments: tuple[Any, ...]) -> None:
        self.kind = kind
        self.arguments = arguments
        self.state: Any = None


class Pairs:
    """A dict as the list of its keys and values: nothing is hashed."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[tuple[Any, Any]] = []


def read(data: bytes, allowed: Collection[Named]) -> Any:
    """Return what a pickle describes, as inert data; raises `RefusedPickleError` for names that are not `allowed`."""
    reader = _Reader(data, frozenset(allowed))
    try:
        return reader.run()
    except (IndexError, struct.error):
        raise RefusedPickleError("the pickle is cut off or damaged") from None


class _Reader:
    def __init__(self, data: bytes, allowed: frozenset[Named]) -> None:
        self._data = data
        self._at = 0
        self._allowed = allowed
        self._stack: list[Any] = []
        #: How much of the stack existed at each mark that is still open.
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, opcodes = self._data, _OPCODES
        while True:
            code = data[self._at]
            self._at += 1
            if code == _STOP:
                return self._only_value()
            handler = opcodes.get(code)
            if handler is None:
                raise RefusedPickleError(f"the pickle uses opcode {code:#04x}, which no checkpoint needs")
            handler(self)

    def _only_value(self) -> Any:
        if len(self._stack) != 1 or self._marks:
            raise RefusedPickleError("the pickle does not describe one value")
        return self._stack[0]

    # -- the bytes -------------------------------------------------------------------------------------------------

    def _take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if len(piece) < count:
            raise RefusedPickleError("the pickle is cut off or damaged")
        self._at += count
        return piece

    def _number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack(self._take(form.size))
        return value

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            raise RefusedPickleError("the pickle is cut off or damaged")
        line = self._data[self._at : end]
        self._at = end + 1
        return _text(line)

    # -- the stack -------------------------------------------------------------------------------------------------

    def _pop(self) -> Any:
        if self._marks and self._marks[-1] == len(self._stack):
            raise RefusedPickleError("the pickle is damaged: a mark stands where a value must be")
        return self._stack.pop()

    def _top(self) -> Any:
        value = self._pop()
        self._stack.append(value)
        return value

    def _pop_marked(self) -> list[Any]:
        start = self._marks.pop()
        found = self._stack[start:]
        del self._stack[start:]
        return found

    # -- opcodes ---------------------------------------------------------------------------------------------------

    def proto(self) -> None:
        version = self._take(1)[0]
        if version not in PROTOCOLS:
            raise RefusedPickleError(f"the pickle has protocol {version}; {PROTOCOLS[0]} to {PROTOCOLS[-1]} are read")

    def frame(self) -> None:
        self._take(8)

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def pop(self) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()

    def pop_mark(self) -> None:
        self._pop_marked()

    def dup(self) -> None:
        self._stack.append(self._top())

    def long1(self) -> None:
        self._stack.append(int.from_bytes(self._take(self._take(1)[0]), "little", signed=True))

    def tuple_marked(self) -> None:
        self._stack.append(tuple(self._pop_marked()))

    def empty_dict(self) -> None:
        self._stack.append(Pairs())

    def empty_list(self) -> None:
        self._stack.append([])

    def append(self) -> None:
        value = self._pop()
        self._a(list).append(value)

    def appends(self) -> None:
        values = self._pop_marked()
        self._a(list).extend(values)

    def set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._a(Pairs).items.append((key, value))

    def set_items(self) -> None:
        flat = self._pop_marked()
        if len(flat) % 2:
            raise RefusedPickleError("the pickle is damaged: a dict has a key without a value")
        self._a(Pairs).items.extend(zip(flat[::2], flat[1::2], strict=True))

    def global_lines(self) -> None:
        module = self._line()
        self._name(module, self._line())

    def global_stack(self) -> None:
        name, module = self._pop(), self._pop()
        self._name(module, name)

    def reduce(self) -> None:
        arguments, kind = self._pop(), self._pop()
        self._build(kind, arguments)

    def build(self) -> None:
        state = self._pop()
        target = self._a(Built)
        if target.state is not None:
            raise RefusedPickleError(f"the pickle sets the state of a {target.kind} twice")
        target.state = state

    def put(self, index: int) -> None:
        self._memo[index] = self._top()

    def get(self, index: int) -> None:
        if index not in self._memo:
            raise RefusedPickleError("the pickle is damaged: it refers to a value that it has not written")
        self._stack.append(self._memo[index])

    # -- helpers of the opcodes ------------------------------------------------------------------------------------

    def _a(self, kind: type[Any]) -> Any:
        value = self._top()
        if type(value) is not kind:
            raise RefusedPickleError(f"the pickle changes a value that is no {kind.__name__.lower()}")
        return value

    def _name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise RefusedPickleError("the pickle names something by a value that is not text")
        found = Named(module, name)
        if found not in self._allowed:
            raise RefusedPickleError(f"it names {_shown(found)}, which no checkpoint needs")
        self._stack.append(found)

    def _build(self, kind: Any, arguments: Any) -> None:
        if type(kind) is not Named or type(arguments) is not tuple:
            raise RefusedPickleError("the pickle builds an object of something that is not a class")
        self._stack.append(Pairs() if kind == _ORDERED and not arguments else Built(kind, arguments))


def _shown(name: Named) -> str:
    return repr(str(name))[1:-1][:200]


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise RefusedPickleError("the pickle is damaged: a text in it is not UTF-8") from None


_ORDERED = Named("collections", "OrderedDict")
_U1, _U2, _U4, _U8 = struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")
_I4, _F8 = struct.Struct("<i"), struct.Struct(">d")
_STOP = ord(".")

_Handler = Callable[[_Reader], None]


def _constant(value: Any) -> _Handler:
    return lambda reader: reader._stack.append(value)


def _number(form: struct.Struct) -> _Handler:
    return lambda reader: reader._stack.append(reader._number(form))


def _string(length: struct.Struct) -> _Handler:
    return lambda reader: reader._stack.append(_text(reader._take(reader._number(length))))


def _bytes(length: struct.Struct) -> _Handler:
    return lambda reader: reader._stack.append(reader._take(reader._number(length)))


def _tuple(count: int) -> _Handler:
    def handle(reader: _Reader) -> None:
        values = [reader._pop() for _ in range(count)]
        reader._stack.append(tuple(reversed(values)))

    return handle


#: Everything that pickle writes for dataclasses, enums and plain values, by its byte.
_OPCODES: dict[int, _Handler] = {
    code[0]: handler
    for code, handler in {
        b"\x80": _Reader.proto,
        b"\x95": _Reader.frame,
        b"(": _Reader.mark,
        b"0": _Reader.pop,
        b"1": _Reader.pop_mark,
        b"2": _Reader.dup,
        b"N": _constant(None),
        b"\x88": _constant(True),
        b"\x89": _constant(False),
        b"J": _number(_I4),
        b"K": _number(_U1),
        b"M": _number(_U2),
        b"G": _number(_F8),
        b"\x8a": _Reader.long1,
        b"\x8c": _string(_U1),
        b"X": _string(_U4),
        b"\x8d": _string(_U8),
        b"C": _bytes(_U1),
        b"B": _bytes(_U4),
        b"\x8e": _bytes(_U8),
        b")": _tuple(0),
        b"\x85": _tuple(1),
        b"\x86": _tuple(2),
        b"\x87": _tuple(3),
        b"t": _Reader.tuple_marked,
        b"]": _Reader.empty_list,
        b"a": _Reader.append,
        b"e": _Reader.appends,
        b"}": _Reader.empty_dict,
        b"s": _Reader.set_item,
        b"u": _Reader.set_items,
        b"c": _Reader.global_lines,
        b"\x93": _Reader.global_stack,
        b"R": _Reader.reduce,
        b"\x81": _Reader.reduce,  # `copyreg.__newobj__`: the same stack, and here the same meaning
        b"b": _Reader.build,
        b"q": lambda reader: reader.put(reader._number(_U1)),
        b"r": lambda reader: reader.put(reader._number(_U4)),
        b"\x94": lambda reader: reader.put(len(reader._memo)),
        b"h": lambda reader: reader.get(reader._number(_U1)),
        b"j": lambda reader: reader.get(reader._number(_U4)),
    }.items()
}
