"""What may stand in a component's signature: how each type is written, read, and checked. Pure.

A value comes either as text that was typed (`read`) or as data of a configuration or a program (`take`; text in
data is read as if it had been typed). What does not fit raises `WrongValueError`.

- `list[T]`, `tuple[T, ...]`: `a,b`. `dict[K, V]`: `k=v,k2=v2`; a piece without `=` goes on with the value before it.
- One more level is separated by semicolons: `list[list[int]]` as `1,2;3`, `dict[str, list[str]]` as `a=x,y;b=z`.
  Deeper ones, and these too if one likes, are written as JSON.
- `X | None`: as X, or the word `none` unless X takes any text. Unions are tried in their order, `str` and paths last.
- `Enum`: the name or the value. `Literal`: one of its values. `bool`: true, yes, on, 1 and their opposites.
"""

from __future__ import annotations

import itertools
import json
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.components.words import cut, quote, split, unquote
from holdfast.errors import UsageError
from holdfast.typed import learned

YES = frozenset({"true", "yes", "on", "1", "t", "y"})
NO = frozenset({"false", "no", "off", "0", "f", "n"})
NOTHING = frozenset({"none", "null"})


class WrongValueError(UsageError):
    """A piece of what was given is not what is wanted there."""

    def __init__(self, piece: object, wanted: str, said: str = "") -> None:
        super().__init__(said or f"{piece!r} is not {wanted}")
        self.piece = piece
        self.wanted = wanted


class Type:
    """What a parameter takes: `name` says it to people."""

    #: How deep containers are nested in it.
    depth = 0
    #: Whether giving it again adds to what was given before.
    adds_up = False
    #: Whether any text at all is fine.
    takes_any_text = False
    #: The characters that end a piece of it, unless quotes protect them.
    stops = ""

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self, text: str) -> Any:
        """Make a value of what was typed; raises `WrongValueError`."""
        raise NotImplementedError

    def take(self, value: Any) -> Any:
        """Make a value of data; text is read as if it had been typed. Raises `WrongValueError`."""
        return self.read(value) if isinstance(value, str) else self.check(value)

    def check(self, value: Any) -> Any:
        """Make a value of data that is no text; raises `WrongValueError`."""
        raise WrongValueError(value, self.name)

    def plain(self, value: Any) -> Any:
        """Turn a value into what JSON can hold; `take` turns it back."""
        return value

    def write(self, value: Any) -> str:
        """Write a value as one would type it; `read` reads it back."""
        return str(self.plain(value))

    def add(self, before: Any, more: Any) -> Any:
        """Join what was given twice; only where it `adds_up`."""
        raise NotImplementedError


