"""The registry of rendezvous backends: registered in code or by entry point, ours too."""

from __future__ import annotations

from collections.abc import Callable

from holdfast import plugins
from holdfast.errors import RendezvousError, UsageError
from holdfast.facts import facts
from holdfast.rendezvous.api import RendezvousHandler, RendezvousParameters

RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]

#: Entry points here are creators themselves.
GROUP = "holdfast.rendezvous"
#: Entry points here are functions that return a creator, as torchrun has it.
TORCHRUN_GROUP = "torchrun.handlers"


class BackendMismatchError(RendezvousError, RuntimeError):
    """A backend made a handler that calls itself by another name."""


class RendezvousHandlerRegistry:
    """Makes handlers by the name of their backend."""

    def __init__(self) -> None:
        self._creators: dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Add a backend; naming one twice with different creators is an error."""
        if not backend:
            raise UsageError("a rendezvous backend needs a name")
        known = self._creators.get(backend)
        if known is not None and known != creator:
            raise UsageError(
                f"the rendezvous backend '{backend}' cannot be registered with '{creator}': "
                f"it already is with '{known}'"
            )
        self._creators[backend] = creator

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Make the handler that the parameters name."""
        creator = self._creators.get(params.backend)
        if creator is None:
            raise UsageError(
                f"the rendezvous backend '{params.backend}' is not registered; "
                f"there are: {', '.join(sorted(self._creators)) or 'none'}"
            )
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise BackendMismatchError(
                f"the rendezvous backend '{params.backend}' made a handler that calls itself '{handler.get_backend()}'"
            )
        return handler


class _GlobalRegistry(RendezvousHandlerRegistry):
    """The registry that also knows what is installed; entry points are read when first needed."""

    def __init__(self) -> None:
        super().__init__()
        self._discovered = False
        #: Installed plugins that cannot be used, by name, with the reason as a sentence.
        self._broken: dict[str, str] = {}

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Make the handler that the parameters name, looking among installed plugins as well."""
        if params.backend not in self._creators:
            self._discover(params.backend)
        if params.backend not in self._creators and params.backend in self._broken:
            raise UsageError(self._broken[params.backend])
        if params.backend not in self._creators and not self._discovered:
            self._discovered = True
            self.discover()
        return super().create_handler(params)

    def discover(self) -> None:
        """Register every installed plugin; a broken one is reported and does not affect the others."""
        self._discover()
        for name, sentence in self._broken.items():
            facts.warn("plugin_broken", sentence, plugin=name)

    def _discover(self, backend: str | None = None) -> None:
        for group, unwrap in ((GROUP, False), (TORCHRUN_GROUP, True)):
            for plugin in plugins.find(group):
                if plugin.name not in self._creators and backend in (None, plugin.name):
                    self._add(plugin, unwrap)

    def _add(self, plugin: plugins.Plugin, unwrap: bool) -> None:
        try:
            loaded = plugin.load()
            self.register(plugin.name, loaded() if unwrap else loaded)
        except Exception as error:  # noqa: BLE001 - a plugin may fail in any way
            self._broken[plugin.name] = (
                str(error)
                if isinstance(error, plugins.PluginBrokenError)
                else f"the rendezvous plugin '{plugin.name}' ({plugin.value}) cannot be used: {error!r}"
            )


#: The registry of this process.
rendezvous_handler_registry: RendezvousHandlerRegistry = _GlobalRegistry()


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the handler that the parameters name, from the registry of this process."""
    return rendezvous_handler_registry.create_handler(params)
