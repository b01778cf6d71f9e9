"""`otlp:ENDPOINT`: OpenTelemetry over HTTP, with the official SDK, as in `otlp:http://localhost:4318`.

Without an endpoint the SDK's own variables decide, such as `OTEL_EXPORTER_OTLP_ENDPOINT`; headers, certificates and
compression always come from them. Durations become histograms, everything else gauges, each with the attribute `group`.
The resource names the source: service, run, host, node, role, rank.

The SDK has no thread here: the queue in front of this handler calls `flush` when values have gathered for a while.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from holdfast.errors import UnavailableError, UsageError
from holdfast.metrics.api import MetricData, MetricHandler
from holdfast.metrics.names import BUCKETS_MS, is_duration, number, otel_name
from holdfast.metrics.source import Source, current
from holdfast.sinks import EXPORT_TIMEOUT_S, otlp_endpoint

PATH = "/v1/metrics"
#: More names are refused: names that contain a step's number would fill the memory.
INSTRUMENTS_MAX = 2_000


def create_handler(argument: str) -> MetricHandler:
    """Return a handler that exports to the endpoint named by the argument."""
    return OtlpMetricHandler(otlp_endpoint(argument, PATH), current())


def resource_of(source: Source) -> dict[str, str | int]:
    """Return the attributes that name the source."""
    attributes: dict[str, str | int] = {
        "service.name": "holdfast",
        "service.instance.id": f"{source.host}:{os.getpid()}",
        "host.name": source.host,
        "process.pid": os.getpid(),
        "holdfast.run_id": source.run_id,
        "holdfast.role": source.role,
        "holdfast.node": source.node,
    }
    if source.rank is not None:
        attributes["holdfast.rank"] = source.rank
    return {name: value for name, value in attributes.items() if value != ""}


_Take = Callable[[float, dict[str, str]], None]


class OtlpMetricHandler(MetricHandler):
    """Records every value with the SDK and exports when it is flushed."""

    #: How long the queue lets values gather.
    gather_s = 5.0

    def __init__(self, endpoint: str | None, source: Source) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            raise UsageError("the metrics sink 'otlp' needs OpenTelemetry: pip install 'holdfast[otel]'") from error
        _quieten()
        self._success = MetricExportResult.SUCCESS
        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider(
            metric_readers=[self._reader], resource=Resource.create(resource_of(source)), shutdown_on_exit=False
        )
        self._meter = self._provider.get_meter("holdfast.metrics")
        self._takers: dict[str, _Take] = {}

    def emit(self, metric_data: MetricData) -> None:
        value, name = number(metric_data.value), otel_name(metric_data.name)
        take = self._takers.get(name) or self._open(name)
        take(value, {"group": metric_data.group_name})

    def flush(self) -> None:
        """Export the gathered values; raises `UnavailableError` if the receiver refuses them."""
        data = self._reader.get_metrics_data()
        if data is None or not data.resource_metrics:
            return
        _exporting.now = True
        try:
            result = self._exporter.export(data)
        finally:
            _exporting.now = False
        if result is not self._success:
            raise UnavailableError("the OTLP receiver did not take the metrics")

    def close(self) -> None:
        """Close the connection; the queue has flushed before."""
        self._exporter.shutdown()
        self._provider.shutdown()

    def _open(self, name: str) -> _Take:
        if len(self._takers) >= INSTRUMENTS_MAX:
            raise UsageError(f"only {INSTRUMENTS_MAX} metrics are exported; '{name}' is not")
        take: _Take
        if is_duration(name):
            histogram = self._meter.create_histogram(name, unit="ms", explicit_bucket_boundaries_advisory=BUCKETS_MS)
            take = histogram.record
        else:
            take = self._meter.create_gauge(name).set
        self._takers[name] = take
        return take


_exporting = threading.local()


def _quieten() -> None:
    """Keep the exporter from logging each of our failed exports: the queue reports the first one.

    Only its messages on a thread that exports for us are suppressed, not those of a program's own exporter.
    """
    for name in ("opentelemetry.exporter.otlp.proto.http.metric_exporter", "opentelemetry.exporter.otlp.common.http"):
        logger = logging.getLogger(name)
        if _not_ours not in logger.filters:
            logger.addFilter(_not_ours)


def _not_ours(_: logging.LogRecord) -> bool:
    return not getattr(_exporting, "now", False)
