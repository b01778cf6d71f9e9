"""Writes docs/API.md from signatures and docstrings.

python tests/api_page.py
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import holdfast

PAGE = Path(__file__).parent.parent / "docs" / "API.md"

HEAD = """\
# The Python API

Written by `tests/api_page.py` from signatures and docstrings; a test says when it is out of date.

The names below are public: they change only with a note in the [changelog](../CHANGELOG.md). `import holdfast` is
enough to use them; a name or module is imported when it is first used, and torch only by the names of `holdfast.torch`.
A `timeout` is a number of seconds or a `timedelta`. The flags that `launch` takes are in [OPTIONS.md](OPTIONS.md), the
names of TorchElastic and TorchX in [COMPATIBILITY.md](COMPATIBILITY.md). A class is listed with what it adds to its
bases.
"""

#: The modules that most programs use.
FIRST = ("checkpoint", "errors", "torch", "train")
#: Public modules whose names are elsewhere than in their `__all__`: modules below them, by module name.
BELOW = {
    "holdfast.components": ("holdfast.components.dist", "holdfast.components.utils"),
    "holdfast.testing": (
        "holdfast.testing.store_contract",
        "holdfast.testing.scheduler_contract",
        "holdfast.testing.rendezvous_contract",
        "holdfast.testing.metric_contract",
        "holdfast.testing.event_contract",
        "holdfast.testing.tracker_contract",
        "holdfast.testing.tier_contract",
        "holdfast.testing.memory_scheduler",
        "holdfast.testing.store_server",
    ),
    "holdfast.train": ("holdfast.train.run",),
}
#: What those modules have besides that is not for others.
NOT_PUBLIC = ("Bench", "lines_of")


def page() -> str:
    """The whole page."""
    sections = [_section("holdfast", "What most programs need.", list(holdfast._NAMES))]
    for name in sorted(holdfast._MODULES, key=lambda name: (name not in FIRST, name)):
        sections += _module(f"holdfast.{name}")
    return "\n".join([HEAD, *sections])


def _module(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or _defined(module)
    if name in BELOW:
        yield _section(name, _promise(module), [])
        for below in BELOW[name]:
            inner = importlib.import_module(below)
            yield _section(below, _promise(inner), _defined(inner), level=3)
    else:
        yield _section(name, _promise(module), list(names))


def _defined(module: Any) -> list[str]:
    """The public functions and classes that a module defines, in its own order."""
    return [
        name
        for name, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and name not in NOT_PUBLIC
    ]


def _section(module: str, text: str, names: list[str], level: int = 2) -> str:
    home = importlib.import_module(module)
    lines = [f"{'#' * level} {module}", "", text]
    entries = [line for name in names if name != "__version__" for line in _entry(name, getattr(home, name))]
    return "\n".join([*lines, *(["", *entries] if entries else []), ""])


def _entry(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield f"- `class {name}{_bases(value)}`: {_promise(value)}"
        if not issubclass(value, BaseException | enum.Enum):
            yield from _members(name, value)
    elif inspect.isroutine(value):
        yield f"- `{name}{_signature(value)}`: {_promise(value)}"
    else:
        is_plain = isinstance(value, str | int | float)
        is_ours = type(value).__module__.startswith("holdfast")
        yield f"- `{name}{f' = {value!r}' if is_plain else f': {type(value).__name__}' if is_ours else ''}`"


def _bases(value: type) -> str:
    """For errors, what they are caught as; for others, how one is made."""
    if issubclass(value, BaseException):
        return f"({', '.join(each.__name__ for each in value.__bases__)})"
    if issubclass(value, enum.Enum):
        return f": {', '.join(each.name for each in value)}"
    return _signature(value, of_class=True)


def _members(owner: str, value: type) -> Iterator[str]:
    """What the class itself adds to its bases."""
    for name, member in vars(value).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property | functools.cached_property):
            yield f"  - `.{name}`: {_promise(member)}"
        elif inspect.isfunction(member) or isinstance(member, classmethod | staticmethod):
            inner = member if inspect.isfunction(member) else member.__func__
            on = "." if inspect.isfunction(member) else f"{owner}."
            told = _signature(inner, skip_first=not isinstance(member, staticmethod))
            yield f"  - `{on}{name}{told}`: {_promise(getattr(value, name))}"


def _promise(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    first = " ".join(text.split("\n\n")[0].split())
    return first or "(no description)"


def _signature(value: Any, *, of_class: bool = False, skip_first: bool = False) -> str:
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    parameters = list(found.parameters.values())[1 if skip_first else 0 :]
    shown: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown and not any(s.startswith("*") for s in shown):
            shown.append("*")
        shown.append(_parameter(parameter))
    returns = "" if of_class or found.return_annotation is found.empty else f" -> {_type(found.return_annotation)}"
    return f"({', '.join(shown)}){returns}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_type(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        text += f" = {_default(parameter.default)}"
    return text


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)  # of structs, whose fields are read by msgspec
    return re.sub(r"\b(?:typing|os|collections\.abc|datetime|holdfast(?:\.\w+)+)\.", "", text).strip("'\"")


def _default(value: Any) -> str:
    """What a reader would write; never an address."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, tuple):
        return f"({', '.join(map(_default, value))})"
    if inspect.isclass(value) or inspect.isroutine(value):
        return str(value.__name__)
    text = repr(value)
    return "..." if " at 0x" in text or len(text) > 40 or text.startswith("environ(") else text


if __name__ == "__main__":
    PAGE.write_text(page())
