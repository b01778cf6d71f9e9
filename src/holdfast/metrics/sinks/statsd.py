"""`statsd:HOST:PORT`: StatsD over UDP, `group.name:value|g`, and `|ms` for durations.

Plain StatsD has no labels: workers of a job write to the same names, and a gauge holds the last value. UDP has no
answers: values that no server receives are lost silently. A host name that cannot be resolved is reported.
"""

from __future__ import annotations

import math
import socket
import threading
import time

from holdfast.errors import UnavailableError, UsageError
from holdfast.metrics.api import MetricData, MetricHandler
from holdfast.metrics.names import is_duration, number, statsd_name
from holdfast.wire.address import Endpoint, parse_endpoint

DEFAULT_PORT = 8125
#: How long to wait before resolving a host name again that could not be resolved.
RESOLVE_AGAIN_S = 30.0


def create_handler(argument: str) -> MetricHandler:
    """Return a handler that sends to the host and port named by the argument."""
    return StatsdMetricHandler(parse_endpoint(argument, DEFAULT_PORT))


class StatsdMetricHandler(MetricHandler):
    """Sends one datagram for every value."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.lost = 0
        self._endpoint = endpoint
        self._socket: socket.socket | None = None
        self._connecting = threading.Lock()
        self._resolve_at = -math.inf

    def emit(self, metric_data: MetricData) -> None:
        datagram = datagram_of(metric_data)
        if self._socket is None:
            self._connect()
        try:
            if self._socket is not None:
                self._socket.send(datagram)
        except OSError:  # usually the answer to an earlier datagram: the port is closed
            self.lost += 1

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()

    def _connect(self) -> None:
        """Resolve the name, at most once in `RESOLVE_AGAIN_S`; raises `UnavailableError`."""
        with self._connecting:
            if self._socket is None:
                self._resolve()

    def _resolve(self) -> None:
        if time.monotonic() < self._resolve_at:
            self.lost += 1
            return
        self._resolve_at = time.monotonic() + RESOLVE_AGAIN_S
        host, port = self._endpoint.host, self._endpoint.port
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        except OSError as error:
            raise UnavailableError(f"the StatsD host '{host}' cannot be resolved: {error.strerror}") from error
        udp = socket.socket(family, kind)
        udp.setblocking(False)
        try:
            udp.connect(address)
        except OSError as error:
            udp.close()
            raise UnavailableError(f"there is no route to the StatsD host '{host}': {error.strerror}") from error
        self._socket = udp


def datagram_of(data: MetricData) -> bytes:
    """Return the datagram for one value."""
    name, value = statsd_name(data.group_name, data.name), number(data.value)
    if not math.isfinite(value):
        raise UsageError(f"StatsD cannot represent {value}, the value of {name}")
    text = f"{value:d}" if isinstance(value, int) else f"{value:.15g}"
    if is_duration(data.name):
        return f"{name}:{text}|ms".encode()
    # A signed gauge is a change and not a value, so a negative one is set from zero.
    zero = f"{name}:0|g\n" if text.startswith("-") else ""
    return f"{zero}{name}:{text}|g".encode()