class Scalar(Type):
    """Text, a number, or yes or no. An int is fine for a float, but True is no number."""

    def __init__(self, kind: type[str | int | float | bool]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind
        self.takes_any_text = kind is str

    def read(self, text: str) -> Any:
        try:
            return _to_bool(text) if self.kind is bool else self.kind(text)
        except ValueError:
            raise WrongValueError(text, self.name) from None

    def check(self, value: Any) -> Any:
        try:
            return msgspec.convert(value, learned(self.kind))
        except msgspec.ValidationError:
            raise WrongValueError(value, self.name) from None

    def write(self, value: Any) -> str:
        return str(value).lower() if self.kind is bool else str(value)


def _to_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in YES | NO:
        raise ValueError(text)
    return word in YES


class PathLike(Type):
    """A path, of whatever class the signature asks for."""

    takes_any_text = True

    def __init__(self, kind: type) -> None:
        super().__init__("path")
        self.kind = kind

    def read(self, text: str) -> Any:
        return self.kind(text)

    def check(self, value: Any) -> Any:
        return self.kind(value) if hasattr(value, "__fspath__") else super().check(value)

    def plain(self, value: Any) -> Any:
        return str(value)


class Choice(Type):
    """One of a few values, each with the word for it."""

    def __init__(self, words: dict[str, Any], also: Mapping[str, Any] = types.MappingProxyType({})) -> None:
        super().__init__(f"one of {', '.join(words)}")
        self.words = words
        #: Other spellings, tried when no word fits.
        self.also = also

    def read(self, text: str) -> Any:
        for words in (self.words, self.also):
            if text in words:
                return words[text]
        alike = [value for word, value in self.words.items() if word.lower() == text.lower()]
        if len(alike) != 1:
            raise WrongValueError(text, self.name)
        return alike[0]

    def take(self, value: Any) -> Any:
        """Take one of the values, or a word for it."""
        for choice in self.words.values():
            if type(choice) is type(value) and choice == value:
                return choice
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise WrongValueError(value, self.name)
        return self.read(str(value))

    def plain(self, value: Any) -> Any:
        return next(word for word, choice in self.words.items() if type(choice) is type(value) and choice == value)


class Union(Type):
    """One of several types; the first that fits. `none` stands for None if no member takes any text."""

    def __init__(self, members: Sequence[Type], optional: bool) -> None:
        names = [member.name for member in members]
        super().__init__(" or ".join([*names, "none"] if optional else names))
        self.members = sorted(members, key=lambda member: member.takes_any_text)
        self.optional = optional
        self.depth = max(member.depth for member in members)
        self.adds_up = len(members) == 1 and members[0].adds_up
        self.takes_any_text = any(member.takes_any_text for member in members)
        self.stops = "".join(member.stops for member in members)

    def read(self, text: str) -> Any:
        if self.optional and not self.takes_any_text and text.strip().lower() in NOTHING:
            return None
        return self._first(text, "read")

    def take(self, value: Any) -> Any:
        if value is None and self.optional:
            return None
        return self._first(value, "take")

    def plain(self, value: Any) -> Any:
        return None if value is None else self._owner(value).plain(value)

    def write(self, value: Any) -> str:
        if value is None:
            return "none"
        owner = self._owner(value)
        written = owner.write(value)
        # A list of the one word `none` is not None; lists take their pieces out of quotes.
        return f'"{written}"' if owner.depth and written.lower() in NOTHING else written

    def add(self, before: Any, more: Any) -> Any:
        """Join as the only member does."""
        if before is None or more is None:
            return more
        return self.members[0].add(before, more)

    def _first(self, value: Any, how: str) -> Any:
        mistakes = []
        for member in self.members:
            try:
                return getattr(member, how)(value)
            except WrongValueError as mistake:
                mistakes.append(mistake)
        # What is wrong inside a member is worth telling where there is only one; else it is unknown which was meant.
        if len(mistakes) == 1 and mistakes[0].wanted != self.members[0].name:
            raise mistakes[0]
        raise WrongValueError(value, self.name)

    def _owner(self, value: Any) -> Type:
        for member in self.members:
            try:
                if type(member.take(value)) is type(value):
                    return member
            except WrongValueError:
                continue
        return self.members[-1]


class Container(Type):
    """Several values in one text; what is nested may also be written as JSON."""

    #: What JSON gives for it.
    json_type: type = list

    def __init__(self, name: str, inner: Sequence[Type]) -> None:
        super().__init__(name)
        self.inner = inner
        self.depth = 1 + max((each.depth for each in inner), default=0)
        self.separator = ";" if self.depth == 2 else ","
        self.stops = self.separator + "".join(each.stops for each in inner)

    def read(self, text: str) -> Any:
        """Read JSON where something is nested and it is JSON, and the plain form otherwise."""
        if self.depth > 1:
            try:
                data = json.loads(text)
            except ValueError:
                data = None
            if isinstance(data, self.json_type):
                return self.take(data)
        if self.depth > 2:
            raise WrongValueError(text, f"{self.name}, written as JSON")
        pieces = split(text, self.separator, self.stops)
        if not pieces[-1].strip():  # the empty text, or a separator at the end
            pieces.pop()
        return self.gather(pieces)

    def write(self, value: Any) -> str:
        if self.depth > 1:
            return json.dumps(self.plain(value), ensure_ascii=False)
        return self.separator.join(self.pieces(value))

    def gather(self, pieces: list[str]) -> Any:
        """Make the container of its pieces."""
        raise NotImplementedError

    def pieces(self, value: Any) -> list[str]:
        """Write each piece."""
        raise NotImplementedError


class Row(Container):
    """A list or a tuple: of any length, with one type for all items, or with a type for each place."""

    def __init__(self, items: Sequence[Type], make: type[list[Any]] | type[tuple[Any, ...]], *, fixed: bool) -> None:
        inside = ", ".join(item.name for item in items)
        super().__init__(f"{make.__name__}[{inside}{', ...' if make is tuple and not fixed else ''}]", items)
        self.make = make
        self.fixed = fixed
        self.adds_up = not fixed

    def gather(self, pieces: list[str]) -> Any:
        return self.make(_read_piece(item, piece) for item, piece in self._paired(pieces))

    def check(self, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise WrongValueError(value, self.name)
        return self.make(item.take(each) for item, each in self._paired(value))

    def plain(self, value: Any) -> Any:
        return [item.plain(each) for item, each in self._paired(value)]

    def pieces(self, value: Any) -> list[str]:
        return [quote(item.write(each)) for item, each in self._paired(value)]

    def add(self, before: Any, more: Any) -> Any:
        """Put the later items behind the earlier ones."""
        return before + more

    def _paired(self, given: Sequence[Any]) -> Iterable[tuple[Type, Any]]:
        """Put each item beside its type."""
        if self.fixed and len(given) != len(self.inner):
            raise WrongValueError(given, self.name, f"{len(self.inner)} values are wanted, not {len(given)}")
        return zip(self.inner if self.fixed else itertools.repeat(self.inner[0]), given, strict=False)


class Table(Container):
    """A dictionary."""

    adds_up = True
    json_type = dict

    def __init__(self, key: Type, value: Type) -> None:
        super().__init__(f"dict[{key.name}, {value.name}]", [key, value])
        self.key = key
        self.value = value
        self.stops += "="

    def gather(self, pieces: list[str]) -> Any:
        """Read each pair; of a key given twice the last value counts."""
        pairs: list[tuple[str, str]] = []
        for piece in pieces:
            pair = cut(piece, "=", self.stops)
            if pair is not None and pair[0].strip():
                pairs.append(pair)
            elif pair is None and pairs and self.value.takes_any_text:
                key, value = pairs[-1]
                pairs[-1] = (key, f"{value}{self.separator}{piece}")
            else:
                raise WrongValueError(piece, "KEY=VALUE")
        return {_read_piece(self.key, key): _read_piece(self.value, value) for key, value in pairs}

    def check(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise WrongValueError(value, self.name)
        return {self.key.take(key): self.value.take(each) for key, each in value.items()}

    def plain(self, value: Any) -> Any:
        return {self.key.write(key): self.value.plain(each) for key, each in value.items()}

    def pieces(self, value: Any) -> list[str]:
        return [f"{quote(self.key.write(key))}={quote(self.value.write(each))}" for key, each in value.items()]

    def add(self, before: Any, more: Any) -> Any:
        """Let later keys replace earlier ones."""
        return {**before, **more}


def _read_piece(inner: Type, piece: str) -> Any:
    """Read one piece: what is nested keeps its quotes for the next level."""
    return inner.read(piece.strip() if inner.depth else unquote(piece))
