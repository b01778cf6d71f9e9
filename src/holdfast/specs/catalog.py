"""Named resources: names for the needs of a replica, as in `gpu.small` or `aws_p5.48xlarge`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast import specs
from holdfast.errors import HoldfastError, UnknownResourceError, UsageError
from holdfast.facts import facts
from holdfast.specs.instance_types import ResourceFactory
from holdfast.specs.resource import Resource


class NamedResources:
    """All named resources: `named_resources["gpu.small"]`, `"gpu.small" in named_resources`, iteration over names."""

    def __getitem__(self, name: str) -> Resource:
        factory = _factories().get(name)
        if factory is None:
            raise UnknownResourceError(_unknown(name, _factories()))
        return _own(name, factory())

    def __contains__(self, name: object) -> bool:
        return name in _factories()

    def __iter__(self) -> Iterator[str]:
        return iter(list(_factories()))

    def __len__(self) -> int:
        return len(_factories())

    def keys(self) -> Iterable[str]:
        """The names."""
        return list(self)

    def items(self) -> Iterable[tuple[str, Resource]]:
        """The names with their resources; one that cannot be made is reported and left out."""
        found = []
        for name in self:
            try:
                found.append((name, self[name]))
            except HoldfastError as error:
                facts.warn("plugin_broken", str(error), plugin=name)
        return found

    def reset(self) -> None:
        """Read everything again, and forget resources that the program registered."""
        from holdfast.specs.sources import load  # which reads the metadata of everything installed

        factories = _factories()
        factories.clear()
        factories.update(load())

    def __repr__(self) -> str:
        return f"<{len(self)} named resources>"


named_resources = NamedResources()


def get_named_resources(res: str) -> Resource:
    """Return the resource of this name; raises `UnknownResourceError`, a KeyError, with a close match."""
    return named_resources[res]


def register_named_resource(name: str, factory: ResourceFactory) -> None:
    """Make a resource known by name in this process; it wins over plugins and tables."""
    _factories()[name] = factory


def resource(
    cpu: float | None = None, gpu: float | None = None, memMB: int | None = None, h: str | None = None
) -> Resource:
    """Make a resource from numbers (by default 2 CPUs, no GPU and 1024 MB), or by name `h`, which wins."""
    if h:
        return get_named_resources(h)
    return Resource(cpu=cpu or 2, gpu=gpu or 0, memMB=memMB or 1024)


def _factories() -> dict[str, ResourceFactory]:
    """The dict of all factories; programs may add to it or replace entries."""
    return specs._named_resource_factories


def _own(name: str, found: Any) -> Resource:
    """Convert the result of a factory; a plugin written for an installed TorchX returns TorchX's class."""
    if isinstance(found, Resource):
        return found
    try:
        return Resource.from_json(vars(found))
    except TypeError:
        raise UsageError(f"the named resource '{name}' returned {found!r}, which is not a Resource") from None


def _unknown(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # only a mistake needs it

    close = get_close_matches(name, list(known), n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "`holdfast resources` lists them"
    return f"there is no named resource '{name}'; {hint}"
