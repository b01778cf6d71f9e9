"""What `--help` says of a component: its docstring, and every parameter with its type and default. Pure."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from holdfast.components.signature import Parameter, Signature, read_signature

#: How far flags reach to the right before their description begins.
COLUMN = 28
#: Narrower than this nothing fits.
WIDTH_MIN = 48


def render(fn: Callable[..., Any], name: str, width: int) -> str:
    """Describe a component; a parameter without a line in the docstring is shown like any other."""
    width = max(width, WIDTH_MIN)
    signature = read_signature(fn)
    text, lines = read_docstring(fn)
    parts = [_usage(signature, name, width)]
    parts += [_paragraph(each, width) for each in textwrap.dedent(text).split("\n\n") if each.strip()]
    if signature.parameters:
        parts.append("Flags:\n" + "\n".join(_row(each, lines, width) for each in signature.parameters.values()))
    if signature.rest is not None:
        rest, kind = signature.rest
        said = f"{kind.name}, any number: from the first word without a flag, or after --. {lines.get(rest, '')}"
        parts.append("Arguments:\n" + _two_columns(rest, said, width))
    notes = _notes(signature)
    parts += [textwrap.fill(notes, width)] if notes else []
    return "\n\n".join(parts)


def read_docstring(fn: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return what a docstring says of the function, and of each parameter."""
    from docstring_parser import DocstringStyle, ParseError
    from docstring_parser import parse as parse_docstring

    written = inspect.getdoc(fn) or ""
    try:
        read = parse_docstring(written, style=DocstringStyle.GOOGLE)
    except ParseError:
        return written, {}
    text = "\n\n".join(filter(None, (read.short_description, read.long_description)))
    return text, {each.arg_name.lstrip("*"): " ".join((each.description or "").split()) for each in read.params}


def _paragraph(text: str, width: int) -> str:
    """Fill a paragraph; one with lists or examples in it, which are indented or begin with a mark, stays as it is."""
    if any(line[:1] in " -*>|`" for line in text.splitlines()):
        return text
    return textwrap.fill(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


def _usage(signature: Signature, name: str, width: int) -> str:
    required = [f"{each.flag} {each.name.upper()}" for each in signature.parameters.values() if each.required]
    optional = len(required) < len(signature.parameters)
    rest = [f"[--] [{signature.rest[0]} ...]"] if signature.rest is not None else []
    words = " ".join(["Usage: holdfast run", name, *required, *(["[flags]"] if optional else []), *rest])
    return textwrap.fill(words, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _row(parameter: Parameter, lines: dict[str, str], width: int) -> str:
    flags = ", ".join(parameter.flags)
    if parameter.is_bool:
        flags += f", --no-{parameter.name}"
    kind = parameter.type.name if parameter.default is not None else parameter.type.name.removesuffix(" or none")
    state = "required" if parameter.required else f"default: {_default(parameter)}"
    return _two_columns(flags, f"{lines.get(parameter.name, '')} [{kind}; {state}]".strip(), width)


def _default(parameter: Parameter) -> str:
    if parameter.default is None:
        return "none"
    try:
        written = parameter.type.write(parameter.type.take(parameter.default))
    except (ValueError, TypeError, StopIteration):  # a default need not be of its own type
        return repr(parameter.default)
    return written or "empty"


def _two_columns(left: str, right: str, width: int) -> str:
    """Put the description beside the flags, or below them where they are too long."""
    head = f"  {left}"
    body = textwrap.wrap(right, width - COLUMN, break_long_words=False, break_on_hyphens=False)
    indented = [" " * COLUMN + line for line in body]
    if indented and len(head) < COLUMN - 1:
        indented[0] = head.ljust(COLUMN) + body[0]
        return "\n".join(indented)
    return "\n".join([head, *indented])


def _notes(signature: Signature) -> str:
    kinds = [each.type for each in signature.parameters.values()]
    notes = []
    if any(kind.depth == 1 for kind in kinds):
        notes.append("Lists are written a,b and dictionaries k=v,k2=v2, with quotes around what holds a comma;")
        notes.append("given again, they add up.")
    if any(kind.depth > 1 for kind in kinds):
        notes.append("What is nested is separated by semicolons, or written as JSON.")
    return " ".join(notes)
