"""Checks of a component in a file, as messages with a line; what is checked, our components decide."""

from __future__ import annotations

import argparse
import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.components.finder import find_component
from holdfast.components.help import read_docstring
from holdfast.components.signature import read_signature
from holdfast.errors import ComponentNotFoundError, PluginBrokenError

#: The name of messages about a function's signature.
_FUNCTION = "TorchxFunctionValidator"


@dataclass
class LinterMessage:
    """One thing that is wrong, and where."""

    name: str
    description: str
    line: int
    char: int
    severity: str = "error"


class TorchxFunctionValidator(ABC):
    """A check of your own: it sees the function as Python's syntax tree has it."""

    @abstractmethod
    def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
        """Say what is wrong with a function."""

    def _gen_linter_message(self, description: str, lineno: int) -> LinterMessage:
        return LinterMessage(_FUNCTION, description, lineno, 0)


class TorchXArgumentHelpFormatter(
    argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter, argparse.MetavarTypeHelpFormatter
):
    """Help of argparse's that keeps the description's lines and tells types, and defaults where there are some."""

    def _get_help_string(self, action: argparse.Action) -> str:
        told = action.help or ""
        if action.required:
            return f"{told} (required)"
        return told if action.default is argparse.SUPPRESS else f"{told} (default: {action.default})"


def validate(
    path: str, component_function: str, validators: Sequence[TorchxFunctionValidator] | None = None
) -> list[LinterMessage]:
    """Say what keeps a function of a file from being a component; the file is loaded for it.

    Validators of your own are asked too.
    """
    try:
        tree = ast.parse(Path(path).read_text())
    except SyntaxError as error:
        return [LinterMessage("TorchXValidator", error.msg, error.lineno or 0, error.offset or 0)]
    try:
        component = find_component(f"{path}:{component_function}")
        found = [_message(each.reason, each.line, _FUNCTION) for each in component.validation_errors]
    except ComponentNotFoundError:
        return [_message(f"Function {component_function} not found", 0)]
    except PluginBrokenError as error:
        return [_message(str(error), 0)]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == component_function:
            found += [message for each in validators or () for message in each.validate(node)]
    return found


def get_fn_docstring(fn: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """Return what a docstring says of a function and of each parameter; one that it says nothing of has a blank."""
    text, lines = read_docstring(fn)
    signature = read_signature(fn)
    names = [*signature.parameters, *([signature.rest[0]] if signature.rest is not None else [])]
    return text or f"{fn.__name__} TODO: provide docstring", {name: lines.get(name, " ") for name in names}


def _message(description: str, line: int | None, name: str = "TorchXValidator") -> LinterMessage:
    return LinterMessage(name, description, line or 0, 0)
