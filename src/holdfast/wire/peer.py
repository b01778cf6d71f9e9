"""The peer: one accepted connection, from its first byte to its end."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.errors import FrameError, UnknownMessageError
from holdfast.wire.frames import HELLO_BYTES_MAX, FrameReader, Message
from holdfast.wire.gmac import find_gmac
from holdfast.wire.handshake import (
    NONCE_BYTES,
    REASON_CHARACTERS_MAX,
    NotUnderstood,
    Purpose,
    Refused,
    ServerHandshake,
)
from holdfast.wire.session import Seal
from holdfast.wire.silence import end_when_unacknowledged

if TYPE_CHECKING:
    import socket

    from holdfast.wire.listener import Listener

M = TypeVar("M", bound=Message)
#: A longer frame is handed to the loop beside its authentication code, not copied together with it.
_COPY_BYTES_MAX = 64 * 1024


class Peer(asyncio.Protocol, Generic[M]):
    """One accepted connection; a listener makes it as soon as the kernel hands the connection over."""

    __slots__ = (
        "_handshake",
        "_listener",
        "_reader",
        "_reason",
        "_seal",
        "_socket",
        "_transport",
        "address",
        "local_address",
        "opening",
        "session",
    )

    def __init__(self, listener: Listener[M], sock: socket.socket, address: str) -> None:
        self._listener = listener
        self._socket: socket.socket | None = sock
        self._reader = FrameReader(HELLO_BYTES_MAX, stepwise=True)
        self._handshake: ServerHandshake | None = None
        #: Authenticates what is sent; there once the peer has proven the secret.
        self._seal: Seal | None = None
        self._transport: asyncio.Transport | None = None
        self._reason = "the connection was closed by the other side"
        #: Makes the transport, with TLS where asked; None once there is one.
        self.opening: asyncio.Task[None] | None = None
        self.address = address
        self.local_address = ""
        #: Free for the service to hang its own state on.
        self.session: Any = None

    def __str__(self) -> str:
        return self.address or "an unknown address"

    @property
    def is_connected(self) -> bool:
        """Whether bytes can be sent."""
        return self._transport is not None

    @property
    def is_proven(self) -> bool:
        """Whether the peer has proven the secret."""
        return self._seal is not None

    def send(self, message: M) -> None:
        """Send one message; does nothing when the connection is gone."""
        self.send_frame(self._listener.codec.encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Send an encoded message, so that one message to many peers is encoded once and authenticated for each."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        seal = self._seal
        if seal is None:
            transport.write(frame)
        elif len(frame) <= _COPY_BYTES_MAX:
            transport.write(frame + seal.mac(frame))
        else:
            transport.writelines((frame, seal.mac(frame)))
        if transport.get_write_buffer_size() > self._listener.limits.pending_bytes_max:
            reason = "it does not read what it asked for"
            self._listener._complain(self, reason)
            self.drop(reason)

    def refuse(self, reason: str, *, again: bool = False, wrong_secret: bool = False) -> None:
        """Tell the peer why, then end the connection; `again` where it may come back later."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._reason = reason
            self.send(Refused(reason[:REASON_CHARACTERS_MAX], again, wrong_secret))  # type: ignore[arg-type]
            transport.close()

    def finish(self, reason: str) -> None:
        """End the connection once what was sent is out."""
        if self._transport is not None:
            self._reason = reason
            self._transport.close()

    def drop(self, reason: str) -> None:
        """End the connection at once."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    def release(self) -> None:
        """Close the socket of a connection that never got a transport."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # -- called by the loop ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the challenge."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        end_when_unacknowledged(transport)
        listener = self._listener
        sockname = transport.get_extra_info("sockname")
        self.local_address = sockname[0] if sockname else ""
        purpose = Purpose(listener.codec.service, listener.run, sockname[1] if sockname else 0)
        nonce = secrets.token_bytes(NONCE_BYTES)
        handshake = ServerHandshake(listener.secret, purpose, nonce, listener.kind, find_gmac())
        self._handshake = handshake
        self.send(handshake.challenge)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Cut frames, hold the handshake, hand on what a proven peer says."""
        try:
            bodies = self._reader.feed(data)
            if self._handshake is not None and bodies:
                self._shake(self._handshake, self._listener.codec.decode(bodies[0]))
                bodies = self._reader.feed(b"") if self.is_proven else []
            for body in bodies:
                if self._transport is None or self._transport.is_closing():
                    return
                try:
                    message = self._listener.codec.decode(body)
                except UnknownMessageError as error:
                    # A newer node may say what this version does not know: it is told so and keeps its connection.
                    self._listener._note_unknown(self, error)
                    self.send(NotUnderstood(error.tag))  # type: ignore[arg-type]
                    continue
                if isinstance(message, Refused):
                    self.finish(f"the other side ended the connection: {message.reason}")
                else:
                    self._listener.service.received(self, message)
        except FrameError as error:
            self._listener._complain(self, str(error))
            self.refuse(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the connection."""
        self._transport = None
        self._listener._forget(self)
        if self.is_proven:
            where = " in the middle of a message" if self._reader.is_midway else ""
            reason = f"the connection broke ({error})" if error else f"{self._reason}{where}"
            self._listener.service.closed(self, reason)

    def _shake(self, handshake: ServerHandshake, message: Message) -> None:
        answer = handshake.hear(message)
        if isinstance(answer, Refused):
            self._listener._complain(self, answer.reason)
            self.refuse(answer.reason, wrong_secret=answer.wrong_secret)
            return
        self.send(answer)  # type: ignore[arg-type]
        session = handshake.session
        assert session is not None
        self._handshake = None
        self._seal = session.outgoing
        self._reader.authenticate(session.incoming, self._listener.limits.frame_bytes_max)
        self._listener._admit(self)
        self._listener.service.opened(self)
