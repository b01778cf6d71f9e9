"""The channel: a blocking connection with one request at a time, for code inside a user's process."""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import struct
import time
from typing import Generic, TypeVar

from holdfast.errors import ConnectionLostError, FrameError, HandshakeError, PeerError, UnknownMessageError
from holdfast.facts import facts
from holdfast.wire.address import Endpoint
from holdfast.wire.frames import FRAME_BYTES_MAX, HELLO_BYTES_MAX, Codec, FrameReader, Message, UnknownTags
from holdfast.wire.gmac import find_gmac
from holdfast.wire.handshake import (
    CONNECT_TIMEOUT_S,
    NONCE_BYTES,
    ClientHandshake,
    NotUnderstood,
    Purpose,
    Refused,
    refusal,
)
from holdfast.wire.session import Session
from holdfast.wire.silence import watch_silence
from holdfast.wire.tls import SPEAKS_TLS, speaks_tls, tls_trouble

M = TypeVar("M", bound=Message)
# Larger reads cost more for each small answer than they save for a large one.
_READ_BYTES = 64 * 1024
#: How long a plain socket sleeps in the kernel before it looks at the deadline; a nearer deadline is kept exactly.
_LOOK_S = 1
#: What a proven server says in place of an answer.
_REFUSALS = frozenset((Refused, NotUnderstood))
#: A longer frame is handed to the kernel beside its authentication code, not copied together with it.
_COPY_BYTES_MAX = 64 * 1024


