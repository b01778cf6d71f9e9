"""Events of the calls that a runner gets, for runners of others that record them.

Our own runner records none of these: what happens to jobs are facts, which `holdfast.events` tells.
"""

from __future__ import annotations

import enum
import json
import logging
import time
import traceback
from dataclasses import asdict, dataclass
from types import TracebackType

_log_handlers: dict[str, logging.Handler] = {"console": logging.StreamHandler(), "null": logging.NullHandler()}


class SourceType(enum.StrEnum):
    """The API that was called."""

    UNKNOWN = "<unknown>"
    INTERNAL = "INTERNAL"
    EXTERNAL = "EXTERNAL"


@dataclass
class TorchxEvent:
    """One call: of what, for which job, how long it took, and how it failed."""

    session: str
    scheduler: str
    api: str
    app_id: str | None = None
    app_image: str | None = None
    runcfg: str | None = None
    raw_exception: str | None = None
    source: SourceType = SourceType.UNKNOWN
    cpu_time_usec: int | None = None
    wall_time_usec: int | None = None
    start_epoch_time_usec: int | None = None
    workspace: str | None = None

    def serialize(self) -> str:
        """Write it as JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def deserialize(data: str | TorchxEvent) -> TorchxEvent:
        """Read what `serialize` wrote; a source that is not known becomes unknown."""
        if isinstance(data, TorchxEvent):
            return data
        fields = json.loads(data)
        if fields.get("source") in list(SourceType):
            fields["source"] = SourceType(fields["source"])
        else:
            fields.pop("source", None)
        return TorchxEvent(**fields)

    def __str__(self) -> str:
        return self.serialize()


class log_event:  # noqa: N801 - the name that runners are written with
    """Records an event when its block ends, however it ends: `with log_event("run", scheduler) as ctx: ...`."""

    def __init__(
        self,
        api: str,
        scheduler: str | None = None,
        app_id: str | None = None,
        app_image: str | None = None,
        runcfg: str | None = None,
        workspace: str | None = None,
    ) -> None:
        self._torchx_event = TorchxEvent(
            app_id or "", scheduler or "", api, app_id, app_image, runcfg, workspace=workspace
        )
        self._cpu_ns = self._wall_ns = 0

    def __enter__(self) -> log_event:
        self._cpu_ns, self._wall_ns = time.process_time_ns(), time.perf_counter_ns()
        self._torchx_event.start_epoch_time_usec = time.time_ns() // 1000
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._torchx_event.cpu_time_usec = (time.process_time_ns() - self._cpu_ns) // 1000
        self._torchx_event.wall_time_usec = (time.perf_counter_ns() - self._wall_ns) // 1000
        if error is not None:
            self._torchx_event.raw_exception = "".join(traceback.format_exception(kind, error, trace))
        record(self._torchx_event)


def record(event: TorchxEvent, destination: str = "null") -> None:
    """Hand an event to the logger `torchx-events-<destination>`, which passes nothing on to others."""
    logger = logging.getLogger(f"torchx-events-{destination}")
    handler = get_logging_handler(destination)
    if handler not in logger.handlers:
        logger.propagate = False
        logger.addHandler(handler)
    logger.info(event.serialize())


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """Return the handler of a destination: console, null, or one that was added to `_log_handlers`."""
    return _log_handlers[destination]
