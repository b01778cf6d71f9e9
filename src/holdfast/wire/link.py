"""The link: one client connection on the event loop, from connect to close. Reconnecting is its owner's decision."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.errors import ConnectionLostError, FrameError, HandshakeError, UnknownMessageError
from holdfast.facts import facts
from holdfast.wire.address import Endpoint
from holdfast.wire.forks import keep_transport, let_go
from holdfast.wire.frames import FRAME_BYTES_MAX, HELLO_BYTES_MAX, Codec, FrameReader, Message, UnknownTags
from holdfast.wire.gmac import find_gmac
from holdfast.wire.handshake import CONNECT_TIMEOUT_S, NONCE_BYTES, ClientHandshake, NotUnderstood, Purpose, Refused
from holdfast.wire.session import Session
from holdfast.wire.silence import end_when_unacknowledged, forget_silently
from holdfast.wire.tls import SPEAKS_TLS, speaks_tls, tls_trouble

M = TypeVar("M", bound=Message)


class Link(asyncio.Protocol, Generic[M]):
    """A proven connection to a coordinator; every frame on it is authenticated.

    `on_message` is called for every message, `on_lost` exactly once when the connection ends after it was open. A
    message of a type that this version does not know is reported once and ignored.
    """

    def __init__(
        self,
        codec: Codec[M],
        handshake: ClientHandshake,
        on_message: Callable[[M], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._codec = codec
        self._handshake = handshake
        self._on_message = on_message
        self._on_lost = on_lost
        self._reader = FrameReader(HELLO_BYTES_MAX, stepwise=True)
        self._session: Session | None = None
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reason = "the coordinator closed the connection"
        self._unknown = UnknownTags()
        #: This side's address, by which it reaches the coordinator.
        self.local_address = ""
        #: Whether the other side's process ended the connection; a host that cannot be reached proves nothing.
        self.ended = False

    @property
    def kind(self) -> str:
        """What kind of server answered."""
        return self._handshake.kind

    @classmethod
    async def connect(
        cls,
        endpoint: Endpoint,
        codec: Codec[M],
        secret: bytes,
        on_message: Callable[[M], None],
        on_lost: Callable[[str], None],
        *,
        run: str = "",
        timeout_s: float = CONNECT_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        explains: bool = True,
    ) -> Link[M]:
        """Connect and complete the handshake; raises `ConnectionLostError` or `HandshakeError` with the reason.

        With `explains` it looks whether a side that was silent waits for TLS.
        """
        loop = asyncio.get_running_loop()
        purpose = Purpose.of(endpoint, codec.service, run)
        handshake = ClientHandshake(secret, purpose, secrets.token_bytes(NONCE_BYTES), find_gmac())
        link = cls(codec, handshake, on_message, on_lost)
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(
                    lambda: link,
                    endpoint.host,
                    endpoint.port,
                    ssl=tls,
                    server_hostname=endpoint.host if tls else None,
                )
                await link._opened
        except TimeoutError:
            link.close("it took too long")
            if explains:
                await link._ask_for_tls(endpoint, tls)
            raise ConnectionLostError(f"{endpoint} did not answer within {timeout_s:g} s") from None
        except ssl.SSLError as error:
            raise HandshakeError(tls_trouble(endpoint, error)) from None
        except OSError as error:
            link.close("it could not be opened")
            silent = not link._handshake.is_greeted and isinstance(error, ConnectionResetError | ConnectionLostError)
            if tls is not None and silent:
                raise ConnectionLostError(tls_trouble(endpoint, error)) from None
            if explains and isinstance(error, ConnectionLostError):
                await link._ask_for_tls(endpoint, tls)
            raise ConnectionLostError(f"cannot reach {endpoint}: {error.strerror or error}") from None
        except BaseException:
            link.close("the caller gave up")
            raise
        return link

    def send(self, message: M) -> None:
        """Send one message; does nothing when the connection is gone, which `on_lost` tells."""
        if self._transport is not None:
            frame = self._codec.encode(message)
            if self._session is not None:
                frame += self._session.outgoing.mac(frame)
            self._transport.write(frame)

    def close(self, reason: str = "closed by this side") -> None:
        """Close the connection after everything was sent; `on_lost` is not called."""
        self._on_lost = lambda _: None
        self._reason = reason
        if self._transport is not None:
            self._transport.close()

    def abandon(self) -> None:
        """Give up a connection whose other end is silent, and which may not hear of it; `on_lost` is not called."""
        self._on_lost = lambda _: None
        if self._transport is not None:
            forget_silently(self._transport)
            self._transport.abort()

    # -- called by the loop ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note our own address and wait for the challenge."""
        self._transport = transport  # type: ignore[assignment]
        self._descriptor = keep_transport(transport)
        end_when_unacknowledged(transport)
        sockname = transport.get_extra_info("sockname")
        self.local_address = sockname[0] if sockname else ""

    def data_received(self, data: bytes) -> None:
        """Cut frames, complete the handshake, pass messages on."""
        try:
            bodies = self._reader.feed(data)
            while bodies and self._session is None:
                self._shake(self._codec.decode(bodies[0]))
                bodies = self._reader.feed(b"")
            for body in bodies:
                self._on_body(body)
        except (FrameError, HandshakeError, ConnectionLostError) as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the owner, once."""
        let_go(self._descriptor)
        self._transport = None
        self.ended = error is None or isinstance(error, ConnectionResetError | BrokenPipeError)
        reason = f"the connection broke ({error})" if error else self._reason
        if self._reader.is_midway and not error:
            reason += " in the middle of a message"
        if not self._opened.done():
            # With TLS 1.3 a client hears only after its own handshake that its certificate was refused.
            refused = isinstance(error, ssl.SSLError)
            self._opened.set_exception(error if error and refused else ConnectionLostError(reason))
        elif not self._opened.cancelled() and self._opened.exception() is None:
            self._on_lost(reason)

    async def _ask_for_tls(self, endpoint: Endpoint, tls: ssl.SSLContext | None) -> None:
        """Raise `HandshakeError` if the other side was silent because it waits for TLS."""
        if tls is None and not self._handshake.is_greeted and await asyncio.to_thread(speaks_tls, endpoint):
            raise HandshakeError(f"cannot talk to {endpoint}: {SPEAKS_TLS}")

    def _shake(self, message: Message) -> None:
        answer = self._handshake.hear(message)
        if answer is not None:
            self.send(answer)  # type: ignore[arg-type]
        session = self._handshake.session
        if session is not None:
            self._reader.authenticate(session.incoming, FRAME_BYTES_MAX)
            self._session = session
            if not self._opened.done():
                self._opened.set_result(None)

    def _on_body(self, body: bytes) -> None:
        try:
            message = self._codec.decode(body)
        except UnknownMessageError as error:
            if self._unknown.is_new(error.tag):
                facts.warn("message_unknown", f"from the coordinator: {error}", tag=error.tag)
            return
        if isinstance(message, Refused):
            self._reason = message.reason
        elif isinstance(message, NotUnderstood):
            if self._unknown.is_new(-message.unknown):
                facts.warn(
                    "message_unknown",
                    f"the coordinator does not know messages with tag {message.unknown}: "
                    "install the same holdfast version on every node",
                    tag=message.unknown,
                )
        else:
            self._on_message(message)

    def _end(self, error: Exception) -> None:
        """End the connection for something that the other side did, and tell it, so that both logs name the reason."""
        self._reason = str(error)
        if not self._opened.done():
            self._opened.set_exception(error)
        if self._transport is not None:
            if isinstance(error, FrameError):
                self.send(Refused(str(error)))  # type: ignore[arg-type]
            self._transport.close()
