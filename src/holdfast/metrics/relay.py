"""The relay: workers send their values to the agent, because Prometheus can scrape the agent but not the workers.

One datagram over a unix socket holds many values: `[version, rank, [[timestamp, group, name, value], ...]]` in
MessagePack. Both sides are bounded: a background thread of the worker waits a moment for an agent that does not keep up
and then drops the batch; the agent counts and ignores datagrams that are too long or not ours. Training never waits.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.errors import UsageError
from holdfast.facts import facts
from holdfast.metrics.api import MetricData, MetricHandler
from holdfast.metrics.names import number
from holdfast.metrics.source import current_rank
from holdfast.threads import start_thread
from holdfast.typed import learned

VERSION = 1
DATAGRAM_BYTES_MAX = 64 * 1024
VALUES_MAX = 256
NAME_CHARACTERS_MAX = 512
#: How long a worker's thread waits for an agent that does not keep up.
SEND_TIMEOUT_S = 0.5


class Batch(msgspec.Struct, array_like=True, frozen=True):
    """One datagram."""

    version: int
    rank: int
    values: list[tuple[float, str, str, float]]


_decoder = msgspec.msgpack.Decoder(learned(Batch))


def encode(rank: int, values: list[MetricData]) -> bytes:
    """Encode values as one datagram."""
    return msgspec.msgpack.encode(Batch(VERSION, rank, [tuple(data) for data in values]))  # type: ignore[misc]


def decode(datagram: bytes) -> Batch | None:
    """Read a datagram; None for anything that is not ours."""
    try:
        batch = _decoder.decode(datagram)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if batch.version != VERSION or batch.rank < 0 or len(batch.values) > VALUES_MAX:
        return None
    if any(max(len(group), len(name)) > NAME_CHARACTERS_MAX for _, group, name, _ in batch.values):
        return None
    return batch


class Relay:
    """The agent's side: a thread that passes the values of workers to `deliver(data, rank)`.

    Without a path it makes a folder that only this user can enter, and removes it when closed.
    """

    def __init__(self, path: str | Path | None, deliver: Callable[[MetricData, int | None], None]) -> None:
        self.taken = 0
        self.ignored = 0
        self.failed = 0
        self._deliver = deliver
        self._folder = None if path is not None else tempfile.mkdtemp(prefix="holdfast-metrics-")
        self.path = Path(path) if path is not None else Path(str(self._folder), "relay.sock")
        self._closing = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(str(self.path))
            self.path.chmod(0o600)
        except OSError:
            self._socket.close()
            self._remove()
            raise
        self._begin()

    def _begin(self, _: BaseException | None = None) -> None:
        self._thread = start_thread(self._run, "holdfast metrics relay", on_death=self._begin)

    def close(self) -> None:
        """Deliver what has arrived and stop."""
        if self._closing:
            return
        self._closing = True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as waker:
            # An empty datagram is no batch; it comes after all that has arrived.
            waker.settimeout(SEND_TIMEOUT_S)
            waker.sendto(b"", str(self.path))
        self._thread.join(SEND_TIMEOUT_S * 4)
        self._socket.close()
        self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        while True:
            try:
                datagram, _, flags, _ = self._socket.recvmsg(DATAGRAM_BYTES_MAX)
            except OSError as error:
                if self._closing:
                    return
                self._note(error)
                time.sleep(
                    SEND_TIMEOUT_S
                )  # out of memory for a moment, for example; workers drop what they cannot send
                continue
            if not datagram and self._closing:
                return
            try:
                self._take(datagram, truncated=bool(flags & socket.MSG_TRUNC))
            except Exception as error:  # noqa: BLE001 - without the thread no worker's metrics would arrive
                facts.unexpected("the metrics relay", error, "it goes on with the next values")

    def _take(self, datagram: bytes, *, truncated: bool) -> None:
        batch = None if truncated else decode(datagram)
        if batch is None:
            self.ignored += 1
            return
        for value in batch.values:
            self._hand_over(MetricData(*value), batch.rank)

    def _hand_over(self, data: MetricData, rank: int) -> None:
        try:
            self._deliver(data, rank)
            self.taken += 1
        except Exception as error:  # noqa: BLE001 - one bad value must not stop the others
            self._note(error)

    def _note(self, error: Exception) -> None:
        self.failed += 1
        if self.failed == 1:
            facts.warn("metrics_trouble", f"a worker's metric was not taken: {error}; more are only counted")


class RelayHandler(MetricHandler):
    """The worker's side: gathers values and sends them to the agent; to be used behind a queue."""

    def __init__(self, path: str) -> None:
        self.dropped = 0
        self._path = path
        self._values: list[MetricData] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(SEND_TIMEOUT_S)

    def emit(self, metric_data: MetricData) -> None:
        """Keep one value for the next datagram; raises for a value that the agent would refuse with its whole batch."""
        if max(len(metric_data.group_name), len(metric_data.name)) > NAME_CHARACTERS_MAX:
            raise UsageError(f"a metric's group and name have at most {NAME_CHARACTERS_MAX} characters each")
        self._values.append(metric_data._replace(value=number(metric_data.value)))
        if len(self._values) >= VALUES_MAX:
            self.flush()

    def flush(self) -> None:
        """Send the gathered values; if the agent is gone or does not keep up, they are lost."""
        values, self._values = self._values, []
        if values:
            self._send(current_rank() or 0, values)

    def close(self) -> None:
        """Send the rest."""
        try:
            self.flush()
        finally:
            self._socket.close()

    def _send(self, rank: int, values: list[MetricData]) -> None:
        datagram = encode(rank, values)
        if len(datagram) > DATAGRAM_BYTES_MAX:  # very long names; one value alone always fits
            middle = len(values) // 2
            self._send(rank, values[:middle])
            self._send(rank, values[middle:])
            return
        try:
            self._socket.sendto(datagram, self._path)
        except OSError:
            self.dropped += len(values)
            raise