class Channel(Generic[M]):
    """A proven connection used by one thread at a time; it starts no thread and no loop.

    Every frame is authenticated. A message of a type that this version does not know is reported once and ignored.

    A plain socket stays blocking, so that a question costs two system calls: a Python timeout would add a poll and
    a mode switch to each. TLS has its own buffers and takes the long way.
    """

    def __init__(self, sock: socket.socket, codec: Codec[M]) -> None:
        self._socket = sock
        self._plain = not isinstance(sock, ssl.SSLSocket)
        if self._plain:
            sock.settimeout(None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _LOOK_S, 0))
        self._codec = codec
        self._reader = FrameReader(HELLO_BYTES_MAX, stepwise=True)
        self._session: Session | None = None
        self._bodies: list[bytes] = []
        #: Whether the other side has said its first word.
        self._greeted = False
        self._unknown = UnknownTags()

    @classmethod
    def connect(
        cls,
        endpoint: Endpoint,
        codec: Codec[M],
        secret: bytes,
        *,
        run: str = "",
        timeout_s: float = CONNECT_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
    ) -> Channel[M]:
        """Connect and complete the handshake; raises `ConnectionLostError` or `HandshakeError` with the reason."""
        deadline = time.monotonic() + timeout_s
        sock: socket.socket | None = None
        channel: Channel[M] | None = None
        try:
            sock = socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            watch_silence(sock)
            if tls is not None:
                sock = tls.wrap_socket(sock, server_hostname=endpoint.host)
            channel = cls(sock, codec)
            purpose = Purpose.of(endpoint, codec.service, run)
            channel._shake(ClientHandshake(secret, purpose, secrets.token_bytes(NONCE_BYTES), find_gmac()), deadline)
        except BaseException as error:
            if sock is not None:
                sock.close()
            silent = channel is not None and not channel._greeted
            if isinstance(error, OSError) and (trouble := _trouble(endpoint, error, tls, silent=silent)) is not None:
                raise trouble from None
            raise
        return channel

    def ask(self, message: M, deadline: float | None = None) -> M:
        """Send one message and return the answer.

        `deadline` is on the monotonic clock. After any error the channel must be closed.
        """
        self.send(message, deadline)
        return self.receive(deadline)

    def send(self, message: M, deadline: float | None = None) -> None:
        """Send one message."""
        frame = self._codec.encode(message)
        rest = b""
        if self._session is not None:
            rest = self._session.outgoing.mac(frame)
            if len(frame) <= _COPY_BYTES_MAX:
                frame, rest = frame + rest, b""
        try:
            sent = self._send_now(frame) if self._plain else 0
            if sent < len(frame) or rest:
                self._socket.settimeout(_remaining(deadline))
                self._socket.sendall(memoryview(frame)[sent:])
                self._socket.sendall(rest)
                if self._plain:
                    self._socket.settimeout(None)
        except OSError as error:
            raise ConnectionLostError(f"the coordinator is out of reach: {error}") from None

    def receive(self, deadline: float | None = None) -> M:
        """Wait for the next message of a type that is known."""
        while True:
            try:
                if not self._bodies:
                    self._read(deadline)
                message = self._codec.decode(self._bodies.pop(0))
            except UnknownMessageError as error:
                if self._session is None:
                    raise
                if self._unknown.is_new(error.tag):
                    facts.warn("message_unknown", f"from the coordinator: {error}", tag=error.tag)
            except FrameError as error:
                # Tell the other side, so that both can report why the connection ended.
                with contextlib.suppress(ConnectionLostError):
                    self.send(Refused(str(error)), time.monotonic())  # type: ignore[arg-type]
                raise
            else:
                if type(message) in _REFUSALS and self._session is not None:
                    raise _refusal(message)
                return message

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _read(self, deadline: float | None) -> None:
        """Wait until there is at least one whole frame."""
        try:
            while not self._bodies:
                data = self._receive_some(deadline)
                if not data:
                    where = " in the middle of a message" if self._reader.is_midway else ""
                    raise ConnectionLostError(f"the coordinator closed the connection{where}")
                self._bodies = self._reader.feed(data)
        except ConnectionLostError:
            raise
        except OSError as error:
            raise ConnectionLostError(f"the coordinator is out of reach: {error}") from None

    def _send_now(self, frame: bytes) -> int:
        """Send what the kernel takes without waiting, which is nearly always all of it."""
        try:
            return self._socket.send(frame, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _receive_some(self, deadline: float | None) -> bytes:
        while self._plain and (deadline is None or deadline - time.monotonic() > _LOOK_S):
            try:
                return self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                continue
        self._socket.settimeout(_remaining(deadline))
        data = self._socket.recv(_READ_BYTES)
        if self._plain:
            self._socket.settimeout(None)
        return data

    def _shake(self, handshake: ClientHandshake, deadline: float) -> None:
        while handshake.session is None:
            answer = handshake.hear(self.receive(deadline))
            self._greeted = True
            if answer is not None:
                self.send(answer, deadline)  # type: ignore[arg-type]
        self._reader.authenticate(handshake.session.incoming, FRAME_BYTES_MAX)
        self._session = handshake.session
        if self._reader.is_midway:  # it may have come together with the first frames of the session
            self._bodies = self._reader.feed(b"")


def _refusal(message: Message) -> Exception:
    if isinstance(message, NotUnderstood):
        return PeerError(
            f"the coordinator does not know messages with tag {message.unknown}: "
            "install the same holdfast version on every node"
        )
    assert isinstance(message, Refused)
    return refusal(message)


def _trouble(
    endpoint: Endpoint, error: OSError, tls: ssl.SSLContext | None, *, silent: bool
) -> ConnectionLostError | HandshakeError | None:
    """Return why a connection could not be made; None for an error that says so itself."""
    # With TLS 1.3 a client hears only after its own handshake that its certificate was refused.
    cause = error.__context__ if isinstance(error, ConnectionLostError) else error
    if tls is not None and isinstance(cause, ssl.SSLError):
        return HandshakeError(tls_trouble(endpoint, cause))
    if tls is not None and (isinstance(cause, ConnectionResetError) or (cause is not error and silent)):
        return ConnectionLostError(tls_trouble(endpoint, ConnectionResetError()))
    if not isinstance(error, ConnectionLostError):
        return ConnectionLostError(f"cannot reach {endpoint}: {error.strerror or error}")
    if tls is None and silent and speaks_tls(endpoint):
        return HandshakeError(f"cannot talk to {endpoint}: {SPEAKS_TLS}")
    return None


def _remaining(deadline: float | None) -> float | None:
    """Return the socket timeout for a deadline; a deadline that has passed still gets one look at the socket."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.001)
