"""Which schedulers are installed, by entry point: ours and those of others.

Those of other packages never hide ours: if a name is taken, ours keeps it, or else the first of them, and
the other is reported. None is loaded before it is used, so a broken one does not affect the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast import plugins
from holdfast.errors import HoldfastError
from holdfast.facts import facts
from holdfast.schedulers.api import Scheduler

GROUPS = ("holdfast.schedulers", "torchx.schedulers")
DEFAULT = "local"
#: The package of the schedulers that keep their names, even if a plugin has the same.
OURS = "holdfast.schedulers."

SchedulerFactory = Callable[..., Scheduler[Any]]


@dataclass(frozen=True)
class LazyFactory:
    """Loads a scheduler's own factory when it is called; raises `PluginBrokenError` if that cannot be."""

    plugin: plugins.Plugin

    def __call__(self, session_name: str, **kwargs: object) -> Scheduler[Any]:
        """Make the scheduler."""
        factory = self.plugin.load()
        try:
            scheduler: Scheduler[Any] = factory(session_name, **kwargs)
        except HoldfastError:
            raise
        except (Exception, SystemExit) as error:  # a plugin may fail in any way
            raise plugins.PluginBrokenError(f"{_name(self)} cannot be made: {type(error).__name__}: {error}") from error
        return scheduler


def get_scheduler_factories() -> dict[str, SchedulerFactory]:
    """Return the factory of every installed scheduler by name, the default one first; nothing is loaded yet."""
    taken, _ = _sort_out()
    found: dict[str, SchedulerFactory] = dict(sorted(taken.items()))
    first = {DEFAULT: found.pop(DEFAULT)} if DEFAULT in found else {}
    return {**first, **found}


def aliases() -> dict[str, str]:
    """Return the names that lead to the same factory as another, each with that other one."""
    first: dict[str, str] = {}
    return {
        name: owner
        for name, factory in get_scheduler_factories().items()
        if isinstance(factory, LazyFactory) and (owner := first.setdefault(factory.plugin.value, name)) != name
    }


def get_default_scheduler_name() -> str:
    """Return the scheduler that is used when none is named."""
    return DEFAULT


def create_scheduler(name: str, session_name: str, **kwargs: object) -> Scheduler[Any]:
    """Make the scheduler of this name; an unknown one is a `UsageError` that says which there are."""
    taken, others = _sort_out()
    if name not in taken:
        raise _unknown(name, list(taken))
    for other in others:
        if other.plugin.name == name:
            facts.warn("scheduler_conflict", _conflict(other, taken[name]), scheduler=name)
    return taken[name](session_name, **kwargs)


def conflicts() -> list[str]:
    """Name the schedulers that cannot be used because another has their name, each in a sentence."""
    taken, others = _sort_out()
    return [_conflict(other, taken[other.plugin.name]) for other in others]


def _sort_out() -> tuple[dict[str, LazyFactory], list[LazyFactory]]:
    """Return the scheduler of each name, and those whose name is taken: ours first, then our group, then TorchX's."""
    found = [
        LazyFactory(plugins.Plugin(group, point.name, point.value, point.dist.name, point))
        for group in GROUPS
        for point in plugins.every(group)
    ]
    found.sort(key=lambda each: (not each.plugin.value.startswith(OURS), GROUPS.index(each.plugin.group)))
    taken: dict[str, LazyFactory] = {}
    others = [each for each in found if taken.setdefault(each.plugin.name, each) is not each]
    return taken, others


def _name(factory: LazyFactory) -> str:
    plugin = factory.plugin
    return f"the scheduler '{plugin.name}' of {plugin.package or 'an unknown package'} ({plugin.value})"


def _conflict(other: LazyFactory, owner: LazyFactory) -> str:
    has = owner.plugin
    return f"{_name(other)} is not used: {has.package or 'an unknown package'} has that name ({has.value})"


def _unknown(name: str, known: list[str]) -> HoldfastError:
    import difflib

    from holdfast.specs import UnknownSchedulerError

    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    error = UnknownSchedulerError(name)
    error.args = (f"there is no scheduler '{name}'; {hint}installed are: {', '.join(sorted(known)) or 'none'}",)
    return error
