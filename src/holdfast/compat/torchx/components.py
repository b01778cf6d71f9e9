"""TorchX's `specs.builders` and `specs.finder`: our components with the promises of those names.

A mistake in a command line ends the process, as argparse does it; defaults that name no parameter are left out.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.compat.torchx.file_linter import get_fn_docstring
from holdfast.components import arguments
from holdfast.components.errors import HelpRequested
from holdfast.components.finder import find_component
from holdfast.components.signature import read_signature
from holdfast.errors import ComponentValidationError, UsageError
from holdfast.specs import AppDef

__all__ = [
    "ComponentArgs",
    "ComponentsFinder",
    "CustomComponentsFinder",
    "component_args_from_str",
    "materialize_appdef",
    "parse_args",
]

#: What argparse exits with.
USAGE = 2


def materialize_appdef(
    cmpnt_fn: Callable[..., Any],
    cmpnt_args: Sequence[str] | Mapping[str, Any],
    cmpnt_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> AppDef:
    """Call a component with what was typed, and return its app."""
    defaults = _known(cmpnt_fn, cmpnt_defaults)
    if not isinstance(cmpnt_args, Mapping):
        _or_exit(arguments.parse, cmpnt_fn, cmpnt_args, defaults, config, name)
    return arguments.materialize_appdef(cmpnt_fn, cmpnt_args, defaults, config, name)


@dataclass
class ComponentArgs:
    """What a component is called with: what goes by place, the rest of what was typed, what goes by name."""

    positional_args: dict[str, Any]
    var_args: list[Any]
    kwargs: dict[str, Any]


def component_args_from_str(
    cmpnt_fn: Callable[..., Any],
    cmpnt_args: Sequence[str],
    cmpnt_args_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> ComponentArgs:
    """Return what `materialize_appdef` would call a component with, each value of the type that the signature says."""
    values = vars(parse_args(cmpnt_fn, cmpnt_args, cmpnt_args_defaults, config))
    signature = read_signature(cmpnt_fn)
    rest = values.pop(signature.rest[0]) if signature.rest is not None else []
    places = {each.name for each in signature.parameters.values() if each.by_place}
    return ComponentArgs(
        {name: value for name, value in values.items() if name in places},
        rest,
        {name: value for name, value in values.items() if name not in places},
    )


def parse_args(
    cmpnt_fn: Callable[..., Any],
    cmpnt_args: Sequence[str],
    cmpnt_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Namespace:
    """Return the value of every parameter of a component, by name, each of the type that the signature says."""
    defaults = _known(cmpnt_fn, cmpnt_defaults)
    signature, given = _or_exit(arguments.gather, cmpnt_fn, cmpnt_args, defaults, config, cmpnt_fn.__name__)
    values = {each.name: given.get(each.name, each.default) for each in signature.parameters.values()}
    if signature.rest is not None:
        values[signature.rest[0]] = given.get(signature.rest[0], [])
    return Namespace(**values)


def _or_exit(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except HelpRequested as wanted:
        print(wanted)
        sys.exit(0)
    except ComponentValidationError:
        raise
    except UsageError as mistake:
        print(f"error: {mistake}", file=sys.stderr)
        sys.exit(USAGE)


def _known(fn: Callable[..., Any], defaults: Mapping[str, Any] | None) -> dict[str, Any]:
    """Leave out defaults that name no parameter."""
    signature = read_signature(fn)
    names = {*signature.parameters, *([signature.rest[0]] if signature.rest is not None else [])}
    return {key: value for key, value in (defaults or {}).items() if key.replace("-", "_") in names}


@dataclass
class _Component:
    """A component that was found."""

    name: str
    description: str
    fn_name: str
    fn: Callable[..., AppDef]
    validation_errors: list[str]


class ComponentsFinder(ABC):
    """Finds components."""

    @abstractmethod
    def find(self) -> list[_Component]:
        """Return those that it finds."""


class CustomComponentsFinder(ComponentsFinder):
    """Finds one function of a file."""

    def __init__(self, filepath: str, function_name: str) -> None:
        self._name = f"{filepath}:{function_name}"
        self._function_name = function_name

    def find(self) -> list[_Component]:
        """Return the function, with what keeps it from being a component."""
        found = find_component(self._name)
        wrong = [each.reason for each in found.validation_errors]
        summary = "" if wrong else get_fn_docstring(found.fn)[0]
        return [_Component(self._name, summary, self._function_name, found.fn, wrong)]
