"""Text that every encoder takes. Pure.

A file name that is not UTF-8 reaches Python as text with lone surrogates, and so does an exception that names the
file. UTF-8, and with it MessagePack, JSON readers and terminals, refuses such text. Holdfast writes each surrogate as
an escape (`caf\\udce9.txt`) where text comes in, so that no message, journal line or report can fail because of it.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import UsageError


def clean(text: str) -> str:
    """Return the text with every lone surrogate written as an escape."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def clean_data(value: Any, _inside: frozenset[int] = frozenset()) -> Any:
    """Return plain data with all its text clean, keys included; anything else is returned as it is."""
    if isinstance(value, str):
        return clean(value)
    if type(value) not in (dict, list, tuple) or id(value) in _inside:
        return value  # data that contains itself is left to the encoder's own limit
    inside = _inside | {id(value)}
    if type(value) is dict:
        return {clean_data(key, inside): clean_data(item, inside) for key, item in value.items()}
    return type(value)(clean_data(item, inside) for item in value)


def check_text(name: str, text: str) -> str:
    """Return a name that a user gave, or raise `UsageError` if it is not valid text."""
    if clean(text) != text:
        raise UsageError(f"{name} '{clean(text)}' is not valid UTF-8: use other characters")
    return text
