"""Reading values from text, by the grammar of our run options and components."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.components.annotations import type_of
from holdfast.specs import cfg

T = TypeVar("T")

_PRIMITIVES = (int, str, float)


def to_list(arg: str) -> list[str]:
    """Read `a,b`."""
    return [each.strip() for each in arg.split(",")] if arg.strip() else []


def to_dict(arg: str) -> dict[str, str]:
    """Read `A=x,y;B=z` as pairs, whose values stay text; raises ValueError where a pair has no key or no value.

    The last separator before the next `=` ends a value, so one at the end of the text belongs to the last value.
    """
    first, *pieces = [each.strip() for each in arg.split("=") if each.strip()] or [""]
    if arg and not pieces:
        raise ValueError(f"'{arg}' is not of the form key=value")
    found, key = {}, first
    for piece in pieces[:-1]:
        at = max(piece.rfind(","), piece.rfind(";"))
        if at < 1 or at == len(piece) - 1:
            raise ValueError(f"'{piece}' must be a value and the next key, with a comma between them")
        found[key], key = _without_quotes(piece[:at].strip()), piece[at + 1 :].strip()
    return {**found, key: _without_quotes(pieces[-1])} if pieces else {}


def _without_quotes(text: str) -> str:
    return "" if text in ("''", '""') else text


def decode(encoded_value: Any, annotation: Any) -> Any:
    """Read a value for a parameter of a component: bools, lists and dictionaries; anything else stays as it is."""
    if encoded_value is None:
        return None
    if is_bool(annotation):
        return cfg.to_bool(encoded_value)
    if not is_primitive(annotation) and isinstance(encoded_value, str):
        return decode_from_string(encoded_value, annotation)
    return encoded_value


def decode_from_string(encoded_value: str, annotation: Any) -> dict[Any, Any] | list[Any] | None:
    """Read a list or a dictionary, its pieces of the types that the annotation says; None if there is nothing."""
    if typing.get_origin(annotation) not in (dict, list):
        raise ValueError("Unknown")
    if any(typing.get_origin(each) is not None for each in typing.get_args(annotation)):
        raise ValueError(f"{annotation} holds lists or dictionaries, which TorchX cannot read from text")
    return type_of(annotation).read(encoded_value) if encoded_value else None


def is_bool(param_type: Any) -> bool:
    """Whether a type is bool."""
    return param_type is bool


def is_primitive(param_type: Any) -> bool:
    """Whether a type is int, str or float."""
    return param_type in _PRIMITIVES


def decode_optional(param_type: Any) -> Any:
    """Return what may be there where something may be missing: X for `Optional[X]`, anything else as it is."""
    if typing.get_origin(param_type) not in (typing.Union, types.UnionType):
        return param_type
    some = [each for each in typing.get_args(param_type) if each is not types.NoneType]
    return some[0] if len(some) == 1 and len(typing.get_args(param_type)) == 2 else param_type


def get_argparse_param_type(parameter: inspect.Parameter) -> Callable[[str], object]:
    """Return what argparse shall make of a parameter's text."""
    annotation = parameter.annotation
    return annotation if is_primitive(annotation) else str


def none_throws(optional: T | None, message: str = "Unexpected `None`") -> T:
    """Return what is there; raises AssertionError where nothing is."""
    if optional is None:
        raise AssertionError(message)
    return optional
