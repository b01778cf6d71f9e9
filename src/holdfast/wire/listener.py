"""The listener: accepts connections, completes handshakes, enforces the limits, and passes on authenticated messages.

A peer that has not proven the secret gets `HELLO_BYTES_MAX` bytes and `handshake_timeout_s` seconds, TLS included.
There may be `unproven_max` such connections, for a moment more where many nodes come at once; then the oldest goes
first. A connection that has proven the secret is never dropped for one that has not. An error
closes only the connection of its sender; the reason is sent to it if possible, and reported here as a fact, of which
there is a limited number.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from holdfast.errors import UnavailableError, UnknownMessageError
from holdfast.facts import WARNING, Fact, facts
from holdfast.wire import descriptors
from holdfast.wire.address import Endpoint
from holdfast.wire.binding import listen
from holdfast.wire.forks import keep_from_children
from holdfast.wire.frames import FRAME_BYTES_MAX, Codec, Message, UnknownTags
from holdfast.wire.handshake import CONNECT_TIMEOUT_S, REASON_CHARACTERS_MAX, Refused
from holdfast.wire.peer import Peer
from holdfast.wire.refusals import Refusals

__all__ = ["Limits", "Listener", "Peer", "Service"]

M = TypeVar("M", bound=Message)
#: How long a closing listener lets its peers read their last messages.
FAREWELL_S = 0.5
#: Connections that are accepted before the loop turns to what else there is.
ACCEPTS_AT_ONCE = 64
#: How long nothing is accepted once the system has no descriptors or memory left.
ACCEPT_PAUSE_S = 0.1
#: Errors of accept() that say that this host has run out of something; all others concern one connection.
_STARVED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


@dataclass(frozen=True, slots=True)
class Limits:
    """How much clients may make a listener hold."""

    #: None for as many as the limit on open files leaves room for.
    connections_max: int | None = None
    #: Of these, how many that have not proven the secret, once they had `unproven_grace_s` for it.
    unproven_max: int = 256
    unproven_grace_s: float = 2.0
    handshake_timeout_s: float = CONNECT_TIMEOUT_S
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


class Listener(Generic[M]):
    """A listening port and its connections.

    `run` names the one run that it serves, if it serves only one; clients that say another are refused. `share` is the
    part of this process's descriptors that its connections may take, unless the limits say how many.
    """

    def __init__(
        self,
        service: Service,
        codec: Codec[M],
        secret: bytes,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        kind: str = "",
        *,
        run: str = "",
        share: float = 0.75,
    ) -> None:
        self.service = service
        self.codec = codec
        self.secret = secret
        self.limits = limits
        #: Told to every proven peer.
        self.kind = kind
        self.run = run
        self._share = share
        self._connections_max = limits.connections_max or descriptors.CONNECTIONS_MIN
        #: One for each address of the endpoint's name.
        self._sockets: list[socket.socket] = []
        self._tls: ssl.SSLContext | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._peers: set[Peer[M]] = set()
        #: When each arrived; oldest first, so that one look at the front finds the next to drop.
        self._unproven: dict[Peer[M], float] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_at = float("inf")
        self._refusals = Refusals()
        self._summary: asyncio.TimerHandle | None = None
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        #: How often the next event of a listening socket calls accept().
        self._looks = 1
        self._starved_told = False
        self._unknown = UnknownTags()

    async def open(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> Endpoint:
        """Listen on the endpoint and return it with the port that was given."""
        try:
            self._sockets = listen(endpoint)
        except OSError as error:
            remedy = (
                "name an address of this machine"
                if error.errno == errno.EADDRNOTAVAIL
                else "free the port, or give another one (port 0 takes any free one)"
            )
            raise UnavailableError(f"cannot listen on {endpoint}: {error.strerror or error}; {remedy}") from None
        room = descriptors.connections_within(descriptors.limit(), self._share)
        self._connections_max = min(self.limits.connections_max or room, room)
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        for sock in self._sockets:
            self._loop.add_reader(sock, self._accept, sock)
        return Endpoint(endpoint.host, self._sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and close every connection."""
        loop = asyncio.get_running_loop()
        for timer in (self._sweep, self._summary, *self._pauses.values()):
            if timer is not None:
                timer.cancel()
        for sock in self._sockets:
            loop.remove_reader(sock)
            sock.close()
        self._sockets = []
        self._sum_up()
        for peer in list(self._unproven):
            peer.drop("the coordinator has stopped")
        for peer in list(self._peers):
            peer.finish("the coordinator has stopped")
        deadline = loop.time() + FAREWELL_S
        while (self._peers or self._unproven) and loop.time() < deadline:
            await asyncio.sleep(0.002)
        for peer in list(self._peers):
            peer.drop("it does not read")
        self._loop = None

    # -- accepting -------------------------------------------------------------------------------------------

    def _accept(self, sock: socket.socket) -> None:
        # Mostly one connection comes at a time, and a second look would be in vain; while more do, we look for more.
        looks, self._looks = self._looks, min(2 * self._looks, ACCEPTS_AT_ONCE)
        for _ in range(looks):
            try:
                accepted, address = sock.accept()
            except BlockingIOError:
                self._looks = 1
                return
            except OSError as error:
                if error.errno in _STARVED:
                    self._pause(sock, error)
                    return
                continue  # that connection is gone again; the next may be there
            self._take(accepted, str(address[0]))

    def _take(self, sock: socket.socket, address: str) -> None:
        assert self._loop is not None
        keep_from_children(sock).setblocking(False)
        if len(self._peers) + len(self._unproven) >= self._connections_max and not self._make_room():
            self._turn_away(sock, address)
            return
        peer = Peer(self, sock, address)
        self._unproven[peer] = self._loop.time()
        peer.opening = self._loop.create_task(self._open(peer, sock))
        peer.opening.add_done_callback(lambda task: self._on_opened(peer, task))
        self._arm_sweep()

    async def _open(self, peer: Peer[M], sock: socket.socket) -> None:
        """Give a connection its transport; with TLS that takes as long as the other side likes, up to the limit."""
        assert self._loop is not None
        timeout_s = self.limits.handshake_timeout_s if self._tls is not None else None
        try:
            await self._loop.connect_accepted_socket(lambda: peer, sock, ssl=self._tls, ssl_handshake_timeout=timeout_s)
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror or str(error)
            self._complain(peer, f"TLS failed: {reason}" if self._tls else f"the connection broke: {reason}")

    def _on_opened(self, peer: Peer[M], task: asyncio.Task[None]) -> None:
        """Release what never became a connection, also where the task was cancelled before it began."""
        peer.opening = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._complain(peer, f"it could not be opened: {error!r}")
        if not peer.is_connected:
            self._forget(peer)

    def _make_room(self) -> bool:
        """Drop the oldest connection that has not proven the secret; return whether there was one."""
        peer = next(iter(self._unproven), None)
        if peer is None:
            return False
        self._evict(peer, "too many connections are being opened; try again", again=True)
        return True

    def _turn_away(self, sock: socket.socket, address: str) -> None:
        reason = f"the limit of {self._connections_max} connections is reached"
        self._report(address, reason)
        if self._tls is None:
            try:
                sock.send(self.codec.encode(Refused(reason, again=True)))  # type: ignore[arg-type]
            except OSError:
                pass  # it did not wait for an answer
        sock.close()

    def _pause(self, sock: socket.socket, error: OSError) -> None:
        """Accept nothing for a moment: the connection stays in the queue, and a retry at once would fail again."""
        assert self._loop is not None
        self._make_room()
        self._loop.remove_reader(sock)
        self._pauses[sock] = self._loop.call_later(ACCEPT_PAUSE_S, self._resume, sock)
        if not self._starved_told:
            self._starved_told = True
            facts.warn(
                "accept_paused",
                f"cannot accept connections for now: {error.strerror}; raise the limit on open files (ulimit -n)",
            )

    def _resume(self, sock: socket.socket) -> None:
        self._pauses.pop(sock, None)
        if self._loop is not None and sock in self._sockets:
            self._loop.add_reader(sock, self._accept, sock)

    # -- connections that have not proven the secret -------------------------------------------------------------

    def _patience_s(self) -> float:
        is_crowded = len(self._unproven) > self.limits.unproven_max
        return min(self.limits.handshake_timeout_s, self.limits.unproven_grace_s if is_crowded else float("inf"))

    def _arm_sweep(self) -> None:
        """Make sure that the next connection to run out of time is looked at then."""
        assert self._loop is not None
        when = next(iter(self._unproven.values())) + self._patience_s()
        if when >= self._sweep_at:
            return
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep_at = when
        self._sweep = self._loop.call_at(when, self._drop_late)

    def _drop_late(self) -> None:
        assert self._loop is not None
        now = self._loop.time()
        while self._unproven:
            peer, arrived_at = next(iter(self._unproven.items()))
            patience_s = self._patience_s()
            if arrived_at + patience_s > now:
                break
            self._evict(peer, f"no handshake within {patience_s:g} s", again=True)
        self._sweep, self._sweep_at = None, float("inf")
        if self._unproven:
            self._arm_sweep()

    def _evict(self, peer: Peer[M], reason: str, *, again: bool) -> None:
        self._complain(peer, reason)
        peer.refuse(reason, again=again)
        peer.drop(reason)
        self._unproven.pop(peer, None)

    # -- called by peers -------------------------------------------------------------------------------------

    def _admit(self, peer: Peer[M]) -> None:
        self._unproven.pop(peer, None)
        self._peers.add(peer)

    def _forget(self, peer: Peer[M]) -> None:
        self._unproven.pop(peer, None)
        self._peers.discard(peer)
        peer.release()

    def _note_unknown(self, peer: Peer[M], error: UnknownMessageError) -> None:
        if self._unknown.is_new(error.tag):
            facts.warn("message_unknown", f"from {peer}: {error}", peer=peer.address, tag=error.tag)

    def _complain(self, peer: Peer[M], reason: str) -> None:
        self._report(peer.address, reason)

    # -- reports ---------------------------------------------------------------------------------------------

    def _report(self, address: str, reason: str) -> None:
        if self._loop is None:
            return
        reason = reason[:REASON_CHARACTERS_MAX]
        if self._refusals.note(address, reason, self._loop.time()):
            data = {"peer": address, "reason": reason}
            facts.publish(Fact("connection_refused", f"refused {address or 'a peer'}: {reason}", data, WARNING))
        when = self._refusals.wakeup()
        if when is not None and self._summary is None:
            self._summary = self._loop.call_at(when, self._sum_up)

    def _sum_up(self) -> None:
        self._summary = None
        summary = None if self._loop is None else self._refusals.take_summary(self._loop.time())
        if summary is not None:
            data = {
                "peer": summary.address,
                "reason": summary.reason,
                "count": summary.count,
                "addresses": summary.addresses,
            }
            facts.publish(Fact("connections_refused", summary.sentence, data, WARNING))
