"""Checks a component before it is called: what is wrong with its signature, and in which line."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from holdfast.components.errors import Problem
from holdfast.components.signature import read_signature

__all__ = ["Problem", "validate"]


def validate(fn: Callable[..., Any]) -> list[Problem]:
    """Say what keeps a function from being a component; nothing if all is well."""
    name = getattr(fn, "__name__", repr(fn))
    try:
        found = read_signature(fn).problems
    except (TypeError, ValueError):  # not even a function, or one without a signature
        return [Problem(name, "this is not a function")]
    if not found:
        return []
    path, lines = _lines(fn)
    return [Problem(name, reason, path, lines.get(parameter)) for parameter, reason in found]


def _lines(fn: Callable[..., Any]) -> tuple[str | None, dict[str, int]]:
    """Find the line of each parameter; where there is no source there are no lines."""
    fn = inspect.unwrap(fn)
    try:
        path = inspect.getsourcefile(fn)
        source, first = inspect.getsourcelines(fn)
        tree = ast.parse(textwrap.dedent("".join(source)))
    except (OSError, TypeError, SyntaxError):
        return getattr(getattr(fn, "__code__", None), "co_filename", None), {}
    found = next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)), None)
    if found is None:
        return path, {}
    offset = first - 1
    given = found.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    lines = {parameter.arg: parameter.lineno + offset for parameter in parameters}
    return path, {**lines, "return": (found.returns or found).lineno + offset}
