"""The link: one client connection on the event loop, from connect to close. Reconnecting is its owner's decision."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.errors import ConnectionLost, FrameError, HandshakeError
from holdfast.wire.address import Endpoint
from holdfast.wire.forks import keep_transport, let_go
from holdfast.wire.frames import FRAME_BYTES_MAX, Codec, FrameReader, Message
from holdfast.wire.handshake import NONCE_BYTES, Challenge, Proof, Refused, Welcome, prove, verify
from holdfast.wire.silence import end_when_unacknowledged

M = TypeVar("M", bound=Message)


class Link(asyncio.Protocol, Generic[M]):
    """A proven connection to a coordinator.

    `on_message` is called for every message, `on_lost` exactly once when the connection ends after it was open.
    """

    def __init__(
        self,
        codec: Codec[M],
        secret: bytes,
        on_message: Callable[[M], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._codec = codec
        self._secret = secret
        self._on_message = on_message
        self._on_lost = on_lost
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self._challenge: Challenge | None = None
        self._proof: Proof | None = None
        self._opened: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self._reason = "the coordinator closed the connection"
        #: This side's address, by which it reaches the coordinator.
        self.local_address = ""
        #: What kind of server answered.
        self.kind = ""

    @classmethod
    async def connect(
        cls,
        endpoint: Endpoint,
        codec: Codec[M],
        secret: bytes,
        on_message: Callable[[M], None],
        on_lost: Callable[[str], None],
        *,
        timeout_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
    ) -> Link[M]:
        """Connect and hold the handshake; raises `ConnectionLost` or `HandshakeError` with the reason."""
        loop = asyncio.get_running_loop()
        link = cls(codec, secret, on_message, on_lost)
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(
                    lambda: link,
                    endpoint.host,
                    endpoint.port,
                    ssl=tls,
                    server_hostname=endpoint.host if tls else None,
                )
                link.kind = (await link._opened).kind
        except TimeoutError:
            link.close("it took too long")
            raise ConnectionLost(f"{endpoint} did not answer within {timeout_s:g} s") from None
        except ssl.SSLError as error:
            raise HandshakeError(f"TLS with {endpoint} failed: {error.reason or error}") from None
        except OSError as error:
            link.close("it could not be opened")
            raise ConnectionLost(f"cannot reach {endpoint}: {error.strerror or error}") from None
        except BaseException:
            link.close("the caller gave up")
            raise
        return link

    def send(self, message: M) -> None:
        """Send one message; does nothing when the connection is gone, which `on_lost` tells."""
        if self._transport is not None:
            self._transport.write(self._codec.encode(message))

    def close(self, reason: str = "closed by this side") -> None:
        """End the connection after what was sent is out; `on_lost` is not called."""
        self._on_lost = lambda _: None
        self._reason = reason
        if self._transport is not None:
            self._transport.close()

    # -- called by the loop ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note our own address and wait for the challenge."""
        self._transport = transport  # type: ignore[assignment]
        self._descriptor = keep_transport(transport)
        end_when_unacknowledged(transport)
        sockname = transport.get_extra_info("sockname")
        self.local_address = sockname[0] if sockname else ""

    def data_received(self, data: bytes) -> None:
        """Cut frames, hold the handshake, hand messages on."""
        try:
            for body in self._reader.feed(data):
                message = self._codec.decode(body)
                if self._opened.done():
                    self._on_open_message(message)
                else:
                    self._shake(message)
        except (FrameError, HandshakeError) as error:
            self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the owner, once."""
        let_go(self._descriptor)
        self._transport = None
        reason = f"the connection broke ({error})" if error else self._reason
        if not self._opened.done():
            self._opened.set_exception(ConnectionLost(reason))
        elif not self._opened.cancelled() and self._opened.exception() is None:
            self._on_lost(reason)

    def _shake(self, message: Message) -> None:
        if self._challenge is None and isinstance(message, Challenge):
            self._challenge = message
            self._proof = prove(self._secret, message, secrets.token_bytes(NONCE_BYTES))
            self.send(self._proof)  # type: ignore[arg-type]
        elif self._proof is not None and self._challenge is not None:
            self._opened.set_result(verify(self._secret, self._challenge, self._proof, message))
        elif isinstance(message, Refused):
            raise HandshakeError(message.reason)
        else:
            raise HandshakeError(f"expected a challenge, got {type(message).__name__}")

    def _on_open_message(self, message: M) -> None:
        if isinstance(message, Refused):
            self._reason = message.reason
            return
        self._on_message(message)

    def _end(self, error: Exception) -> None:
        self._reason = str(error)
        if not self._opened.done():
            self._opened.set_exception(error)
        if self._transport is not None:
            self._transport.abort()
