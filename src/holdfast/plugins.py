"""Plugins: entry points of installed packages, our own included.

A plugin is loaded when it is used by name. A broken one is reported with its error and affects nothing else.

Entry points are read from the folders of installed packages: `importlib.metadata` finds the same, but importing it
takes longer than all the rest of a short command. It is used only for packages in archives.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import PluginBrokenError as PluginBrokenError


class Distribution(NamedTuple):
    """An installed package."""

    name: str


class EntryPoint(NamedTuple):
    """One line of a package's entry points; `value` is `module` or `module:attribute`."""

    name: str
    value: str
    group: str
    dist: Distribution

    @property
    def module(self) -> str:
        """The module it points to."""
        return self.value.partition(":")[0].strip()

    @property
    def attr(self) -> str:
        """The attribute of the module, or nothing."""
        return self.value.partition(":")[2].partition("[")[0].strip()

    def load(self) -> Any:
        """Import what it points to."""
        return reduce(getattr, filter(None, self.attr.split(".")), importlib.import_module(self.module))


class Plugin(NamedTuple):
    """One entry point: its group and name, what it points to, and the package that brought it."""

    group: str
    name: str
    value: str
    package: str
    point: EntryPoint

    def load(self) -> Any:
        """Import what it points to; raises `PluginBrokenError`."""
        try:
            return self.point.load()
        except (Exception, SystemExit) as error:  # importing another package's module may fail in any way
            raise PluginBrokenError(
                f"the plugin '{self.name}' of {self.package or 'an unknown package'} "
                f"({self.group}: {self.value}) cannot be loaded: {type(error).__name__}: {error}"
            ) from error


@lru_cache(maxsize=1)
def _all_points(path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """Read the entry points of everything on a path, by group; the first of two packages with one name counts."""
    found: dict[str, list[EntryPoint]] = {}
    folders = [Path(entry) for entry in path]
    for point in _from_archives() if any(map(Path.is_file, folders)) else _from_folders(folders):
        found.setdefault(point.group, []).append(point)
    return {group: tuple(points) for group, points in found.items()}


def _from_archives() -> Iterator[EntryPoint]:
    from importlib.metadata import distributions

    seen: set[str] = set()
    for dist in distributions():
        if dist.name not in seen:
            seen.add(dist.name)
            yield from (EntryPoint(p.name, p.value, p.group, Distribution(dist.name)) for p in dist.entry_points)


def _from_folders(folders: list[Path]) -> Iterator[EntryPoint]:
    seen: set[str] = set()
    for folder in folders:
        try:
            names = sorted(each.name for each in folder.iterdir() if each.suffix in (".dist-info", ".egg-info"))
        except OSError:  # not there, or not a folder
            continue
        for name in names:
            package = re.sub(r"[-_.]+", "-", name.rpartition(".")[0].partition("-")[0])
            if package.lower() not in seen:
                seen.add(package.lower())
                yield from _read(folder / name / "entry_points.txt", Distribution(package))


def _read(path: Path, dist: Distribution) -> Iterator[EntryPoint]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:  # most packages have none
        return
    group = ""
    for line in map(str.strip, lines):
        name, equals, value = line.partition("=")
        if line.startswith("["):
            group = line.strip("[]").strip()
        elif equals and not line.startswith(("#", ";")):
            yield EntryPoint(name.strip(), value.strip(), group, dist)


def every(group: str) -> tuple[EntryPoint, ...]:
    """Return all entry points of one group, also those that share a name."""
    return _all_points(tuple(sys.path)).get(group, ())


def find(*groups: str) -> Iterator[Plugin]:
    """Yield the plugins of these groups, group by group; the first of a name within all of them wins."""
    seen = set()
    for group in groups:
        for point in every(group):
            if point.name not in seen:
                seen.add(point.name)
                yield Plugin(group, point.name, point.value, point.dist.name, point)


def get(name: str, *groups: str) -> Plugin | None:
    """Return the plugin of this name, or None."""
    return next((plugin for plugin in find(*groups) if plugin.name == name), None)


def forget() -> None:
    """Search the installed packages again; for tests and for programs that install packages."""
    _all_points.cache_clear()
