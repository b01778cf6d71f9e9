"""Timers: a worker that does not finish a piece of code in time is killed.

User code writes `with expires(after=60): ...`; the agent's watchdog does the rest. The names are TorchElastic's.
Importing this costs a worker next to nothing; the servers are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import attach

if TYPE_CHECKING:
    from holdfast.timer.api import RequestQueue as RequestQueue
    from holdfast.timer.api import TimerClient as TimerClient
    from holdfast.timer.api import TimerServer as TimerServer
    from holdfast.timer.api import configure as configure
    from holdfast.timer.api import expires as expires
    from holdfast.timer.file_client import FileTimerClient as FileTimerClient
    from holdfast.timer.file_server import FileTimerServer as FileTimerServer
    from holdfast.timer.local_timer import LocalTimerClient as LocalTimerClient
    from holdfast.timer.local_timer import LocalTimerServer as LocalTimerServer
    from holdfast.timer.local_timer import MultiprocessingRequestQueue as MultiprocessingRequestQueue
    from holdfast.timer.requests import FileTimerRequest as FileTimerRequest
    from holdfast.timer.requests import TimerRequest as TimerRequest
else:
    __getattr__, __dir__, __all__ = attach(
        __name__,
        api="RequestQueue TimerClient TimerServer configure expires",
        file_client="FileTimerClient",
        file_server="FileTimerServer",
        local_timer="LocalTimerClient LocalTimerServer MultiprocessingRequestQueue",
        requests="FileTimerRequest TimerRequest",
    )
