"""Settings from files: found upward from the current folder, and in the home folder; each value knows where it is from.

From the highest to the lowest:

1. the project: the nearest `.holdfast.toml`, the nearest `pyproject.toml` with `[tool.holdfast]`, the nearest
   `.torchxconfig`, each looked for in the current folder and every one above it;
2. the home folder: `~/.holdfast.toml`, `~/.torchxconfig`.

`HOLDFAST_CONFIG` names one file that is read instead of all these (none, when it is empty); `TORCHXCONFIG` names the
one `.torchxconfig` to read.

    [cli.launch]            flags of `holdfast launch`, as in max_restarts = 3
    [cli.run]               component, scheduler, workspace, and flags of a launch for scripts
    [scheduler.<name>]      run options
    [component."<name>"]    defaults of a component's arguments
    [resources.<name>]      cpu, gpu, memMB and the other fields of a resource

A `.torchxconfig` is an INI file with the sections `[<scheduler>]`, `[component:<name>]` and `[cli:run]`.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import UsageError
from holdfast.facts import facts
from holdfast.home import home_folder

if TYPE_CHECKING:
    from holdfast.specs import CfgVal, Resource, runopts

OURS, PYPROJECT, TORCHX = ".holdfast.toml", "pyproject.toml", ".torchxconfig"
SECTIONS = ("cli", "scheduler", "component", "resources", "tracker", "torchx")
#: The commands that have settings.
COMMANDS = ("launch", "run")
VARIABLE, TORCHX_VARIABLE = "HOLDFAST_CONFIG", "TORCHXCONFIG"


class Setting(NamedTuple):
    """One value and the file it came from."""

    value: Any
    origin: str


class Source(NamedTuple):
    """One file that was read."""

    path: Path
    data: dict[str, Any]


class Config:
    """The settings of a set of files; the first file wins over the next."""

    def __init__(self, sources: Sequence[Source] = ()) -> None:
        self.sources = tuple(sources)

    def section(self, *path: str) -> dict[str, Setting]:
        """Return the settings of one section, as in `section("scheduler", "local")`."""
        found: dict[str, Setting] = {}
        for source in reversed(self.sources):
            for key, value in _dig(source, path).items():
                found[key] = Setting(value, str(source.path))
        return found

    def values(self, *path: str) -> dict[str, Any]:
        """Return the values of one section alone."""
        return {key: setting.value for key, setting in self.section(*path).items()}

    def names(self, group: str) -> list[str]:
        """Return the names of a group's sections, as in `[component.<name>]`."""
        tables = [source.data.get(group, {}) for source in self.sources]
        return list(dict.fromkeys(name for table in tables if isinstance(table, dict) for name in _names_in(table)))

    def apply(self, scheduler: str, cfg: MutableMapping[str, CfgVal], options: runopts | None = None) -> None:
        """Add a scheduler's run options from the files to those that are set already and win.

        With `options`, text becomes what the option's type wants, and what does not fit is refused by file and name.
        """
        for key, setting in self.section("scheduler", scheduler).items():
            if key not in cfg:
                cfg[key] = _fit(key, setting, options)

    def component(self, name: str) -> dict[str, Any]:
        """Return the defaults for a component's arguments."""
        return {key: value for key, value in self.values("component", name).items() if value is not None}

    def resources(self) -> dict[str, Resource]:
        """Return the named resources of these files."""
        found: dict[str, Resource] = {}
        for source in reversed(self.sources):
            for name, fields in _resource_tables("", source.data.get("resources", {}), source.path):
                found[name] = _resource(name, fields, source.path)
        return found

    def register_resources(self) -> None:
        """Make the named resources of these files known in this process."""
        if any("resources" in source.data for source in self.sources):
            from holdfast.specs import register_named_resource

            for name, resource in self.resources().items():
                register_named_resource(name, functools.partial(type(resource).copy, resource))

    def settings(self) -> Iterator[tuple[str, Setting]]:
        """Yield every setting that is in force, by its full name."""
        found: dict[str, Setting] = {}
        for source in reversed(self.sources):
            for name, value in _leaves(source.data):
                found[name] = Setting(value, str(source.path))
        yield from sorted(found.items())


