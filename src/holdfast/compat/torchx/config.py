"""Settings from `.torchxconfig` files, as TorchX's functions give them; ours of `.holdfast.toml` are among them."""

from __future__ import annotations

import configparser
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from holdfast.home import home_folder
from holdfast.runner import config
from holdfast.runner.config import TORCHX as CONFIG_FILE
from holdfast.runner.config import TORCHX_VARIABLE as ENV_TORCHXCONFIG
from holdfast.runner.config import apply, find_configs
from holdfast.schedulers import Scheduler, aliases, create_scheduler, get_scheduler_factories
from holdfast.specs import CfgVal, runopt, runopts
from holdfast.specs.runopts import get_type_name

__all__ = [
    "CONFIG_FILE",
    "CONFIG_PREFIX_DELIM",
    "DEFAULT_CONFIG_DIRS",
    "ENV_TORCHXCONFIG",
    "Scheduler",
    "apply",
    "dump",
    "find_configs",
    "get_config",
    "get_configs",
    "get_scheduler_factories",
    "get_type_name",
    "load",
    "load_sections",
    "runopt",
]

CONFIG_PREFIX_DELIM = ":"
DEFAULT_CONFIG_DIRS = [str(home_folder() or "/"), str(Path.cwd())]
_NONE = "None"


def load(scheduler: str, f: TextIO, cfg: dict[str, CfgVal]) -> None:
    """Add a scheduler's run options from an open file to `cfg`; what it holds already wins."""
    source = config.Source(Path(getattr(f, "name", CONFIG_FILE)), config.parse_ini(Path(CONFIG_FILE), f.read()))
    config.Config([source]).apply(scheduler, cfg, _run_opts(scheduler))


def load_sections(prefix: str, dirs: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
    """Return every section `[prefix:name]`, by its name."""
    found = config.load_dirs(dirs) if dirs else config.load()
    return {name: found.values(prefix, name) for name in found.names(prefix)}


def get_configs(prefix: str, name: str, dirs: Sequence[str] | None = None) -> dict[str, str]:
    """Return what the section `[prefix:name]` says; nothing where there is none."""
    return load_sections(prefix, dirs).get(name, {})


def get_config(prefix: str, name: str, key: str, dirs: Sequence[str] | None = None) -> str | None:
    """Return one value of the section `[prefix:name]`; None where there is none."""
    return get_configs(prefix, name, dirs).get(key)


def dump(f: TextIO, schedulers: Sequence[str] | None = None, required_only: bool = False) -> None:
    """Write a `.torchxconfig` with the run options of these schedulers, or all, their defaults, and what is missing."""
    written = configparser.ConfigParser(interpolation=None)
    written.optionxform = str  # type: ignore[assignment, method-assign] # keys keep their case
    for name in schedulers or [each for each in get_scheduler_factories() if each not in aliases()]:
        written[name] = {
            key: _template(option) for key, option in _run_opts(name) if option.is_required or not required_only
        }
    written.write(f)


def _run_opts(scheduler: str) -> runopts:
    return create_scheduler(scheduler, "_").run_opts()


def _template(option: runopt) -> str:
    if option.is_required:
        return f"#FIXME:({option.type_name}) {option.help}"
    if isinstance(option.default, dict):
        return ";".join(f"{key}:{value}" for key, value in option.default.items()) or _NONE
    if isinstance(option.default, list):
        return ";".join(option.default) or _NONE
    return str(option.default)
