"""Worker processes: how they are started, watched, logged and stopped. Linux.

An agent uses `Gang` with `WorkerPlan`s, `Template` for warm starts, and `holdfast.workers.aio` inside an event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import attach

if TYPE_CHECKING:
    from holdfast.workers.accelerators import gpu_count as gpu_count
    from holdfast.workers.accelerators import local_world_size as local_world_size
    from holdfast.workers.driver import Gang as Gang
    from holdfast.workers.lines import render_prefix as render_prefix
    from holdfast.workers.logs import DefaultLogsSpecs as DefaultLogsSpecs
    from holdfast.workers.logs import LogsDest as LogsDest
    from holdfast.workers.logs import LogsSpecs as LogsSpecs
    from holdfast.workers.machine import StopEnded as StopEnded
    from holdfast.workers.numa import AffinityMode as AffinityMode
    from holdfast.workers.numa import NumaOptions as NumaOptions
    from holdfast.workers.numa import bind as bind
    from holdfast.workers.plan import Function as Function
    from holdfast.workers.plan import Module as Module
    from holdfast.workers.plan import Program as Program
    from holdfast.workers.plan import Script as Script
    from holdfast.workers.plan import WorkerExited as WorkerExited
    from holdfast.workers.plan import WorkerPlan as WorkerPlan
    from holdfast.workers.preload import guess as guess
    from holdfast.workers.std import Std as Std
    from holdfast.workers.std import to_map as to_map
    from holdfast.workers.warm import Template as Template
    from holdfast.workers.wiring import LogOptions as LogOptions
else:
    # An agent that only runs a gang does not import templates and functions, and starts sooner.
    __getattr__, __dir__, __all__ = attach(
        __name__,
        accelerators="gpu_count local_world_size",
        driver="Gang",
        lines="render_prefix",
        logs="DefaultLogsSpecs LogsDest LogsSpecs",
        machine="StopEnded",
        numa="AffinityMode NumaOptions bind",
        plan="Function Module Program Script WorkerExited WorkerPlan",
        preload="guess",
        std="Std to_map",
        warm="Template",
        wiring="LogOptions",
    )
