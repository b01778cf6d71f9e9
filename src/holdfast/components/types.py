"""What may stand in a component's signature: how each type is written, read, and checked. Pure.

A value comes either as text that somebody typed (`read`) or as data of a configuration or a program (`take`; text in
data is read as if it had been typed). What does not fit raises `WrongValueError`.

- `list[T]`, `tuple[T, ...]`: `a,b`. `dict[K, V]`: `k=v,k2=v2`; a piece without `=` goes on with the value before it.
- One more level is separated by semicolons: `list[list[int]]` as `1,2;3`, `dict[str, list[str]]` as `a=x,y;b=z`.
  Deeper ones, and these too if one likes, are written as JSON.
- `X | None`: as X, or the word `none` unless X takes any text. Unions are tried in their order, `str` and paths last.
- `Enum`: the name or the value. `Literal`: one of its values. `bool`: true, yes, on, 1 and their opposites.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.components.words import cut, quote, split, unquote
from holdfast.errors import UsageError

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
        """Make a value of data; raises `WrongValueError`."""
        raise NotImplementedError

    def plain(self, value: Any) -> Any:
        """Turn a value into what JSON can hold; `take` turns it back."""
        return value

    def write(self, value: Any) -> str:
        """Write a value as one would type it; `read` reads it back."""
        return str(self.plain(value))

    def add(self, before: Any, more: Any) -> Any:
        """Join what was given twice; only where it `adds_up`."""
        raise NotImplementedError


class Text(Type):
    """Any text."""

    takes_any_text = True

    def read(self, text: str) -> Any:
        """Take the text as it is."""
        return text

    def take(self, value: Any) -> Any:
        """Take text and nothing else."""
        if not isinstance(value, str):
            raise WrongValueError(value, self.name)
        return value


class PathLike(Type):
    """A path, of whatever class the signature asks for."""

    takes_any_text = True

    def __init__(self, kind: type) -> None:
        super().__init__("path")
        self.kind = kind

    def read(self, text: str) -> Any:
        """Make a path of the text."""
        return self.kind(text)

    def take(self, value: Any) -> Any:
        """Take text or a path."""
        if not isinstance(value, str) and not hasattr(value, "__fspath__"):
            raise WrongValueError(value, self.name)
        return self.kind(value)

    def plain(self, value: Any) -> Any:
        """Write the path as text."""
        return str(value)


class Number(Type):
    """An int or a float."""

    def __init__(self, kind: type[int] | type[float]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind

    def read(self, text: str) -> Any:
        """Read digits as Python does."""
        try:
            return self.kind(text)
        except ValueError:
            raise WrongValueError(text, self.name) from None

    def take(self, value: Any) -> Any:
        """Take a number; an int is fine for a float, but True is no number."""
        if isinstance(value, str):
            return self.read(value)
        if isinstance(value, bool) or not isinstance(value, int | self.kind):
            raise WrongValueError(value, self.name)
        return self.kind(value)


class Boolean(Type):
    """Yes or no."""

    def __init__(self) -> None:
        super().__init__("bool")

    def read(self, text: str) -> Any:
        """Read one of the words for yes and no."""
        word = text.strip().lower()
        if word in YES:
            return True
        if word in NO:
            return False
        raise WrongValueError(text, self.name)

    def take(self, value: Any) -> Any:
        """Take a bool, or a word for it."""
        if isinstance(value, str):
            return self.read(value)
        if not isinstance(value, bool):
            raise WrongValueError(value, self.name)
        return value

    def write(self, value: Any) -> str:
        """Write true or false."""
        return str(value).lower()


class Choice(Type):
    """One of a few values, each with the word for it."""

    def __init__(self, words: dict[str, Any], also: Mapping[str, Any] = types.MappingProxyType({})) -> None:
        super().__init__(f"one of {', '.join(words)}")
        self.words = words
        #: Other spellings, tried when no word fits.
        self.also = also

    def read(self, text: str) -> Any:
        """Find the word, with capitals or without."""
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
        """Write the word."""
        return next(word for word, choice in self.words.items() if type(choice) is type(value) and choice == value)


class Union(Type):
    """One of several types; the first that fits. `none` stands for None where no member takes any text."""

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
        """Try the members in their order."""
        if self.optional and not self.takes_any_text and text.strip().lower() in NOTHING:
            return None
        return self._first(text, "read")

    def take(self, value: Any) -> Any:
        """Try the members in their order."""
        if value is None and self.optional:
            return None
        return self._first(value, "take")

    def plain(self, value: Any) -> Any:
        """Write it as the member that it belongs to does."""
        return None if value is None else self._owner(value).plain(value)

    def write(self, value: Any) -> str:
        """Write it as the member that it belongs to does."""
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
        # What is wrong inside a member is worth telling where there is only one; else nobody knows which was meant.
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
        """Write the plain form, or JSON where something is nested."""
        if self.depth > 1:
            return json.dumps(self.plain(value), ensure_ascii=False)
        return self.separator.join(self.pieces(value))

    def gather(self, pieces: list[str]) -> Any:
        """Make the container of its pieces."""
        raise NotImplementedError

    def pieces(self, value: Any) -> list[str]:
        """Write each piece."""
        raise NotImplementedError


class Many(Container):
    """A list, or a tuple of any length."""

    adds_up = True

    def __init__(self, item: Type, make: type[list[Any]] | type[tuple[Any, ...]]) -> None:
        super().__init__(f"list[{item.name}]" if make is list else f"tuple[{item.name}, ...]", [item])
        self.item = item
        self.make = make

    def gather(self, pieces: list[str]) -> Any:
        """Read each item."""
        return self.make(_read_piece(self.item, piece) for piece in pieces)

    def take(self, value: Any) -> Any:
        """Take a list or a tuple of items."""
        if isinstance(value, str):
            return self.read(value)
        if not isinstance(value, list | tuple):
            raise WrongValueError(value, self.name)
        return self.make(self.item.take(each) for each in value)

    def plain(self, value: Any) -> Any:
        """Write a list."""
        return [self.item.plain(each) for each in value]

    def pieces(self, value: Any) -> list[str]:
        """Write each item in quotes where it needs them."""
        return [quote(self.item.write(each)) for each in value]

    def add(self, before: Any, more: Any) -> Any:
        """Put the later items behind the earlier ones."""
        return before + more


class Fixed(Container):
    """A tuple with a type for each place."""

    def __init__(self, places: Sequence[Type]) -> None:
        super().__init__(f"tuple[{', '.join(place.name for place in places)}]", places)

    def gather(self, pieces: list[str]) -> Any:
        """Read each place."""
        self._count(pieces)
        return tuple(_read_piece(place, piece) for place, piece in zip(self.inner, pieces, strict=True))

    def take(self, value: Any) -> Any:
        """Take a list or a tuple of the right length."""
        if isinstance(value, str):
            return self.read(value)
        if not isinstance(value, list | tuple):
            raise WrongValueError(value, self.name)
        self._count(value)
        return tuple(place.take(each) for place, each in zip(self.inner, value, strict=True))

    def plain(self, value: Any) -> Any:
        """Write a list."""
        return [place.plain(each) for place, each in zip(self.inner, value, strict=True)]

    def pieces(self, value: Any) -> list[str]:
        """Write each place in quotes where it needs them."""
        return [quote(place.write(each)) for place, each in zip(self.inner, value, strict=True)]

    def _count(self, given: Sequence[Any]) -> None:
        if len(given) != len(self.inner):
            raise WrongValueError(given, self.name, f"{len(self.inner)} values are wanted, not {len(given)}")


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

    def take(self, value: Any) -> Any:
        """Take a mapping."""
        if isinstance(value, str):
            return self.read(value)
        if not isinstance(value, Mapping):
            raise WrongValueError(value, self.name)
        return {self.key.take(key): self.value.take(each) for key, each in value.items()}

    def plain(self, value: Any) -> Any:
        """Write an object whose keys are text."""
        return {self.key.write(key): self.value.plain(each) for key, each in value.items()}

    def pieces(self, value: Any) -> list[str]:
        """Write each pair, in quotes where they are needed."""
        return [f"{quote(self.key.write(key))}={quote(self.value.write(each))}" for key, each in value.items()]

    def add(self, before: Any, more: Any) -> Any:
        """Let later keys replace earlier ones."""
        return {**before, **more}


def _read_piece(inner: Type, piece: str) -> Any:
    """Read one piece: what is nested keeps its quotes for the next level."""
    return inner.read(piece.strip() if inner.depth else unquote(piece))
