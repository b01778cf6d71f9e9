"""Health: whether this node's agent is alive, in a round, and how it is, over HTTP.

Names are loaded when they are first used: the health process imports this package too, and must stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import attach

if TYPE_CHECKING:
    from holdfast.health.address import PORT_VARIABLE as PORT_VARIABLE
    from holdfast.health.address import parse_health_port as parse_health_port
    from holdfast.health.last_progress import LastProgress as LastProgress
    from holdfast.health.protocol import Limits as Limits
    from holdfast.health.server import HealthCheckServer as HealthCheckServer
    from holdfast.health.server import create_healthcheck_server as create_healthcheck_server
else:
    __getattr__, __dir__, __all__ = attach(
        __name__,
        address="PORT_VARIABLE parse_health_port",
        protocol="Limits",
        last_progress="LastProgress",
        server="HealthCheckServer create_healthcheck_server",
    )
