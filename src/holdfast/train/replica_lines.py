"""The connections between the workers of one replica: the leader's with each of its followers.

The workers of a replica find each other in a folder that only this start of them has, and prove to each other that
they have read it, as the workers of a ring do (`neighbours`). Then they believe each other, and wait for each other
without a limit: the agent ends all of them when one dies, which ends every wait.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from holdfast.errors import HoldfastError, ReplicaLostError, RoundOverError, UnavailableError
from holdfast.timer.heartbeat import heartbeat, is_beating, pause, resume
from holdfast.train.neighbours import CALLER_TIMEOUT_S, CALLERS_MAX, Call, Caller

#: How long the workers of a replica wait for each other when they start; their imports may differ by much.
MEET_S = 600.0
#: How often a follower looks whether the leader has said where it listens.
LOOK_S = 0.02
TOKEN_BYTES = 32

#: From the leader: carry this out; the answer to the program's call; what an exchange came to; the round is over.
DO, ANSWER, RESULT, OVER = "do", "answer", "result", "over"
#: From a follower: what an effect came to; its part of an exchange; it cannot go on with the step.
REPORT, VALUE, FAILED = "report", "value", "failed"

_length = struct.Struct("!I")


class Line:
    """One connection between two workers of a replica."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock

    def send(self, *words: Any) -> None:
        """Say something."""
        text = msgspec.msgpack.encode(words)
        try:
            self._sock.sendall(_length.pack(len(text)) + text)
        except OSError as error:
            _lost(error)

    def receive(self) -> list[Any]:
        """Wait for what the other says."""
        (size,) = _length.unpack(self._read(_length.size))
        words: list[Any] = msgspec.msgpack.decode(self._read(size))
        return words

    def close(self) -> None:
        """End the connection, also for a thread that waits for it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                piece = self._sock.recv(size - len(data))
            except OSError as error:
                _lost(error)
            if not piece:
                _lost(None)
            data += piece
        return data


@contextlib.contextmanager
def _waiting() -> Iterator[None]:
    """A worker that waits for another one does not hang, even if it has not begun its first step."""
    if not is_beating():
        heartbeat()
    pause()
    yield
    resume()


def _lost(error: OSError | None) -> NoReturn:
    raise ReplicaLostError("a worker of the same replica is gone; the agent starts all of them anew") from error


# -- meeting -----------------------------------------------------------------------------------------------------------


def meet(folder: Path, name: str, index: int, size: int) -> LeaderEnd | FollowerEnd:
    """Connect the workers of a replica, who find each other in a folder that only this start of them has."""
    where = folder / f"{name}.json"
    deadline = time.monotonic() + MEET_S
    if index == 0:
        return LeaderEnd(*_accept(where, size - 1, deadline))
    while not where.exists():
        if time.monotonic() > deadline:
            raise UnavailableError(f"the first worker of {name} did not start within {MEET_S:g} s")
        time.sleep(LOOK_S)
    port, token = msgspec.json.decode(where.read_bytes(), type=tuple[int, str])
    lines = []
    for kind in ("control", "news"):
        lines.append(Line(_call(port, token.encode(), deadline)))
        lines[-1].send(kind, index)
    return FollowerEnd(*lines)


def _call(port: int, token: bytes, deadline: float) -> socket.socket:
    """Connect to the leader; other processes of this host may hold it up for a moment, or have taken its port."""
    while True:
        try:
            sock = socket.create_connection(("127.0.0.1", port), timeout=CALLER_TIMEOUT_S)
        except OSError as error:
            trouble: Exception = error
        else:
            call = Call(sock, token)
            try:
                while not call.go_on():
                    pass
            except (OSError, HoldfastError) as error:
                sock.close()
                trouble = error
            else:
                sock.settimeout(None)
                return sock
        if time.monotonic() > deadline:
            raise UnavailableError(f"the first worker of the replica cannot be reached: {trouble}") from trouble
        time.sleep(LOOK_S)


def _accept(where: Path, followers: int, deadline: float) -> tuple[list[Line], list[Line]]:
    token = secrets.token_hex(TOKEN_BYTES)
    found: dict[tuple[str, int], Line] = {}
    with socket.create_server(("127.0.0.1", 0)) as server, _Door(server, token.encode()) as door:
        draft = where.with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_bytes(msgspec.json.encode((server.getsockname()[1], token)))
        draft.rename(where)
        while len(found) < 2 * followers:
            sock = door.wait_proven(deadline)
            if sock is None:
                missing = followers - len(found) // 2
                raise UnavailableError(f"{missing} workers of {where.stem} did not start within {MEET_S:g} s")
            line = Line(sock)
            kind, index = line.receive()
            found[kind, index] = line
    return tuple([found[kind, index + 1] for index in range(followers)] for kind in ("control", "news"))  # type: ignore[return-value]


class _Door:
    """Lets workers of this replica in; other processes of this host may connect too, and prove nothing."""

    def __init__(self, server: socket.socket, token: bytes) -> None:
        self._server = server
        self._token = token
        #: Connections without a proof, the oldest first.
        self._callers: dict[int, Caller] = {}

    def __enter__(self) -> _Door:
        self._server.setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        while self._callers:
            self._drop(next(iter(self._callers)))

    def wait_proven(self, deadline: float) -> socket.socket | None:
        """Wait for the next connection that has proven itself; None after the deadline."""
        while (now := time.monotonic()) < deadline:
            for fd in [fd for fd, caller in self._callers.items() if caller.deadline <= now]:
                self._drop(fd)
            poll = select.poll()
            for waited in (self._server.fileno(), *self._callers):
                poll.register(waited, select.POLLIN)
            until = min([deadline, *(caller.deadline for caller in self._callers.values())])
            for fd, _ in poll.poll((until - now) * 1000 + 1):
                if fd == self._server.fileno():
                    self._take_in(now)
                elif fd in self._callers and self._is_proven(fd):
                    sock = self._callers.pop(fd).sock
                    sock.setblocking(True)
                    return sock
        return None

    def _take_in(self, now: float) -> None:
        try:
            sock, _ = self._server.accept()
        except BlockingIOError:  # it has left again
            return
        except OSError:  # perhaps there is no descriptor left: a try at once would fail again
            time.sleep(LOOK_S)
            return
        while len(self._callers) >= CALLERS_MAX:
            self._drop(next(iter(self._callers)))
        try:
            self._callers[sock.fileno()] = Caller(sock, self._token, now)
        except OSError:
            sock.close()  # it has closed the connection again

    def _is_proven(self, fd: int) -> bool:
        try:
            return self._callers[fd].hear()
        except BlockingIOError:
            return False
        except (OSError, HoldfastError):
            self._drop(fd)
            return False

    def _drop(self, fd: int) -> None:
        self._callers.pop(fd).sock.close()


# -- the leader --------------------------------------------------------------------------------------------------------


class LeaderEnd:
    """The leader's connections to its followers."""

    def __init__(self, control: list[Line], news: list[Line]) -> None:
        self._control = control
        self._news = news
        self._news_lock = threading.Lock()

    def tell(self, *words: Any) -> None:
        """Say something to every follower."""
        for line in self._control:
            line.send(*words)

    def hear(self) -> list[list[Any]]:
        """Wait for what every follower says, in their order."""
        with _waiting():
            return [line.receive() for line in self._control]

    def tell_over(self, number: int, reason: str) -> None:
        """Have every follower know that a round is over; may be called from any thread."""
        with self._news_lock:
            for line in self._news:
                with contextlib.suppress(ReplicaLostError):  # then the replica ends anyway
                    line.send(number, reason)

    def exchange(self, value: float, total: Callable[[float], float]) -> float:
        """Add up the values of all workers of the replica, make `total` of the sum, and return that to all of them."""
        said = self.hear()
        failed = next((str(words[1]) for words in said if words[0] == FAILED), None)
        try:
            if failed is not None:
                raise RoundOverError(failed)
            result = total(value + sum(float(words[1]) for words in said))
        except RoundOverError as over:
            self.tell(OVER, str(over))
            raise
        self.tell(RESULT, result)
        return result

    def fail(self, reason: str) -> None:
        """Say in place of the next exchange that this worker cannot go on with the step."""
        self.hear()
        self.tell(OVER, reason)

    def close(self) -> None:
        """End all connections."""
        for line in (*self._control, *self._news):
            line.close()


# -- the followers -----------------------------------------------------------------------------------------------------


class FollowerEnd:
    """A follower's connections to its leader."""

    def __init__(self, control: Line, news: Line) -> None:
        self._control = control
        self._news = news

    def tell(self, *words: Any) -> None:
        """Say something to the leader."""
        self._control.send(*words)

    def hear(self) -> list[Any]:
        """Wait for what the leader says."""
        with _waiting():
            return self._control.receive()

    def hear_news(self) -> list[Any]:
        """Wait for the leader's next news."""
        return self._news.receive()

    def exchange(self, value: float, total: Callable[[float], float]) -> float:
        """Add up the values of all workers of the replica; `total` is the leader's to apply."""
        del total
        self.tell(VALUE, value)
        said, result = self.hear()
        if said == OVER:
            raise RoundOverError(str(result))
        return float(result)

    def fail(self, reason: str) -> None:
        """Say in place of the next exchange that this worker cannot go on with the step."""
        self.tell(FAILED, reason)
        self.hear()

    def close(self) -> None:
        """End both connections."""
        self._control.close()
        self._news.close()