def load(start: Path | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """Read the settings that are in force in a folder, by default the current one; raises `UsageError`."""
    return Config([source for path in find_files(start or Path.cwd(), environ) if (source := read(path)) is not None])


def load_dirs(dirs: Sequence[str | Path]) -> Config:
    """Read the settings of these folders alone, the first winning."""
    paths = [Path(folder) / name for folder in dirs for name in (OURS, PYPROJECT, TORCHX)]
    return Config([source for path in paths if path.is_file() and (source := read(path)) is not None])


def apply(scheduler: str, cfg: MutableMapping[str, CfgVal], dirs: Sequence[str | Path] | None = None) -> None:
    """Add a scheduler's run options from the files to `cfg`; what it holds already wins."""
    config = load() if dirs is None else load_dirs(dirs)
    if config.section("scheduler", scheduler):
        from holdfast.runner.api import get_runner

        with get_runner() as runner:
            config.apply(scheduler, cfg, runner.scheduler_run_opts(scheduler))


def find_configs(dirs: Sequence[str | Path] | None = None) -> list[str]:
    """Return the paths of the files that would be read, the winning first."""
    return [str(source.path) for source in (load() if dirs is None else load_dirs(dirs)).sources]


def find_files(start: Path, environ: Mapping[str, str]) -> list[Path]:
    """Return the files to read, the winning first."""
    if VARIABLE in environ:
        named = environ[VARIABLE]
        if not named:
            return []
        if not Path(named).is_file():
            raise UsageError(f"${VARIABLE} names {named}, which is not a file")
        return [Path(named)]
    home = home_folder(environ)
    found = [path for name in (OURS, PYPROJECT) if (path := _nearest(start, name, home)) is not None]
    if TORCHX_VARIABLE in environ:
        named = environ[TORCHX_VARIABLE]
        if named and not Path(named).is_file():
            _warn(f"${TORCHX_VARIABLE} names {named}, which is not a file; none is read instead")
        return [*found, *([Path(named)] if named and Path(named).is_file() else []), *_existing(home, OURS)]
    torchx = _nearest(start, TORCHX, home)
    return [*found, *([torchx] if torchx else []), *_existing(home, OURS, TORCHX)]


def read(path: Path) -> Source | None:
    """Read one file; None if a pyproject.toml says nothing to us. Raises `UsageError` by file and line."""
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8: write it anew") from None
    if path.name == PYPROJECT:
        if "tool.holdfast" not in content:  # most of them; reading TOML is not free
            return None
        ours = _parse_toml(path, content).get("tool", {}).get("holdfast", {})
        return _checked(path, ours)
    if path.suffix == ".toml":
        return _checked(path, _parse_toml(path, content))
    return Source(path, parse_ini(path, content))


# -- finding -----------------------------------------------------------------------------------------------------


def _nearest(start: Path, name: str, home: Path | None) -> Path | None:
    """Look in a folder and those above it, up to but not into the home folder, whose files come later."""
    for folder in (start, *start.parents):
        if folder == home:
            return None
        path = folder / name
        if _is_file(path) and (name != PYPROJECT or "tool.holdfast" in path.read_text(errors="replace")):
            return path
    return None


@functools.lru_cache(maxsize=100)
def _warn(sentence: str) -> None:
    """Warn once: files are read many times."""
    facts.warn("config_unknown", sentence)


def _existing(home: Path | None, *names: str) -> list[Path]:
    return [] if home is None else [home / name for name in names if _is_file(home / name)]


def _is_file(path: Path) -> bool:
    """Return whether a file can be seen; no where its folder may not be searched, as in another user's home."""
    return os.path.isfile(path)  # noqa: PTH113 - pathlib's own raises there


# -- reading -----------------------------------------------------------------------------------------------------


def _parse_toml(path: Path, content: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"^(.*?) \(at line (\d+), column \d+\)$", str(error))
        if place is None:
            raise UsageError(f"{path} cannot be read: {error}") from None
        raise UsageError(f"{path}, line {place[2]}: {place[1]}") from None


def _checked(path: Path, data: dict[str, Any]) -> Source:
    for name, table in data.items():
        if name not in SECTIONS:
            _warn(f"{path}: the section [{name}] is not known and is left out")
        elif not isinstance(table, dict):
            raise UsageError(f"{path}: '{name}' must be a section, as in [{name}.<name>]")
    for name in data.get("cli", {}):
        if name not in COMMANDS:
            _warn(f"{path}: [cli.{name}] is left out; there are {' and '.join(f'[cli.{each}]' for each in COMMANDS)}")
    return Source(path, data)


def parse_ini(path: Path, content: str) -> dict[str, Any]:
    """Read the text of a `.torchxconfig`; raises `UsageError` by file and line."""
    import configparser

    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign] # keys keep their case
    try:
        parser.read_string(content, str(path))
    except configparser.Error as error:
        errors = getattr(error, "errors", None)
        line = errors[0][0] if errors else getattr(error, "lineno", None)
        what = {
            "MissingSectionHeaderError": "something is set before the first [section]",
            "DuplicateOptionError": f"'{getattr(error, 'option', '')}' is set twice",
            "DuplicateSectionError": f"the section [{getattr(error, 'section', '')}] appears twice",
        }.get(type(error).__name__, "this is not of the form key = value")
        raise UsageError(f"{path}{f', line {line}' if line else ''}: {what}") from None
    data: dict[str, Any] = {}
    for section in parser.sections():
        group, colon, name = section.partition(":")
        table = data.setdefault(group if colon else "scheduler", {}).setdefault(name if colon else section, {})
        table |= {key: None if text == "None" else text for key, text in parser.items(section)}
    return data


