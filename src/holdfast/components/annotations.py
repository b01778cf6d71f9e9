"""From annotations to the types of flags. Pure.

Text is resolved with the names that the function itself sees, whether it was written in quotes or all annotations of
the module are text.
"""

from __future__ import annotations

import collections.abc
import enum
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from holdfast.components.types import Choice, PathLike, Row, Scalar, Table, Type, Union
from holdfast.errors import UsageError

_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable)
_TABLES = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


class UnsupportedTypeError(UsageError, TypeError):
    """No flag can be made for this annotation; the message says which part of it."""


def resolve(annotation: Any, fn: Callable[..., Any]) -> Any:
    """Turn the text of an annotation, or of a part of it, into what it stands for; raises `UnsupportedTypeError`."""
    names = getattr(inspect.unwrap(fn), "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, names, names, include_extras=True)["it"]
    except Exception as error:  # noqa: BLE001 - the text may be any expression
        raise UnsupportedTypeError(f"the type {shown(annotation)} cannot be resolved: {error}") from None


def type_of(annotation: Any) -> Type:
    """Return what an annotation, resolved from its text, takes; raises `UnsupportedTypeError`."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_of(inner[0])
    if origin in (typing.Union, types.UnionType):
        return _union(inner)
    if origin is typing.Literal:
        return Choice({value.name if isinstance(value, enum.Enum) else str(value): value for value in inner})
    kind = origin or annotation
    if kind in _LISTS:
        return Row([type_of(inner[0] if inner else str)], list, fixed=False)
    if kind in _TABLES:
        return _table(*inner) if inner else _table(str, str)
    if kind is tuple:
        return _tuple(inner)
    return _scalar(annotation)


def _scalar(annotation: Any) -> Type:
    if annotation in (str, int, float, bool):
        return Scalar(annotation)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        members = annotation.__members__
        return Choice(dict(members), {str(member.value): member for member in members.values()})
    if isinstance(annotation, type) and hasattr(annotation, "__fspath__"):
        return PathLike(annotation)
    raise UnsupportedTypeError(f"the type {shown(annotation)} cannot be given as a flag")


def _union(members: tuple[Any, ...]) -> Type:
    some = [type_of(member) for member in members if member is not types.NoneType]
    optional = len(some) < len(members)
    return Union(some, optional) if some else _scalar(types.NoneType)


def _tuple(inner: tuple[Any, ...]) -> Type:
    if not inner or (len(inner) == 2 and inner[1] is Ellipsis):
        return Row([type_of(inner[0] if inner else str)], tuple, fixed=False)
    return Row([type_of(each) for each in inner], tuple, fixed=True)


def _table(key: Any, value: Any) -> Type:
    keys = type_of(key)
    if keys.depth:
        raise UnsupportedTypeError(f"the type {shown(key)} cannot be a key")
    return Table(keys, type_of(value))


def shown(annotation: Any) -> str:
    """Return an annotation as a person wrote it."""
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
