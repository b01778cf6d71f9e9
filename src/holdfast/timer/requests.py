"""Timer requests, and how they travel through a pipe: one JSON object a line. Pure.

    {"version": 1, "pid": 4711, "scope_id": "train.py#12", "expiration_time": 1767225600.0, "signal": 9, "after": 30.0}

A negative `expiration_time` releases. `after`, which TorchElastic's own client does not send, is the same as seconds
from now: it does not depend on the wall clock.

Many processes write into one pipe, and any of them may write nonsense. A request of at most `PIPE_BUF` bytes arrives
whole, so one that is cut short, too long or garbled is lost alone: the reader continues at the next text that begins
as a request does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

#: Guaranteed by POSIX: one write of up to this many bytes arrives in one piece.
REQUEST_BYTES_MAX = 4096
REQUEST_VERSION = 1
#: Linux has the signals 1 to 64.
SIGNAL_MAX = 64
#: No clock shows more seconds.
TIME_MAX = 1e12

#: How every request begins. It cannot occur inside one, where quotation marks are escaped.
_BEGIN = b'{"version"'
_decoder = json.JSONDecoder()


@dataclass(slots=True)
class TimerRequest:
    """An acquisition of a timer, or with a negative `expiration_time` its release, by one worker for one scope.

    `expiration_time` is in seconds of the wall clock, as TorchElastic's clients send it.
    """

    worker_id: Any
    scope_id: str
    expiration_time: float


class FileTimerRequest(TimerRequest):
    """A request that travels through a pipe; `signal` is sent to the worker, and 0 or less only reports."""

    __slots__ = ("after", "signal", "version")

    def __init__(
        self,
        worker_pid: int,
        scope_id: str,
        expiration_time: float,
        signal: int = 0,
        after: float | None = None,
    ) -> None:
        super().__init__(worker_pid, scope_id, expiration_time)
        self.version = REQUEST_VERSION
        self.signal = signal
        self.after = after

    @property
    def worker_pid(self) -> int:
        """The process that asks; its id names the worker."""
        pid: int = self.worker_id
        return pid

    def to_json(self) -> str:
        """Write the request as one line without its end."""
        after = {} if self.after is None else {"after": self.after}
        return json.dumps(
            {
                "version": self.version,
                "pid": self.worker_pid,
                "scope_id": self.scope_id,
                "expiration_time": self.expiration_time,
                "signal": int(self.signal),
                **after,
            }
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileTimerRequest) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"FileTimerRequest({self.to_json()})"

    def _key(self) -> Hashable:
        return self.version, self.worker_id, self.scope_id, self.expiration_time, self.signal


class RequestReader:
    """Turns bytes from the pipe into requests; counts what it could not read."""

    def __init__(self) -> None:
        self.refused = 0
        #: The unfinished line, at most as long as one request can be.
        self._rest = b""

    def feed(self, data: bytes) -> list[FileTimerRequest]:
        """Take more bytes and return the requests that are now whole."""
        *lines, rest = (self._rest + data).split(b"\n")
        # In a line that is too long, a whole request can only be at the end, after the garbage.
        self._rest = rest[-REQUEST_BYTES_MAX:]
        return [request for line in lines for request in self._read_line(line[-REQUEST_BYTES_MAX:])]

    def _read_line(self, line: bytes) -> list[FileTimerRequest]:
        garbage, *pieces = line.split(_BEGIN)
        requests = [request for piece in pieces if (request := parse(_BEGIN + piece)) is not None]
        self.refused += bool(garbage.strip()) + len(pieces) - len(requests)
        return requests


def parse(piece: bytes) -> FileTimerRequest | None:
    """Read one request, whatever follows it; None for anything else."""
    try:
        data, _ = _decoder.raw_decode(piece.decode())
        request = FileTimerRequest(
            data["pid"], data["scope_id"], data["expiration_time"], data["signal"], data.get("after")
        )
        return request if _is_sound(request, data["version"]) else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _is_sound(request: FileTimerRequest, version: object) -> bool:
    return (
        type(version) is int
        and version >= REQUEST_VERSION
        and type(request.worker_id) is int
        and 1 < request.worker_id < 2**31
        and type(request.scope_id) is str
        and type(request.signal) is int
        and request.signal <= SIGNAL_MAX
        and _is_time(request.expiration_time)
        and (request.after is None or _is_time(request.after))
    )


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < TIME_MAX  # type: ignore[arg-type]
