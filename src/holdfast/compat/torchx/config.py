"""TorchX's `runner.config`: settings from `.torchxconfig` files, and from `.holdfast.toml` files beside them."""

from __future__ import annotations

import configparser
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from holdfast.compat.torchx.schedulers import get_scheduler_factories
from holdfast.errors import PluginBrokenError, UsageError
from holdfast.facts import facts
from holdfast.home import home_folder
from holdfast.runner import config
from holdfast.runner.config import TORCHX as CONFIG_FILE
from holdfast.runner.config import TORCHX_VARIABLE as ENV_TORCHXCONFIG
from holdfast.schedulers import Scheduler
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
#: Where files are looked for, the winning first; programs put a list of their own in its place.
DEFAULT_CONFIG_DIRS = _AT_IMPORT = [str(home_folder() or "/"), str(Path.cwd())]
_NONE = "None"


def find_configs(dirs: Sequence[str] | None = None) -> list[str]:
    """Return the files to read, the winning first: the one that `TORCHXCONFIG` names, or those of these folders."""
    named = os.environ.get(ENV_TORCHXCONFIG)
    if named is not None:
        if not Path(named).is_file():
            raise FileNotFoundError(2, f"${ENV_TORCHXCONFIG} names what is not a file", named)
        return [named]
    names = (config.OURS, config.PYPROJECT, CONFIG_FILE)
    # The current folder may be another one since.
    defaults = DEFAULT_CONFIG_DIRS if DEFAULT_CONFIG_DIRS is not _AT_IMPORT else [home_folder() or "/", Path.cwd()]
    found = [Path(folder) / name for folder in dirs or defaults for name in names]
    return [str(path) for path in found if os.access(path, os.R_OK) and config.read(path) is not None]


def apply(scheduler: str, cfg: dict[str, CfgVal], dirs: Sequence[str] | None = None) -> None:
    """Add a scheduler's run options from the files to `cfg`; what it holds already wins."""
    _add(_read(find_configs(dirs)), scheduler, cfg)


def load(scheduler: str, f: TextIO, cfg: dict[str, CfgVal]) -> None:
    """Add a scheduler's run options from an open file to `cfg`; what it holds already wins."""
    path = Path(getattr(f, "name", CONFIG_FILE))
    _add(config.Config([config.Source(path, config.parse_ini(path, f.read()))]), scheduler, cfg)


def load_sections(prefix: str, dirs: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
    """Return every section `[prefix:name]`, by its name."""
    found = _read(find_configs(dirs))
    sections = {name: found.values(prefix, name) for name in found.names(prefix) if name}
    return {
        name: {key: _NONE if value is None else value for key, value in values.items()}
        for name, values in sections.items()
    }


def get_configs(prefix: str, name: str, dirs: Sequence[str] | None = None) -> dict[str, str]:
    """Return what the section `[prefix:name]` says; nothing if there is none."""
    return load_sections(prefix, dirs).get(name, {})


def get_config(prefix: str, name: str, key: str, dirs: Sequence[str] | None = None) -> str | None:
    """Return one value of the section `[prefix:name]`; None if there is none."""
    return get_configs(prefix, name, dirs).get(key)


def dump(f: TextIO, schedulers: Sequence[str] | None = None, required_only: bool = False) -> None:
    """Write a `.torchxconfig` with the run options of these schedulers, or all, their defaults, and what is missing."""
    written = configparser.ConfigParser(interpolation=None)
    written.optionxform = str  # type: ignore[assignment, method-assign] # keys keep their case
    for name in schedulers or get_scheduler_factories():
        try:
            options = _run_opts(name)
        except (ModuleNotFoundError, PluginBrokenError) as error:
            facts.warn("config_unknown", f"the scheduler '{name}' is left out: {error}")
            continue
        written[name] = {key: _text(option) for key, option in options if option.is_required or not required_only}
    written.write(f)


def _read(paths: Sequence[str]) -> config.Config:
    return config.Config([source for path in paths if (source := config.read(Path(path))) is not None])


def _run_opts(scheduler: str) -> runopts:
    factories = get_scheduler_factories()
    if scheduler not in factories:
        raise UsageError(f"'{scheduler}' is not a scheduler; there are {', '.join(factories)}")
    return factories[scheduler]("_").run_opts()


def _add(found: config.Config, scheduler: str, cfg: dict[str, CfgVal]) -> None:
    section = found.section("scheduler", scheduler)
    options = _run_opts(scheduler) if section else runopts()
    for key, setting in section.items():
        option = options.get(key)
        if key in cfg:
            continue
        if option is None and setting.value is not None:
            where = f"{setting.origin}: [{scheduler}]"
            facts.warn(
                "config_unknown", f"{where} sets '{key}', which is not a run option of that scheduler; it is ignored"
            )
        else:
            cfg[key] = _value(key, setting, option)


def _value(key: str, setting: config.Setting, option: runopt | None) -> CfgVal:
    """Read what `_text` wrote."""
    value: CfgVal = setting.value
    if option is None or not isinstance(value, str) or option.opt_type is str:
        return value
    try:
        if option.is_type_list_of_str:
            return value.split(";")
        if option.is_type_dict_of_str:
            return dict(_pair(each) for each in value.replace(",", ";").split(";"))
        return option.cast_to_type(value)
    except ValueError:
        raise UsageError(f"{setting.origin}: '{key}' is {value!r} but must be {option.type_name}") from None


def _pair(text: str) -> tuple[str, str]:
    key, colon, value = text.partition(":")
    if not colon:
        raise ValueError(text)
    return key, value


def _text(option: runopt) -> str:
    if option.is_required:
        return f"#FIXME:({option.type_name}) {option.help}"
    if isinstance(option.default, dict):
        return ";".join(f"{key}:{value}" for key, value in option.default.items()) or _NONE
    if isinstance(option.default, list):
        return ";".join(option.default) or _NONE
    return str(option.default)
