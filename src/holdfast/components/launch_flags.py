"""Flags of a launch as arguments of a component, so that a component need not name each of them. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from holdfast.launcher.options import JOB_OPTIONS, OPTIONS, Option, words_of

#: Flags that components have by other names: a module is `m`.
_BY_OTHER_NAMES = ("module",)
_IN_PLACE_OF_J = ("nnodes", "nproc_per_node")

F = TypeVar("F", bound=Callable[..., Any])


def takes_launch_flags(component: F) -> F:
    """Put every flag that a job takes in the place of a component's `**flags`: in its signature and its docstring.

    A flag that the component has as an argument of its own stays as it is. What is not given is None, or False for a
    bare flag, and is left to the launch.
    """
    signature = inspect.signature(component)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    named = {each.name for each in own}
    further = [each for each in JOB_OPTIONS.values() if each.name not in named and each.name not in _BY_OTHER_NAMES]
    component.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own, *(_parameter(each) for each in further)]
    )
    lines = "".join(f"    {each.name}: {_line(each)}\n" for each in further)
    component.__doc__ = f"{inspect.cleandoc(component.__doc__ or '')}\n{lines}"
    return component


def launch_words(flags: Mapping[str, Any], env: Mapping[str, str], defaults: Mapping[str, Any]) -> list[str]:
    """Write flags as words for `holdfast launch`, in the order of the table.

    A variable of the job, such as PET_TEE, wins over what is only a component's default. Raises `TypeError` for a flag
    that there is not, as a call with an unknown argument does.
    """
    for name in flags:
        if name not in JOB_OPTIONS or name in _BY_OTHER_NAMES:
            raise TypeError(f"got an unexpected argument '{name}'")
    kept = {
        name: flags[name]
        for name, option in OPTIONS.items()
        if name in flags and not (option.variable in env and name in defaults and flags[name] == defaults[name])
    }
    return words_of(kept)


def defaults_of(component: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults that a component itself gives to flags of a launch."""
    parameters = inspect.signature(component).parameters
    return {name: parameters[name].default for name in OPTIONS if name in parameters and parameters[name].default}


def _parameter(option: Option) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    if option.is_flag:
        return inspect.Parameter(option.name, kind, default=False, annotation=bool)
    number = option.type in (int, float)
    annotation = (option.type if number else str) | None
    return inspect.Parameter(option.name, kind, default=None, annotation=annotation)


def _line(option: Option) -> str:
    if option.name in _IN_PLACE_OF_J:
        return f"{option.help} In place of that in j."
    return f"{option.help} Without it: {option.shown_default}." if option.shown_default else option.help
