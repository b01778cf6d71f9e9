"""How the workers of a ring find each other: each connects to the next one and accepts the one before.

Both sides of a connection first prove that they belong to the round, by the handshake of all
other connections (`wire.handshake`). Its secret is the token of the rank that is connected to, made of the run's secret
and the round's nonce; the token itself is never sent. Connections that prove nothing are limited in number, bytes and
time, and the oldest is closed first.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import select
import socket
import time
from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.wire.frames import HELLO_BYTES_MAX, Codec, FrameReader, Message
from holdfast.wire.handshake import (
    HANDSHAKE_TYPES,
    NONCE_BYTES,
    ClientHandshake,
    Purpose,
    Refused,
    ServerHandshake,
)

CODEC: Codec[Message] = Codec(*HANDSHAKE_TYPES, service="ring")
PURPOSE = Purpose("ring")
RETRY_S = 0.005
#: How many connections may be without proof that they belong to the round, and how long each may take for it.
CALLERS_MAX = 32
CALLER_TIMEOUT_S = 10.0
_STARVED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Caller:
    """A connection that was accepted and has proven nothing yet."""

    def __init__(self, sock: socket.socket, token: bytes, now: float) -> None:
        self.sock = sock
        self.deadline = now + CALLER_TIMEOUT_S
        self._handshake = ServerHandshake(token, PURPOSE, secrets.token_bytes(NONCE_BYTES))
        self._reader = FrameReader(HELLO_BYTES_MAX, stepwise=True)
        sock.setblocking(False)
        sock.send(CODEC.encode(self._handshake.challenge))

    def hear(self) -> bool:
        """Read from the connection; return whether it has proven itself. Raises if it cannot any more."""
        data = self.sock.recv(HELLO_BYTES_MAX)
        if not data:
            raise ConnectionError("it left")
        bodies = self._reader.feed(data)
        if not bodies:
            return False
        answer = self._handshake.hear(CODEC.decode(bodies[0]))
        self.sock.send(CODEC.encode(answer))
        if isinstance(answer, Refused) or self._reader.is_midway:
            raise ConnectionError("it does not belong to this round")
        return True


class Call:
    """A connection to another worker, until both sides have proven themselves."""

    def __init__(self, sock: socket.socket, token: bytes) -> None:
        self.sock = sock
        self._handshake = ClientHandshake(token, PURPOSE, secrets.token_bytes(NONCE_BYTES))
        self._reader = FrameReader(HELLO_BYTES_MAX, stepwise=True)
        self.is_connected = False

    @property
    def events(self) -> int:
        """What to wait for."""
        return select.POLLIN if self.is_connected else select.POLLOUT

    def go_on(self) -> bool:
        """Take the next step; return whether the other worker has proven itself. Raises if it has not."""
        if not self.is_connected:
            if error := self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, "the next worker does not listen")
            self.is_connected = True
            return False
        data = self.sock.recv(HELLO_BYTES_MAX)
        if not data:
            raise ConnectionError("the next worker closed the connection")
        bodies = self._reader.feed(data)
        while bodies:
            answer = self._handshake.hear(CODEC.decode(bodies[0]))
            if answer is not None:
                self.sock.send(CODEC.encode(answer))
            if self._handshake.session is not None:
                return True
            bodies = self._reader.feed(b"")
        return False


class Meeting:
    """Opens the two connections of one worker; `wait` returns them, the one before and the one after."""

    def __init__(
        self, listener: socket.socket, after: tuple[str, int], my_token: bytes, their_token: bytes, abort_fd: int
    ) -> None:
        self._listener = listener
        self._where = after
        self._my_token, self._their_token = my_token, their_token
        self._abort_fd = abort_fd
        self._before: socket.socket | None = None
        self._after: socket.socket | None = None
        self._call: Call | None = None
        #: Oldest first.
        self._callers: dict[int, Caller] = {}
        self._call_at = 0.0
        self._accept_at = 0.0
        self._trouble = "a neighbour did not come in time"

    def wait(self, check: Callable[[], None], deadline: float) -> tuple[socket.socket, socket.socket]:
        """Wait for both at once: a worker that waited for one neighbour only would make the other wait.

        `check` is called before every wait and raises if the round is over.
        """
        self._listener.setblocking(False)
        try:
            while self._before is None or self._after is None:
                check()
                now = time.monotonic()
                if now >= deadline:
                    raise TimeoutError(self._trouble)
                self._step(now, deadline)
        except BaseException:
            for sock in (self._before, self._after):
                if sock is not None:
                    sock.close()
            raise
        finally:
            for caller in self._callers.values():
                caller.sock.close()
            if self._call is not None:
                self._call.sock.close()
        return self._before, self._after

    def _step(self, now: float, deadline: float) -> None:
        self._drop_late(now)
        if self._after is None and self._call is None and now >= self._call_at:
            self._begin_call(now)
        for fd, _ in self._poll(now, deadline):
            if self._call is not None and fd == self._call.sock.fileno():
                self._on_call(self._call)
            elif fd == self._listener.fileno():
                self._accept()
            elif fd in self._callers:
                self._on_caller(fd)

    def _poll(self, now: float, deadline: float) -> list[tuple[int, int]]:
        poll = select.poll()
        poll.register(self._abort_fd, select.POLLIN)
        until = [deadline, *(caller.deadline for caller in self._callers.values())]
        if self._before is None:
            if now >= self._accept_at:
                poll.register(self._listener, select.POLLIN)
            else:
                until.append(self._accept_at)
        for fd in self._callers:
            poll.register(fd, select.POLLIN)
        if self._call is not None:
            poll.register(self._call.sock, self._call.events)
        elif self._after is None:
            until.append(self._call_at)
        return poll.poll(max(min(until) - now, 0.0) * 1000 + 1)

    # -- the next worker -----------------------------------------------------------------------------------------

    def _begin_call(self, now: float) -> None:
        self._call_at = now + RETRY_S
        family = socket.AF_INET6 if ":" in self._where[0] else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        if sock.connect_ex(self._where) in (0, errno.EINPROGRESS):
            self._call = Call(sock, self._their_token)
        else:
            sock.close()

    def _on_call(self, call: Call) -> None:
        try:
            if call.go_on():
                self._after, self._call = call.sock, None
        except BlockingIOError:
            return
        except (OSError, HoldfastError) as error:
            # It may still be in an earlier round, or not listen yet: the time for the ring bounds the tries.
            self._trouble = f"a neighbour did not come in time ({error})"
            self._call_at = time.monotonic() + RETRY_S
            call.sock.close()
            self._call = None

    # -- the worker before ---------------------------------------------------------------------------------------

    def _accept(self) -> None:
        now = time.monotonic()
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _STARVED:
                self._drop_oldest()
                self._accept_at = now + RETRY_S
            return
        while len(self._callers) >= CALLERS_MAX:
            self._drop_oldest()
        try:
            self._callers[sock.fileno()] = Caller(sock, self._my_token, now)
        except OSError:
            sock.close()  # it has closed the connection again

    def _on_caller(self, fd: int) -> None:
        caller = self._callers[fd]
        try:
            is_proven = caller.hear()
        except BlockingIOError:
            return
        except (OSError, HoldfastError):
            del self._callers[fd]
            caller.sock.close()
            return
        if is_proven:
            del self._callers[fd]
            if self._before is None:
                self._before = caller.sock
            else:
                caller.sock.close()

    def _drop_late(self, now: float) -> None:
        while self._callers and next(iter(self._callers.values())).deadline <= now:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        if self._callers:
            caller = self._callers.pop(next(iter(self._callers)))
            with contextlib.suppress(OSError):
                caller.sock.close()
