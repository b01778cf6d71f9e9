"""`prometheus`: scraped from the agent's health port, with the official client.

Every metric becomes `holdfast_<name>` with the labels `group` and `rank` (empty for the agent's own). Durations, which
are names that end in `.ms`, `_ms` or `duration`, become histograms, because a scrape every 15 seconds would see only
one of many; everything else becomes a gauge that holds the last value. The registry is our own: nothing of the
program's is shown and nothing of ours turns up in its registry.

A worker cannot be scraped: there this sink hands its values to the agent (`holdfast.metrics.relay`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from typing import Any

from holdfast.errors import UsageError
from holdfast.metrics.api import MetricData, MetricHandler
from holdfast.metrics.names import BUCKETS_MS, is_duration, number, prometheus_name
from holdfast.metrics.source import SOCKET_VARIABLE, current_rank

#: The exposition format that `render` writes, for the answer's Content-Type.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: More than this many series (name, group and rank) are not kept: a name made of a step's number would fill the memory.
SERIES_MAX = 20_000


def create_handler(argument: str) -> MetricHandler:
    """Return the handler to scrape in an agent, and in a worker the one that hands values to its agent."""
    if argument:
        raise UsageError("the metrics sink 'prometheus' takes no argument: it is scraped from the health port")
    if current_rank() is None:
        return PrometheusMetricHandler()
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        raise UsageError(f"a worker's metrics reach Prometheus through its agent, but {SOCKET_VARIABLE} is not set")
    from holdfast.metrics.relay import RelayHandler

    return RelayHandler(path)


class PrometheusMetricHandler(MetricHandler):
    """Keeps every value in a registry to be scraped."""

    def __init__(self) -> None:
        self._client = _import_client()
        self.registry: Any = self._client.CollectorRegistry(auto_describe=False)
        self._families: dict[str, Any] = {}
        self._series: dict[tuple[str, str, str], Callable[[float], None]] = {}
        self._lock = threading.Lock()

    def emit(self, metric_data: MetricData) -> None:
        """Keep one value of this process."""
        self.record(metric_data, None)

    def record(self, data: MetricData, rank: int | None) -> None:
        """Keep one value of a worker, or of the agent itself where `rank` is None."""
        value = number(data.value)
        key = (prometheus_name(data.name), data.group_name, "" if rank is None else str(rank))
        take = self._series.get(key) or self._open_series(*key)
        take(value)

    def keep_ranks(self, ranks: Collection[int]) -> None:
        """Forget what workers of other ranks said: after a round they may be on another node, or nowhere."""
        kept = {"", *map(str, ranks)}
        with self._lock:
            for name, group, rank in [key for key in self._series if key[2] not in kept]:
                del self._series[name, group, rank]
                self._families[name].remove(group, rank)

    def _open_series(self, name: str, group: str, rank: str) -> Callable[[float], None]:
        with self._lock:
            if len(self._series) >= SERIES_MAX:
                raise UsageError(f"only {SERIES_MAX} series are kept for Prometheus; {name} of '{group}' is not")
            if name not in self._families:
                self._families[name] = self._create_family(name)
            series = self._families[name].labels(group, rank)
            take: Callable[[float], None] = series.observe if is_duration(name) else series.set
            self._series[name, group, rank] = take
            return take

    def _create_family(self, name: str) -> Any:
        labels = ("group", "rank")
        try:
            if is_duration(name):
                about = "How often and how long, in milliseconds."
                return self._client.Histogram(name, about, labels, buckets=BUCKETS_MS, registry=self.registry)
            return self._client.Gauge(name, "The last value.", labels, registry=self.registry)
        except ValueError as error:  # as in 'step.ms' beside 'step.ms.count', which the first brings already
            raise UsageError(f"{name} cannot be shown to Prometheus: {error}") from error


def render(registry: Any) -> bytes:
    """Write a registry in the exposition format, for `/metrics`; its type is `CONTENT_TYPE`."""
    return bytes(_import_client().generate_latest(registry))


def _import_client() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise UsageError(
            "the metrics sink 'prometheus' needs its client: pip install 'holdfast[prometheus]'"
        ) from error
    return prometheus_client
