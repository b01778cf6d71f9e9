"""`otlp:ENDPOINT`: every event as a log record of OpenTelemetry, over OTLP/HTTP, with the official SDK."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import UnavailableError, UsageError
from holdfast.events.api import Event, EventHandler, EventSource

EXPORT_TIMEOUT_S = 5.0
LOGS_PATH = "/v1/logs"


class OtlpEventHandler(EventHandler):
    """Sends events to a collector, one request each: they are few, and each is there when something breaks next.

    Without an endpoint the SDK's own variables say where to, as OTEL_EXPORTER_OTLP_ENDPOINT.
    """

    def __init__(self, endpoint: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
            from opentelemetry.sdk._logs import LoggerProvider
            from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
            from opentelemetry.sdk.resources import Resource
        except ImportError as error:
            raise UsageError(
                f"the event handler otlp needs OpenTelemetry: pip install 'holdfast[otel]' ({error})"
            ) from None
        # We report a failure ourselves; without any handler, logging would print the exporter's words to stderr.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        self._endpoint = logs_url(endpoint)
        self._exporter = _Remembering(OTLPLogExporter(endpoint=self._endpoint or None, timeout=EXPORT_TIMEOUT_S))
        resource = Resource.create(
            {"service.name": "holdfast", "host.name": socket.gethostname(), "process.pid": os.getpid()}
        )
        self._provider = LoggerProvider(resource, shutdown_on_exit=False)
        self._provider.add_log_record_processor(SimpleLogRecordProcessor(self._exporter))  # type: ignore[arg-type] # the exporter's interface, without its base class, which changes its name between versions
        self._logger = self._provider.get_logger("holdfast.events")

    def record(self, event: Event) -> None:
        """Send one event; raises `UnavailableError` where the collector did not take it."""
        self._exporter.failed = False
        self._logger.emit(_as_log_record(event))
        if self._exporter.failed:
            raise UnavailableError(f"the collector at {self._endpoint or 'the default endpoint'} does not take events")

    def close(self) -> None:
        """Let go of the connection."""
        self._provider.shutdown()


class _Remembering:
    """The exporter, and whether its last export failed, which the SDK only writes to its log."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        self.failed = False

    def export(self, batch: Any) -> Any:
        self.failed = True
        result = self._exporter.export(batch)
        self.failed = result.name != "SUCCESS"
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 10_000) -> bool:
        return bool(self._exporter.force_flush(timeout_millis))


def create_handler(argument: str) -> EventHandler:
    """Make the handler that sends events to the collector at `argument`."""
    return OtlpEventHandler(argument)


def logs_url(endpoint: str) -> str:
    """Complete an endpoint: `host:4318` and `http://host:4318` get OTLP's own path for logs."""
    if not endpoint:
        return ""
    url = endpoint if "://" in endpoint else f"http://{endpoint}"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(f"'{endpoint}' is no OTLP endpoint: write otlp:http://HOST:4318")
    return url.rstrip("/") + LOGS_PATH if parts.path in ("", "/") else url


def _as_log_record(event: Event) -> Any:
    from opentelemetry._logs import LogRecord, SeverityNumber

    level = str(event.metadata.get("level", "info")).upper()
    severity = {"DEBUG": SeverityNumber.DEBUG, "WARNING": SeverityNumber.WARN, "ERROR": SeverityNumber.ERROR}
    attributes = {key: value for key, value in event.metadata.items() if value is not None}
    return LogRecord(
        timestamp=round(event.timestamp * 1e6) * 1000,  # a float knows no more than microseconds
        severity_text=level,
        severity_number=severity.get(level, SeverityNumber.INFO),
        body=str(event.metadata.get("sentence") or event.name),
        attributes={**attributes, "event.source": EventSource(event.source).value},
        event_name=event.name,
    )