def _dig(source: Source, path: tuple[str, ...]) -> dict[str, Any]:
    """Return one table; `[component.dist.ddp]` means the same as `[component."dist.ddp"]`."""
    table: Any = source.data.get(path[0], {})
    for name in path[1:]:
        table = _lookup(table, name)
        if not isinstance(table, dict):
            where = ".".join(path)
            raise UsageError(f"{source.path}: '{where}' must be a section, as in [{where}]")
    return dict(table)


def _lookup(table: Any, name: str) -> Any:
    if not isinstance(table, dict) or name in table:
        return table[name] if isinstance(table, dict) else table
    head, dot, rest = name.partition(".")
    return _lookup(table[head], rest) if dot and isinstance(table.get(head), dict) else {}


def _names_in(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Name the sections of a table; one that holds only sections is part of longer names."""
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and all(isinstance(each, dict) for each in value.values()):
            yield from _names_in(value, f"{name}.")
        elif isinstance(value, dict):
            yield name


def _leaves(data: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict) and depth < 2:
            yield from _leaves(value, name, depth + 1)
        else:
            yield name, value


# -- what values mean --------------------------------------------------------------------------------------------


def _fit(key: str, setting: Setting, options: runopts | None) -> CfgVal:
    option = options.get(key) if options is not None else None
    value: CfgVal = setting.value
    if option is None or value is None or option.accepts(value):
        return value
    try:
        if isinstance(value, str):
            return option.cast_to_type(value)
    except ValueError:
        pass  # told below, with the file
    raise UsageError(f"{setting.origin}: '{key}' is {value!r} but must be {option.type_name}")


def _resource_tables(prefix: str, table: Any, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield resources by name; a name with dots may have been read as nested tables."""
    if not isinstance(table, dict):
        raise UsageError(f"{path}: 'resources.{prefix}' must be a section, as in [resources.{prefix or '<name>'}]")
    if prefix and not all(isinstance(each, dict) for each in table.values()):
        yield prefix, table
        return
    for name, inner in table.items():
        yield from _resource_tables(f"{prefix}.{name}" if prefix else name, inner, path)


def _resource(name: str, fields: dict[str, Any], path: Path) -> Resource:
    from holdfast.specs import Resource

    known = Resource.__dataclass_fields__
    for field, value in fields.items():
        if field not in known:
            raise UsageError(f"{path}: the resource '{name}' has no field '{field}'; there are {', '.join(known)}")
        wanted: Any = {"cpu": (int, float), "gpu": (int, float), "memMB": int}.get(field, dict)
        if not isinstance(value, wanted) or isinstance(value, bool):
            what = "a table" if wanted is dict else "a number"
            raise UsageError(f"{path}: the resource '{name}' has {field} = {value!r}, which must be {what}")
    return Resource(**{"cpu": 1, "gpu": 0, "memMB": 1024, **fields})
