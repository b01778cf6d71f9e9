"""TorchX's `schedulers`: every installed scheduler by name, the local one in TorchX's form."""

from __future__ import annotations

from typing import Any

from holdfast.compat.torchx.util.entrypoints import load_group
from holdfast.schedulers import Scheduler, get_default_scheduler_name, installed
from holdfast.schedulers.installed import SchedulerFactory

__all__ = [
    "DEFAULT_SCHEDULER_MODULES",
    "Scheduler",
    "SchedulerFactory",
    "get_default_scheduler_name",
    "get_scheduler_factories",
    "load_group",
]

#: The names of the local scheduler, and where its factory is.
DEFAULT_SCHEDULER_MODULES = dict.fromkeys(("local_cwd", "local"), "torchx.schedulers.local_scheduler")


def _create_local(session_name: str, **kwargs: Any) -> Scheduler[Any]:
    from holdfast.compat.torchx.local_scheduler import create_scheduler

    return create_scheduler(session_name, **kwargs)


def get_scheduler_factories() -> dict[str, SchedulerFactory]:
    """Return the factory of every installed scheduler by name, the default one first; nothing is loaded yet."""
    return {**installed.get_scheduler_factories(), **dict.fromkeys(DEFAULT_SCHEDULER_MODULES, _create_local)}
