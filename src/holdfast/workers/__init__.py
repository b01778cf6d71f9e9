"""Processes: how workers are started, watched, heard and stopped. Linux.

An agent uses `Gang` with `WorkerPlan`s, `Template` for warm starts, and `holdfast.workers.aio`
inside an event loop. Programs written for TorchElastic use `start_processes` and the logs specs.
"""

from holdfast.workers.accelerators import gpu_count, local_world_size
from holdfast.workers.context import (
    MultiprocessContext,
    PContext,
    RunProcsResult,
    SignalException,
    SubprocessContext,
    start_processes,
)
from holdfast.workers.driver import Gang
from holdfast.workers.lines import render_prefix
from holdfast.workers.logs import DefaultLogsSpecs, LogsDest, LogsSpecs
from holdfast.workers.machine import StopEnded
from holdfast.workers.numa import AffinityMode, NumaOptions, bind
from holdfast.workers.plan import Function, Module, Program, Script, WorkerExited, WorkerPlan
from holdfast.workers.preload import guess
from holdfast.workers.std import Std, to_map
from holdfast.workers.warm import Template
from holdfast.workers.wiring import LogOptions

__all__ = [
    "AffinityMode",
    "DefaultLogsSpecs",
    "Function",
    "Gang",
    "LogOptions",
    "LogsDest",
    "LogsSpecs",
    "Module",
    "MultiprocessContext",
    "NumaOptions",
    "PContext",
    "Program",
    "RunProcsResult",
    "Script",
    "SignalException",
    "Std",
    "StopEnded",
    "SubprocessContext",
    "Template",
    "WorkerExited",
    "WorkerPlan",
    "bind",
    "gpu_count",
    "guess",
    "local_world_size",
    "render_prefix",
    "start_processes",
    "to_map",
]
