"""The connections between the workers of one replica: the leader's with each of its followers.

The workers of a replica find each other in a folder that only this start of them has or, on several hosts, through the
store, and prove to each other that they have read what is there, as the workers of a ring do (`neighbours`). Then they
believe each other, and wait for each other without a limit: on one host the agent ends all of them when one dies, which
ends every wait; on several each worker watches its connections and ends by itself.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import msgspec

from holdfast.errors import HoldfastError, ReplicaLostError, RoundOverError, UnavailableError
from holdfast.threads import start_thread
from holdfast.timer.heartbeat import heartbeat, is_beating, pause, resume
from holdfast.train.neighbours import CALLER_TIMEOUT_S, CALLERS_MAX, Call, Caller
from holdfast.typed import learned

if TYPE_CHECKING:
    from holdfast.store.api import Store

#: How long the workers of a replica wait for each other when they start; their imports may differ by much.
MEET_S = 600.0
#: How often a follower looks whether the leader has said where it listens.
LOOK_S = 0.02
TOKEN_BYTES = 32
#: What is said is short; several things may come at once.
READ_BYTES = 4096
#: After so many seconds without an answer from its host, a connection counts as lost.
SILENCE_S = 20

#: From the leader: carry this out; the answer to the program's call; what an exchange came to; the round is over.
DO, ANSWER, RESULT, OVER = "do", "answer", "result", "over"
#: From a follower: what an effect came to; its part of an exchange; it cannot go on with the step.
REPORT, VALUE, FAILED = "report", "value", "failed"
#: From the leader, once: the connection is taken. And at the end: it closes its connections because all is done.
MET, BYE = "met", -1

_length = struct.Struct("!I")


class Line:
    """One connection between two workers of a replica."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that is gone says nothing, so the other side is asked.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S // 4)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_S // 4)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_S * 1000)
        self._sock = sock
        #: What is to be said, and what has been read but not yet heard.
        self._unsaid = b""
        self._unheard = b""

    def send_later(self, *words: Any) -> None:
        """Say something together with what is said next: the other side wakes up once."""
        text = msgspec.msgpack.encode(words)
        self._unsaid += _length.pack(len(text)) + text

    def send(self, *words: Any) -> None:
        """Say something."""
        self.send_later(*words)
        try:
            self._sock.sendall(self._unsaid)
        except OSError as error:
            _lost(error)
        self._unsaid = b""

    def receive(self) -> list[Any]:
        """Wait for what the other says."""
        (size,) = _length.unpack(self._read(_length.size))
        words: list[Any] = msgspec.msgpack.decode(self._read(size))
        return words

    def wait_end(self) -> None:
        """Wait until the other side closes the connection, over which it says nothing."""
        with contextlib.suppress(OSError):
            self._sock.recv(1)

    def close(self) -> None:
        """End the connection, also for a thread that waits for it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _read(self, size: int) -> bytes:
        while len(self._unheard) < size:
            try:
                piece = self._sock.recv(READ_BYTES)
            except OSError as error:
                _lost(error)
            if not piece:
                _lost(None)
            self._unheard += piece
        data, self._unheard = self._unheard[:size], self._unheard[size:]
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


class Meeting(Protocol):
    """Where the leader of a replica says how it is reached."""

    #: The address at which the leader listens.
    host: str

    def tell(self, port: int, token: str) -> None:
        """Say it to the followers; the leader of an earlier start may have said something else."""

    def look(self) -> tuple[str, int, str] | None:
        """Return the address, the port and the token of the leader; None where none has said so yet."""


class FolderMeeting:
    """For workers of one host: a file in a folder that only this start of them has."""

    host = "127.0.0.1"

    def __init__(self, folder: Path, name: str) -> None:
        self._where = folder / f"{name}.json"

    def tell(self, port: int, token: str) -> None:
        """Write the file."""
        draft = self._where.with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_bytes(msgspec.json.encode((port, token)))
        draft.rename(self._where)

    def look(self) -> tuple[str, int, str] | None:
        """Read the file, once it is there."""
        if not self._where.exists():
            return None
        return (self.host, *msgspec.json.decode(self._where.read_bytes(), type=learned(tuple[int, str])))


class StoreMeeting:
    """For workers of several hosts: a key that lasts as long as the run; the leader who comes last has the say."""

    def __init__(self, store: Store, name: str, host: str) -> None:
        self.host = host
        self._store = store
        self._key = f"replicas/{name}"

    def tell(self, port: int, token: str) -> None:
        """Set the key."""
        self._store.set(self._key, msgspec.json.encode((self.host, port, token)))

    def look(self) -> tuple[str, int, str] | None:
        """Read the key, once it is there."""
        if not self._store.check([self._key]):
            return None
        told: tuple[str, int, str] = msgspec.json.decode(self._store.get(self._key), type=learned(tuple[str, int, str]))
        return told


def meet(meeting: Meeting, name: str, index: int, size: int) -> LeaderEnd | FollowerEnd:
    """Connect the workers of a replica: the leader, which is the first, and its followers."""
    deadline = time.monotonic() + MEET_S
    if index == 0:
        token = secrets.token_hex(TOKEN_BYTES)
        return LeaderEnd(*_accept(meeting, name, token, size - 1, deadline), token)
    trouble: Exception | None = None
    while True:
        if (found := meeting.look()) is not None:
            reached = _reach(*found, index)
            if isinstance(reached, FollowerEnd):
                return reached
            trouble = reached
        if time.monotonic() > deadline and trouble is None:
            raise UnavailableError(f"the first worker of {name} did not start within {MEET_S:g} s")
        if time.monotonic() > deadline:
            raise UnavailableError(f"the first worker of {name} cannot be reached: {trouble}") from trouble
        time.sleep(LOOK_S)


def _reach(host: str, port: int, token: str, index: int) -> FollowerEnd | Exception:
    """Connect to a leader, or return why not: it may be gone, or other processes may hold it up or have its port."""
    lines: list[Line] = []
    try:
        for kind in ("control", "news"):
            sock = socket.create_connection((host, port), timeout=CALLER_TIMEOUT_S)
            lines.append(Line(sock))
            call = Call(sock, token.encode())
            while not call.go_on():
                pass
            sock.settimeout(None)
            lines[-1].send(kind, index)
            lines[-1].receive()  # the leader has taken it
    except (OSError, HoldfastError) as trouble:
        for line in lines:
            line.close()
        return trouble
    return FollowerEnd(lines[0], lines[1], token)


def _accept(meeting: Meeting, name: str, token: str, followers: int, deadline: float) -> tuple[list[Line], list[Line]]:
    found: dict[tuple[str, int], Line] = {}
    with socket.create_server((meeting.host, 0)) as server, _Door(server, token.encode()) as door:
        meeting.tell(server.getsockname()[1], token)
        while len(found) < 2 * followers:
            sock = door.wait_proven(deadline)
            if sock is None:
                missing = followers - len(found) // 2
                raise UnavailableError(f"{missing} workers of {name} did not start within {MEET_S:g} s")
            line = Line(sock)
            with contextlib.suppress(ReplicaLostError):  # one that is gone comes again, as another process
                kind, index = line.receive()
                line.send(MET)
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

    def __init__(self, control: list[Line], news: list[Line], token: str = "") -> None:
        self._control = control
        self._news = news
        self._news_lock = threading.Lock()
        #: What no other start of a replica has.
        self.token = token
        self.is_closed = False

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Have `on_lost` called, on another thread, when a follower is gone."""

        def wait(line: Line) -> None:
            line.wait_end()
            if not self.is_closed:
                on_lost()

        for line in self._news:
            start_thread(functools.partial(wait, line), "replica-watch")

    def tell(self, *words: Any) -> None:
        """Say something to every follower."""
        for line in self._control:
            line.send(*words)

    def tell_later(self, *words: Any) -> None:
        """Say something to every follower together with what is said next."""
        for line in self._control:
            line.send_later(*words)

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
        if not self.is_closed:
            self.tell_over(BYE, "")
        self.is_closed = True
        for line in (*self._control, *self._news):
            line.close()


# -- the followers -----------------------------------------------------------------------------------------------------


class FollowerEnd:
    """A follower's connections to its leader."""

    def __init__(self, control: Line, news: Line, token: str = "") -> None:
        self._control = control
        self._news = news
        #: What no other start of a replica has.
        self.token = token
        self.is_closed = False

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
        self.is_closed = True
        self._control.close()
        self._news.close()
