"""Reads the package's own source: all of it, or only what one exception needs."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from holdfast.explain.collect import Module, Source, collect, matches, raised_at

PACKAGE = Path(__file__).parent.parent
_ERRORS = "errors.py"


def read_all() -> Source:
    """Read every module of the package."""
    return _read(sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")))


def code_for(error: BaseException) -> str:
    """Return the code of the message that an exception carries, or nothing if it has none.

    Only the module that raised it is read, so this takes milliseconds.
    """
    place = _raised_in(error.__traceback__)
    if place is None:
        return ""
    module, line = place
    try:
        source = _read(dict.fromkeys((module, _ERRORS)))
    except (OSError, SyntaxError, ValueError):  # a package without its source has no codes
        return ""
    fitting = [found.code for found in raised_at(source, module, line) if matches(found.text, str(error))]
    return fitting[0] if fitting else ""


def line_of(module: str, code: str) -> int:
    """Return the line of a module that makes a message, or 0 if its words come from another module."""
    try:
        source = _read(dict.fromkeys((module, _ERRORS)))
    except (OSError, SyntaxError, ValueError):  # a package without its source
        return 0
    return next((one.line for one in collect(source) if one.module == module and one.code == code), 0)


def _raised_in(traceback: TracebackType | None) -> tuple[str, int] | None:
    """Return the module of ours that raised, if the exception is from ours, and the line."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return None
    path = Path(traceback.tb_frame.f_code.co_filename)
    return (str(path.relative_to(PACKAGE)), traceback.tb_lineno) if path.is_relative_to(PACKAGE) else None


def _read(names: Iterable[str]) -> Source:
    return Source({name: Module(ast.parse((PACKAGE / name).read_text())) for name in names})
