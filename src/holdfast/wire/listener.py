"""The listener: accepts connections, holds the handshake, keeps the limits, and hands proven messages on.

A stranger gets `HELLO_BYTES_MAX` bytes and `handshake_timeout_s` seconds to prove the secret. Whatever goes wrong costs
the sender its connection and nothing else; the reason is told to it where it can be told, and to us as a fact.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
import ssl
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from holdfast.errors import FrameError, Unavailable, UsageError
from holdfast.facts import WARNING, Fact, facts
from holdfast.wire.address import Endpoint
from holdfast.wire.forks import keep_from_children, keep_transport, let_go
from holdfast.wire.frames import FRAME_BYTES_MAX, HELLO_BYTES_MAX, Codec, FrameReader, Message
from holdfast.wire.handshake import NONCE_BYTES, Challenge, Proof, Refused, judge
from holdfast.wire.silence import end_when_unacknowledged

M = TypeVar("M", bound=Message)
#: How long a closing listener lets its peers read their last messages.
FAREWELL_S = 0.5
#: How many connections may wait to be accepted: all nodes of a large job come at once.
BACKLOG = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """What a listener lets others make it hold."""

    connections_max: int = 16_384
    handshake_timeout_s: float = 10.0
    frame_bytes_max: int = FRAME_BYTES_MAX
    #: Bytes waiting to be read by one peer; one that reads slower than it asks loses its connection.
    pending_bytes_max: int = 4 * FRAME_BYTES_MAX


class Service(Protocol):
    """What a listener serves: told of proven peers only, always from the loop's thread."""

    def opened(self, peer: Peer[Any]) -> None:
        """A peer has proven the secret."""

    def received(self, peer: Peer[Any], message: Any) -> None:
        """A proven peer sent a message."""

    def closed(self, peer: Peer[Any], reason: str) -> None:
        """A proven peer's connection is gone."""


