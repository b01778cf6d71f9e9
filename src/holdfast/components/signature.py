"""What a component's signature says: its parameters, their types and flags, and what is wrong with it. Pure.

Annotations may be text, by `from __future__ import annotations` or by hand. `Annotated[int, "-n"]` gives a flag a short
form; a parameter of one letter has one anyway.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.components.annotations import UnsupportedTypeError, resolve, type_of
from holdfast.components.types import Scalar, Type, Union

#: The default of a parameter that has none.
REQUIRED = inspect.Parameter.empty

#: What a component returns, by the name of the class: a program may have TorchX's own.
APP = "AppDef"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: how it is given and what it takes."""

    name: str
    type: Type
    default: Any
    #: Whether the function is given it by place.
    by_place: bool
    #: Every spelling, the long one last.
    flags: tuple[str, ...]

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is REQUIRED

    @property
    def flag(self) -> str:
        """The spelling that messages use."""
        return self.flags[-1]

    @property
    def is_bool(self) -> bool:
        """Whether the bare flag means true."""
        kind = self.type
        if isinstance(kind, Union) and len(kind.members) == 1:
            kind = kind.members[0]
        return isinstance(kind, Scalar) and kind.kind is bool


@dataclass(slots=True)
class Signature:
    """All that is needed to call a component from a command line."""

    parameters: dict[str, Parameter] = field(default_factory=dict)
    #: Name and type of `*args`.
    rest: tuple[str, Type] | None = None
    #: What is wrong, by parameter; "return" stands for the function itself.
    problems: list[tuple[str, str]] = field(default_factory=list)

    def by_flag(self) -> dict[str, Parameter]:
        """Find a parameter by any spelling of its flag."""
        return {flag: parameter for parameter in self.parameters.values() for flag in parameter.flags}


def read_signature(fn: Callable[..., Any]) -> Signature:
    """Read a function's signature; what is wrong with it is among its `problems`."""
    found = Signature()
    parameters = inspect.signature(fn).parameters.values()
    for parameter in parameters:
        try:
            _add(found, parameter, fn)
        except UnsupportedTypeError as error:
            found.problems.append((parameter.name, str(error)))
    taken: dict[str, str] = {}
    for each in found.parameters.values():
        for flag in each.flags:
            if taken.setdefault(flag, each.name) != each.name:
                found.problems.append((each.name, f"the flag {flag} is that of '{taken[flag]}' already"))
    if not returns_app(fn):
        found.problems.append(("return", "the return type is not AppDef; write -> AppDef"))
    return found


def returns_app(fn: Callable[..., Any]) -> bool:
    """Return whether a function promises an AppDef; an annotation that cannot be resolved counts by its text."""
    annotation = getattr(inspect.unwrap(fn), "__annotations__", {}).get("return")
    if isinstance(annotation, str):
        try:
            annotation = resolve(annotation, fn)
        except UnsupportedTypeError:
            return str(annotation).strip("\"' ").rpartition(".")[2] == APP
    return isinstance(annotation, type) and any(base.__name__ == APP for base in annotation.__mro__)


def _add(found: Signature, parameter: inspect.Parameter, fn: Callable[..., Any]) -> None:
    if parameter.kind is parameter.VAR_KEYWORD:
        raise UnsupportedTypeError(f"**{parameter.name} cannot be given as flags; name each parameter")
    if parameter.annotation is parameter.empty:
        raise UnsupportedTypeError(f"'{parameter.name}' has no type; write {parameter.name}: str")
    annotation = resolve(parameter.annotation, fn)
    kind = type_of(annotation)
    if parameter.kind is parameter.VAR_POSITIONAL:
        found.rest = (parameter.name, kind)
        return
    by_place = parameter.kind is not parameter.KEYWORD_ONLY
    found.parameters[parameter.name] = Parameter(
        parameter.name, kind, parameter.default, by_place, _flags(parameter.name, annotation)
    )


def _flags(name: str, annotation: Any) -> tuple[str, ...]:
    short = [f"-{name}"] if len(name) == 1 else []
    if typing.get_origin(annotation) is typing.Annotated:
        short += [note for note in annotation.__metadata__ if isinstance(note, str) and note.startswith("-")]
    return (*dict.fromkeys(short), f"--{name}")
