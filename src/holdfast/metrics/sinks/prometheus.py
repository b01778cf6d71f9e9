"""`prometheus`: scraped from the agent's health port, with the official client.

Every metric becomes `holdfast_<name>` with the labels `group` and `rank` (empty for the agent's own). Durations, which
are names that end in `.ms`, `_ms` or `duration`, become histograms, because a scrape every 15 seconds would see only
one of many; everything else becomes a gauge that holds the last value. The registry is our own: it does
not show the program's metrics, and the program's registry does not show ours.

A worker cannot be scraped: there this sink sends its values to the agent (`holdfast.metrics.relay`).
"""

from __future__ import annotations

import math
import os
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

from holdfast.errors import UsageError
from holdfast.metrics.api import MetricData, MetricHandler
from holdfast.metrics.names import BUCKETS_MS, is_duration, number, prometheus_name
from holdfast.metrics.source import SOCKET_VARIABLE, current_rank
from holdfast.sinks import refuse_argument

#: The Content-Type of what `render` writes.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: More series (name, group and rank) are not kept: names that contain a step's number would fill the memory.
SERIES_MAX = 20_000
MISSING = "the metrics sink 'prometheus' needs its client: pip install 'holdfast[prometheus]'"
_LABELS = ("group", "rank")
_HISTOGRAM_ENDINGS = ("bucket", "count", "sum", "created")


def create_handler(argument: str) -> MetricHandler:
    """Return the handler that is scraped, or in a worker the one that sends values to its agent."""
    refuse_argument("metrics sink", "prometheus", argument, "it is scraped from the health port")
    if current_rank() is None:
        return PrometheusMetricHandler()
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        raise UsageError(f"a worker's metrics reach Prometheus through its agent, but {SOCKET_VARIABLE} is not set")
    from holdfast.metrics.relay import RelayHandler

    return RelayHandler(path)


class _Histogram:
    """How many durations were in each bucket, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_MS) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        # NaN is below no bound.
        self.counts[bisect_left(BUCKETS_MS, value) if value == value else -1] += 1
        self.total += value


class PrometheusMetricHandler(MetricHandler):
    """Keeps every value to be scraped.

    Values are plain numbers and the client is imported with the first scrape, so an agent that is never scraped pays
    next to nothing.
    """

    def __init__(self) -> None:
        if not is_installed():
            raise UsageError(MISSING)
        self._gauges: dict[str, dict[tuple[str, str], float]] = {}
        self._histograms: dict[str, dict[tuple[str, str], _Histogram]] = {}
        #: Every name that is shown, with the metric that it belongs to.
        self._names: dict[str, str] = {}
        self._series_count = 0
        self._registry: Any = None
        self._lock = threading.Lock()

    @property
    def registry(self) -> Any:
        """A registry of the official client that shows these values."""
        with self._lock:
            if self._registry is None:
                self._registry = _import_client().CollectorRegistry(auto_describe=False)
                self._registry.register(_Collector(self))
            return self._registry

    def emit(self, metric_data: MetricData) -> None:
        self.record(metric_data, None)

    def record(self, data: MetricData, rank: int | None) -> None:
        """Keep one value of a worker, or of the agent if `rank` is None."""
        value = number(data.value)
        name, labels = prometheus_name(data.name), (data.group_name, "" if rank is None else str(rank))
        with self._lock:
            if is_duration(name):
                histograms = self._histograms.get(name, {})
                if labels not in histograms:
                    self._open_series(name)
                    histograms = self._histograms.setdefault(name, {})
                    histograms[labels] = _Histogram()
                histograms[labels].add(value)
            else:
                if labels not in self._gauges.get(name, {}):
                    self._open_series(name)
                self._gauges.setdefault(name, {})[labels] = value

    def keep_ranks(self, ranks: Collection[int]) -> None:
        """Forget the values of other ranks: after a round they may be on another node, or gone."""
        kept = {"", *map(str, ranks)}
        with self._lock:
            families: list[dict[tuple[str, str], Any]] = [*self._gauges.values(), *self._histograms.values()]
            for family in families:
                for labels in [each for each in family if each[1] not in kept]:
                    del family[labels]
                    self._series_count -= 1

    def read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a copy of all gauges, and of all histograms as their counts and sums, by name and labels."""
        with self._lock:
            gauges = {name: dict(series) for name, series in self._gauges.items()}
            histograms = {
                name: {labels: (list(each.counts), each.total) for labels, each in series.items()}
                for name, series in self._histograms.items()
            }
        return gauges, histograms

    def _open_series(self, name: str) -> None:
        """Register one more series under this name; raises `UsageError` if it cannot be kept."""
        if self._series_count >= SERIES_MAX:
            raise UsageError(f"only {SERIES_MAX} series are kept for Prometheus; {name} is not")
        shown = [name, *(f"{name}_{ending}" for ending in _HISTOGRAM_ENDINGS if is_duration(name))]
        for each in shown:  # such as 'step.ms.count', which the histogram 'step.ms' shows already
            if self._names.get(each, name) != name:
                raise UsageError(f"{name} cannot be shown to Prometheus: {self._names[each]} brings that name already")
        self._names.update(dict.fromkeys(shown, name))
        self._series_count += 1


class _Collector:
    """Gives the client the values at each scrape."""

    def __init__(self, handler: PrometheusMetricHandler) -> None:
        self._handler = handler

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
        from prometheus_client.utils import floatToGoString

        gauges, histograms = self._handler.read()
        for name, series in gauges.items():
            gauge = GaugeMetricFamily(name, "The last value.", labels=_LABELS)
            for labels, value in series.items():
                gauge.add_metric(labels, value)
            yield gauge
        limits = [floatToGoString(limit) for limit in (*BUCKETS_MS, math.inf)]  # type: ignore[no-untyped-call]
        for name, series in histograms.items():
            histogram = HistogramMetricFamily(name, "How often and how long, in milliseconds.", labels=_LABELS)
            for labels, (counts, total) in series.items():
                histogram.add_metric(labels, list(zip(limits, accumulate(counts), strict=True)), total)
            yield histogram


def render(registry: Any) -> bytes:
    """Return a registry in the exposition format, whose type is `CONTENT_TYPE`."""
    return bytes(_import_client().generate_latest(registry))


def is_installed() -> bool:
    """Whether the official client is installed; does not import it."""
    return find_spec("prometheus_client") is not None


def _import_client() -> Any:
    try:
        import prometheus_client
    except ImportError as error:
        raise UsageError(MISSING) from error
    return prometheus_client
