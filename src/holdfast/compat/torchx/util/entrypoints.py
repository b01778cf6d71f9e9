"""Entry points by group and name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import plugins


def load(group: str, name: str, default: Any = None) -> Any:
    """Load one entry point; if there is none it is `default`, and without that a KeyError."""
    plugin = plugins.get(name, group)
    if plugin is not None:
        return plugin.point.load()
    if default is None:
        raise KeyError(name)
    return default


def load_group(group: str, default: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Return every entry point of a group by name, loaded when it is called; `default` if there is none."""
    return {plugin.name: _deferred(plugin) for plugin in plugins.find(group)} or default


def _deferred(plugin: plugins.Plugin) -> Callable[..., Any]:
    def call(*args: object, **kwargs: object) -> Any:
        found = plugin.point.load()
        return found(*args, **kwargs) if plugin.point.attr else found

    return call
