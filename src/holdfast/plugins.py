"""Plugins: what installed packages add by entry point. One door for all of them, ours included.

A plugin is loaded when it is asked for by name. A broken one is named with its error and costs only itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.facts import facts


class PluginBroken(HoldfastError):
    """An installed plugin cannot be loaded; the message names it, where it comes from, and its error."""


@dataclass(frozen=True)
class Plugin:
    """One entry point: its group and name, what it points to, and the package that brought it."""

    group: str
    name: str
    value: str
    package: str
    point: EntryPoint

    def load(self) -> Any:
        """Import what it points to; raises `PluginBroken`."""
        try:
            return self.point.load()
        except (Exception, SystemExit) as error:  # importing a stranger's module may fail in any way
            raise PluginBroken(
                f"the plugin '{self.name}' of {self.package or 'an unknown package'} "
                f"({self.group}: {self.value}) cannot be loaded: {type(error).__name__}: {error}"
            ) from error


@cache
def _all_points() -> dict[str, tuple[EntryPoint, ...]]:
    """Read the metadata of everything installed once: it costs more than all the rest of a short command."""
    points = entry_points()
    return {group: tuple(points.select(group=group)) for group in points.groups}


def find(*groups: str) -> Iterator[Plugin]:
    """Yield the plugins of these groups, group by group; the first of a name within all of them wins."""
    seen = set()
    for group in groups:
        for point in _all_points().get(group, ()):
            if point.name not in seen:
                seen.add(point.name)
                package = point.dist.name if point.dist is not None else ""
                yield Plugin(group, point.name, point.value, package, point)


def get(name: str, *groups: str) -> Plugin | None:
    """Return the plugin of this name, or None."""
    return next((plugin for plugin in find(*groups) if plugin.name == name), None)


def load_all(*groups: str) -> dict[str, Any]:
    """Load every plugin of these groups; broken ones are reported and left out."""
    loaded = {}
    for plugin in find(*groups):
        try:
            loaded[plugin.name] = plugin.load()
        except PluginBroken as error:
            facts.warn("plugin_broken", str(error), plugin=plugin.name, group=plugin.group)
    return loaded


def forget() -> None:
    """Look anew at what is installed; for tests and for programs that install packages as they run."""
    _all_points.cache_clear()
