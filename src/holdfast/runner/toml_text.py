"""TOML as text: values, keys, and the commented file that `holdfast configure` writes. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.specs import runopt, runopts

_BARE = re.compile(r"[A-Za-z0-9_-]+")

_HEAD = """\
# Settings of holdfast, found upward from the folder in which it runs; those of the project win over ~/.holdfast.toml.
# `holdfast configure --print` shows what is in force and where it comes from. Remove the # before what you set.

# Flags of `holdfast launch`, as if they were typed; variables and what is typed win.
# [cli.launch]
# nproc_per_node = "auto"
# max_restarts = 3

# What `holdfast run` does when it is not told otherwise.
[cli.run]
# component = "dist.ddp"
# scheduler = "local"
# workspace = "."
# max_restarts = 3      # and any other flag of a launch, for scripts

# Defaults for the arguments of a component.
# [component."dist.ddp"]
# j = "2x4"

# Named resources of your own, for `-h` of components.
# [resources.gpu_x2]
# cpu = 16
# gpu = 2
# memMB = 122000
"""


def key(name: str) -> str:
    """Write a key, quoted where it must be."""
    return name if _BARE.fullmatch(name) else _string(name)


def value(thing: Any) -> str:
    """Write a value."""
    if isinstance(thing, bool):
        return "true" if thing else "false"
    if isinstance(thing, int | float):
        return repr(thing)
    if isinstance(thing, Mapping):
        return "{" + ", ".join(f"{key(str(name))} = {value(each)}" for name, each in thing.items()) + "}"
    if isinstance(thing, list | tuple):
        return "[" + ", ".join(value(each) for each in thing) + "]"
    return _string(str(thing))


def template(options: Mapping[str, runopts]) -> str:
    """Write a settings file that explains every option and sets none."""
    parts = [_HEAD]
    for name, opts in options.items():
        lines = [f"[scheduler.{key(name)}]"]
        for option_name, option in opts:
            lines += _option(option_name, option)
        if len(lines) == 1:
            lines.append("# It has no run options.")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _option(name: str, option: runopt) -> list[str]:
    said = "required" if option.is_required else "no default" if option.default is None else "default"
    words = " ".join(option.help.split())
    example = option.default if option.default is not None else _empty(option)
    return [f"# {name} ({option.type_name}, {said}): {words}", f"# {key(name)} = {value(example)}"]


def _empty(option: runopt) -> Any:
    """Return a value of the option's type to begin with."""
    if option.choices:
        return option.choices[0]
    if option.is_type_list_of_str:
        return []
    if option.is_type_dict_of_str:
        return {}
    return {"int": 0, "float": 0.0, "bool": False}.get(option.type_name, "")


def _string(text: str) -> str:
    # JSON's strings are TOML's, but for this one character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
