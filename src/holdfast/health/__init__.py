"""Health: whether this node's agent is alive, in a round, and how it is, over HTTP.

Names are loaded when they are asked for: the porter's process imports this package too, and must stay small.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.health.address import PORT_VARIABLE, parse_health_port
    from holdfast.health.limits import Limits
    from holdfast.health.pulse import Pulse
    from holdfast.health.server import HealthCheckServer, create_healthcheck_server

_HOME = {
    "HealthCheckServer": "server",
    "Limits": "limits",
    "PORT_VARIABLE": "address",
    "Pulse": "pulse",
    "create_healthcheck_server": "server",
    "parse_health_port": "address",
}

__all__ = [
    "PORT_VARIABLE",
    "HealthCheckServer",
    "Limits",
    "Pulse",
    "create_healthcheck_server",
    "parse_health_port",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
