"""Our event handlers: `null`, `console`, `jsonl:PATH` and `otlp:ENDPOINT`. They are plugins like any other."""

from __future__ import annotations

import logging
import os
import socket
import sys
from typing import Any

from holdfast.errors import UnavailableError, UsageError
from holdfast.events.api import Event, EventHandler, EventSource, NullEventHandler
from holdfast.sinks import EXPORT_TIMEOUT_S, open_lines, otlp_endpoint, refuse_argument

NOUN = "event handler"
LOGS_PATH = "/v1/logs"


def create_null(argument: str) -> EventHandler:
    """Make the handler that ignores events."""
    refuse_argument(NOUN, "null", argument)
    return NullEventHandler()


def create_console(argument: str) -> EventHandler:
    """Make the handler that prints events."""
    refuse_argument(NOUN, "console", argument)
    return ConsoleEventHandler()


def create_jsonl(argument: str) -> EventHandler:
    """Make the handler that appends events to the file `argument`."""
    return JsonlEventHandler(argument)


def create_otlp(argument: str) -> EventHandler:
    """Make the handler that sends events to the OpenTelemetry collector at `argument`."""
    return OtlpEventHandler(argument)


class ConsoleEventHandler(EventHandler):
    """Prints every event to stderr as one line of JSON, as TorchElastic does; stdout belongs to the workers."""

    def record(self, event: Event) -> None:
        sys.stderr.write(event.serialize() + "\n")
        sys.stderr.flush()


class JsonlEventHandler(EventHandler):
    """Appends every event as one line of JSON to a file, which several processes may share."""

    def __init__(self, path: str) -> None:
        self._file = open_lines(NOUN, path)

    def record(self, event: Event) -> None:
        self._file.append(event.serialize().encode())

    def close(self) -> None:
        self._file.close()


class OtlpEventHandler(EventHandler):
    """Sends each event at once, as a log record: events are few, and the next thing that breaks may be this process.

    Without an endpoint the SDK's own variables decide, such as OTEL_EXPORTER_OTLP_ENDPOINT.
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
        # We report failures ourselves; without a handler, logging would print those of the exporter to stderr too.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        self._endpoint = otlp_endpoint(endpoint, LOGS_PATH)
        self._exporter = _Remembering(OTLPLogExporter(endpoint=self._endpoint, timeout=EXPORT_TIMEOUT_S))
        resource = Resource.create(
            {"service.name": "holdfast", "host.name": socket.gethostname(), "process.pid": os.getpid()}
        )
        self._provider = LoggerProvider(resource, shutdown_on_exit=False)
        self._provider.add_log_record_processor(SimpleLogRecordProcessor(self._exporter))  # type: ignore[arg-type] # the exporter's interface, without its base class, which changes its name between versions
        self._logger = self._provider.get_logger("holdfast.events")

    def record(self, event: Event) -> None:
        """Send one event; raises `UnavailableError` if the collector did not take it."""
        self._exporter.failed = False
        self._logger.emit(_as_log_record(event))
        if self._exporter.failed:
            raise UnavailableError(f"the collector at {self._endpoint or 'the default endpoint'} does not take events")

    def close(self) -> None:
        self._provider.shutdown()


class _Remembering:
    """An exporter that remembers whether its last export failed, which the SDK only logs."""

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
