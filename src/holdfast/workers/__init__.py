"""Processes: how workers are started, watched, heard and stopped. Linux.

An agent uses `Gang` with `WorkerPlan`s, `Template` for warm starts, and `holdfast.workers.aio` inside an event loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.workers.accelerators import gpu_count, local_world_size
    from holdfast.workers.driver import Gang
    from holdfast.workers.interrupted import SignalException
    from holdfast.workers.lines import render_prefix
    from holdfast.workers.logs import DefaultLogsSpecs, LogsDest, LogsSpecs
    from holdfast.workers.machine import StopEnded
    from holdfast.workers.numa import AffinityMode, NumaOptions, bind
    from holdfast.workers.plan import Function, Module, Program, Script, WorkerExited, WorkerPlan
    from holdfast.workers.preload import guess
    from holdfast.workers.std import Std, to_map
    from holdfast.workers.warm import Template
    from holdfast.workers.wiring import LogOptions

#: Each name and where it lives: who only runs a gang needs neither templates nor functions, and starts sooner.
_HOMES = {
    "gpu_count": "accelerators",
    "local_world_size": "accelerators",
    "Gang": "driver",
    "SignalException": "interrupted",
    "render_prefix": "lines",
    "DefaultLogsSpecs": "logs",
    "LogsDest": "logs",
    "LogsSpecs": "logs",
    "StopEnded": "machine",
    "AffinityMode": "numa",
    "NumaOptions": "numa",
    "bind": "numa",
    "Function": "plan",
    "Module": "plan",
    "Program": "plan",
    "Script": "plan",
    "WorkerExited": "plan",
    "WorkerPlan": "plan",
    "guess": "preload",
    "Std": "std",
    "to_map": "std",
    "Template": "warm",
    "LogOptions": "wiring",
}

__all__ = [
    "AffinityMode",
    "DefaultLogsSpecs",
    "Function",
    "Gang",
    "LogOptions",
    "LogsDest",
    "LogsSpecs",
    "Module",
    "NumaOptions",
    "Program",
    "Script",
    "SignalException",
    "Std",
    "StopEnded",
    "Template",
    "WorkerExited",
    "WorkerPlan",
    "bind",
    "gpu_count",
    "guess",
    "local_world_size",
    "render_prefix",
    "to_map",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name))


def __dir__() -> list[str]:
    return __all__
