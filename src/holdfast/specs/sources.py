"""Where named resources come from.

Later wins: generic sizes, the clouds' machines, a module named by `TORCHX_CUSTOM_NAMED_RESOURCES`, plugins (entry
points `holdfast.named_resources` and `torchx.named_resources`). A plugin is imported when its own name is asked for.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping

from holdfast import plugins
from holdfast.errors import PluginBrokenError
from holdfast.facts import facts
from holdfast.plugins import Plugin
from holdfast.specs import (
    named_resources_aws,
    named_resources_azure,
    named_resources_gcp,
    named_resources_generic,
)
from holdfast.specs.instance_types import ResourceFactory
from holdfast.specs.resource import NULL_RESOURCE, Resource

GROUPS = ("holdfast.named_resources", "torchx.named_resources")
CUSTOM_MODULE = "TORCHX_CUSTOM_NAMED_RESOURCES"


def load() -> dict[str, ResourceFactory]:
    """Merge all sources; later ones win."""
    return {
        **named_resources_generic.NAMED_RESOURCES,
        **named_resources_aws.NAMED_RESOURCES,
        **named_resources_gcp.NAMED_RESOURCES,
        **named_resources_azure.NAMED_RESOURCES,
        **_custom(),
        **{plugin.name: _PluginFactory(plugin) for plugin in plugins.find(*GROUPS)},
        "NULL": _nothing,
        "MISSING": _nothing,
    }


class _PluginFactory:
    """Loads a plugin when its resource is wanted; raises `PluginBrokenError`."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    def __call__(self) -> Resource:
        factory = self._plugin.load()
        try:
            return factory()  # type: ignore[no-any-return]
        except Exception as error:
            raise PluginBrokenError(
                f"the named resource '{self._plugin.name}' of {self._plugin.package or 'an unknown package'} "
                f"({self._plugin.value}) fails: {type(error).__name__}: {error}"
            ) from error


def _nothing() -> Resource:
    return Resource.copy(NULL_RESOURCE)


def _custom() -> Mapping[str, ResourceFactory]:
    """The resources of a module that the environment names; a broken one is reported and left out."""
    module = os.environ.get(CUSTOM_MODULE)
    if not module:
        return {}
    try:
        return dict(importlib.import_module(module).NAMED_RESOURCES)
    except Exception as error:  # noqa: BLE001 - importing a plugin's module may fail in any way
        facts.warn(
            "plugin_broken",
            f"the module '{module}' of {CUSTOM_MODULE} brings no resources: {type(error).__name__}: {error}",
            plugin=module,
        )
        return {}