class Peer(asyncio.Protocol, Generic[M]):
    """One accepted connection."""

    __slots__ = (
        "_challenge",
        "_descriptor",
        "_listener",
        "_reader",
        "_reason",
        "_transport",
        "address",
        "local_address",
        "session",
    )

    def __init__(self, listener: Listener[M]) -> None:
        self._listener = listener
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._challenge: Challenge | None = None
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._reason = "the connection was closed by the other side"
        self.address = ""
        self.local_address = ""
        #: Free for the service to hang its own state on.
        self.session: Any = None

    def __str__(self) -> str:
        return self.address or "a stranger"

    def send(self, message: M) -> None:
        """Send one message; does nothing when the connection is gone."""
        self.send_frame(self._listener.codec.encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Send an encoded message, so that one message to many peers is encoded once."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(frame)
        if transport.get_write_buffer_size() > self._listener.limits.pending_bytes_max:
            reason = "it does not read what it asked for"
            self._listener._complain(self, reason)
            self.drop(reason)

    def refuse(self, reason: str) -> None:
        """Tell the peer why, then end the connection."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._reason = reason
            transport.write(self._listener.codec.encode(Refused(reason)))  # type: ignore[arg-type]
            transport.close()

    def finish(self, reason: str) -> None:
        """End the connection once what was sent is out."""
        if self._transport is not None:
            self._reason = reason
            self._transport.close()

    def drop(self, reason: str) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._reason = reason
            self._transport.abort()

    # -- called by the loop ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet, or turn away when there are too many already."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        self._descriptor = keep_transport(transport)
        end_when_unacknowledged(transport)
        peername, sockname = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self.address = peername[0] if peername else ""
        self.local_address = sockname[0] if sockname else ""
        self._listener._greet(self)

    def data_received(self, data: bytes) -> None:
        """Cut frames, hold the handshake, hand on what a proven peer says."""
        try:
            for body in self._reader.feed(data):
                message = self._listener.codec.decode(body)
                if self._challenge is not None:
                    self._judge(message)
                else:
                    self._listener.service.received(self, message)
                if self._transport is None or self._transport.is_closing():
                    return
        except FrameError as error:
            self._listener._complain(self, str(error))
            self.refuse(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection."""
        let_go(self._descriptor)
        proven = self._transport is not None and self._challenge is None
        self._transport = None
        self._listener._forget(self)
        if proven:
            self._listener.service.closed(self, f"the connection broke ({error})" if error else self._reason)

    def _challenge_with(self, challenge: Challenge) -> None:
        self._challenge = challenge
        self.send(challenge)  # type: ignore[arg-type]

    def _judge(self, message: Message) -> None:
        assert self._challenge is not None
        if isinstance(message, Proof):
            answer = judge(self._listener.secret, self._challenge, message, self._listener.kind)
        else:
            answer = Refused(f"the handshake comes first, not {type(message).__name__}")
        if isinstance(answer, Refused):
            self._listener._complain(self, answer.reason)
            self.refuse(answer.reason)
            return
        self._challenge = None
        self._reader.bytes_max = self._listener.limits.frame_bytes_max
        self._listener._admit(self)
        self.send(answer)  # type: ignore[arg-type]
        self._listener.service.opened(self)


class Listener(Generic[M]):
    """A listening port and its connections."""

    def __init__(
        self,
        service: Service,
        codec: Codec[M],
        secret: bytes,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        kind: str = "",
    ) -> None:
        self.service = service
        self.codec = codec
        self.secret = secret
        self.limits = limits
        #: Told to every proven peer.
        self.kind = kind
        #: One for each address of the endpoint's name.
        self._servers: list[asyncio.Server] = []
        self._peers: set[Peer[M]] = set()
        # Oldest first, so that one look at the front finds who has run out of time.
        self._strangers: dict[Peer[M], float] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def open(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> Endpoint:
        """Listen on the endpoint and return it with the port that was given."""
        loop = asyncio.get_running_loop()
        try:
            sockets = _listen(endpoint)
        except OSError as error:
            remedy = (
                "name an address of this machine"
                if error.errno == errno.EADDRNOTAVAIL
                else "free the port, or give another one (port 0 takes any free one)"
            )
            raise Unavailable(f"cannot listen on {endpoint}: {error.strerror or error}; {remedy}") from None
        port = sockets[0].getsockname()[1]
        # A stranger who never ends its TLS handshake gets no more time than one who never proves the secret.
        patience_s = self.limits.handshake_timeout_s if tls is not None else None
        servers = [
            await loop.create_server(
                lambda: Peer(self), sock=each, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=patience_s
            )
            for each in sockets
        ]
        self._servers = servers
        return Endpoint(endpoint.host, port)

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._sweep is not None:
            self._sweep.cancel()
        for server in self._servers:
            server.close()
        for peer in list(self._strangers):
            peer.drop("the coordinator has stopped")
        for peer in list(self._peers):
            peer.finish("the coordinator has stopped")
        deadline = asyncio.get_running_loop().time() + FAREWELL_S
        while self._peers and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.002)
        for peer in list(self._peers):
            peer.drop("it does not read")

    # -- called by peers -------------------------------------------------------------------------------------

    def _greet(self, peer: Peer[M]) -> None:
        if len(self._peers) + len(self._strangers) >= self.limits.connections_max:
            reason = f"the limit of {self.limits.connections_max} connections is reached"
            self._complain(peer, reason)
            peer._challenge = Challenge(b"", guarded=True)  # never answered: it is not proven
            peer.refuse(reason)
            return
        loop = asyncio.get_running_loop()
        self._strangers[peer] = loop.time() + self.limits.handshake_timeout_s
        if self._sweep is None:
            self._sweep = loop.call_later(self.limits.handshake_timeout_s, self._drop_silent)
        peer._challenge_with(Challenge(secrets.token_bytes(NONCE_BYTES), guarded=bool(self.secret)))

    def _admit(self, peer: Peer[M]) -> None:
        self._strangers.pop(peer, None)
        self._peers.add(peer)

    def _forget(self, peer: Peer[M]) -> None:
        self._strangers.pop(peer, None)
        self._peers.discard(peer)

    def _drop_silent(self) -> None:
        loop = asyncio.get_running_loop()
        for peer, deadline in list(self._strangers.items()):
            if deadline > loop.time():
                break
            reason = f"no handshake within {self.limits.handshake_timeout_s:g} s"
            self._complain(peer, reason)
            peer.refuse(reason)
            peer.drop(reason)
        first = next(iter(self._strangers.values()), None)
        self._sweep = None if first is None else loop.call_at(max(first, loop.time() + 0.05), self._drop_silent)

    def _complain(self, peer: Peer[M], reason: str) -> None:
        facts.publish(
            Fact(
                "connection_refused",
                f"refused {peer}: {reason}",
                {"peer": peer.address, "reason": reason},
                WARNING,
            )
        )


def _listen(endpoint: Endpoint) -> list[socket.socket]:
    """Listen on every address that the host name means, all on one port; the empty name means every interface.

    Of several who want the same port at the same moment all can bind it, and the first to listen has it. That is found
    out here: uvloop would close the socket of whoever comes second and say nothing.
    """
    sockets: list[socket.socket] = []
    try:
        _bind(endpoint, sockets)
        for sock in sockets:
            keep_from_children(sock).listen(BACKLOG)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bind(endpoint: Endpoint, sockets: list[socket.socket]) -> None:
    """Bind the addresses that this host has; one that somebody else listens on is not left out but an error."""
    try:
        found = socket.getaddrinfo(
            endpoint.host or None, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise UsageError(f"cannot listen on {endpoint}: {error.strerror}; name an address of this machine") from None
    refused: OSError | None = None
    port = endpoint.port
    for family, kind, protocol, _, address in dict.fromkeys(found):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port, *address[2:]))
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE and endpoint.port:
                raise
            refused = error
            continue
        port = sock.getsockname()[1]  # the second address of a name takes the first one's port
        sockets.append(sock)
    if not sockets:
        assert refused is not None
        raise refused
