"""Where jobs run: the interface of a scheduler, and the schedulers that are installed.

Schedulers come by entry point, ours too: group `holdfast.schedulers`, and `torchx.schedulers` for what was written for
TorchX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.schedulers.api import (
        DescribeAppResponse,
        ListAppResponse,
        LogQuery,
        Scheduler,
        Stream,
        list_jobs,
        read_log,
        validate,
        wait_news,
    )
    from holdfast.schedulers.installed import (
        SchedulerFactory,
        aliases,
        conflicts,
        create_scheduler,
        get_default_scheduler_name,
        get_scheduler_factories,
    )

#: Each name and where it lives: the process that looks after a local job needs none of them.
_HOMES = {
    "DescribeAppResponse": "api",
    "ListAppResponse": "api",
    "LogQuery": "api",
    "Scheduler": "api",
    "Stream": "api",
    "list_jobs": "api",
    "read_log": "api",
    "validate": "api",
    "wait_news": "api",
    "SchedulerFactory": "installed",
    "aliases": "installed",
    "conflicts": "installed",
    "create_scheduler": "installed",
    "get_default_scheduler_name": "installed",
    "get_scheduler_factories": "installed",
}

__all__ = [
    "DescribeAppResponse",
    "ListAppResponse",
    "LogQuery",
    "Scheduler",
    "SchedulerFactory",
    "Stream",
    "aliases",
    "conflicts",
    "create_scheduler",
    "get_default_scheduler_name",
    "get_scheduler_factories",
    "list_jobs",
    "read_log",
    "validate",
    "wait_news",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
