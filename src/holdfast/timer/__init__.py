"""Timers: code that must be done in time, and workers that are ended when it is not.

User code writes `with expires(after=60): ...`; the agent's watchdog does the rest. The names are TorchElastic's.
Importing this costs a worker next to nothing; the servers are loaded when they are asked for.
"""

from typing import TYPE_CHECKING, Any

from holdfast.timer.api import RequestQueue, TimerClient, TimerServer, configure, expires
from holdfast.timer.requests import FileTimerRequest, TimerRequest

if TYPE_CHECKING:
    from holdfast.timer.file_client import FileTimerClient
    from holdfast.timer.file_server import FileTimerServer
    from holdfast.timer.local_timer import LocalTimerClient, LocalTimerServer, MultiprocessingRequestQueue

_LAZY = {
    "FileTimerClient": "file_client",
    "FileTimerServer": "file_server",
    "LocalTimerClient": "local_timer",
    "LocalTimerServer": "local_timer",
    "MultiprocessingRequestQueue": "local_timer",
}

__all__ = [
    "FileTimerClient",
    "FileTimerRequest",
    "FileTimerServer",
    "LocalTimerClient",
    "LocalTimerServer",
    "MultiprocessingRequestQueue",
    "RequestQueue",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "configure",
    "expires",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return __all__
