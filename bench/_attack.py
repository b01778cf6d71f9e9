"""One sender of garbage: a connection for every piece, blocking sockets, loopback only."""

from __future__ import annotations

import collections
import secrets
import socket
from typing import Any

from bench._capture import SERVER_PLAIN, bodies_in
from bench._mill import UNSEALED, Mill
from holdfast.coordinator.messages import CODEC
from holdfast.wire.address import Endpoint
from holdfast.wire.frames import FrameReader
from holdfast.wire.handshake import NONCE_BYTES, Challenge, ClientHandshake, Purpose, Refused

TIMEOUT_S = 20.0
CHUNK_BYTES = 64 * 1024
#: Half frames that are left open at a time; the oldest makes room.
OPEN_MAX = 100


class Attacker:
    """Sends pieces of garbage to a coordinator and counts what became of each."""

    def __init__(self, endpoint: Endpoint, secret: bytes, mill: Mill) -> None:
        self._endpoint = endpoint
        self._secret = secret
        self._mill = mill
        self._open: collections.deque[socket.socket] = collections.deque()
        self._sent = 0
        #: By stage and kind: how often the coordinator refused, answered, or just closed.
        self.outcomes: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.reasons: collections.Counter[str] = collections.Counter()

    def send_one(self) -> None:
        """Send one piece on a connection of its own."""
        proven = self._sent % 2 == 1
        self._sent += 1
        kinds = self._mill.proven if proven else self._mill.unproven
        kind = self._mill.choose(kinds)
        sock = self._connect()
        try:
            challenge = self._hear(sock)
            assert isinstance(challenge, Challenge)
            data = kinds[kind](challenge)
            if proven:
                handshake = ClientHandshake(self._secret, Purpose(CODEC.service), secrets.token_bytes(NONCE_BYTES))
                sock.sendall(CODEC.encode(handshake.hear(challenge)))  # type: ignore[arg-type]
                assert handshake.hear(self._hear(sock)) is None
                if handshake.session is not None and kind not in UNSEALED:
                    # With a right code it comes as far as garbage of a proven peer can.
                    data += handshake.session.outgoing.mac(data)
            outcome = self._give(sock, data, proven=proven, leave_open="left open" in kind)
        except BaseException:
            sock.close()
            raise
        self.outcomes["proven" if proven else "unproven", kind][outcome] += 1

    def close(self) -> None:
        """Close what was left open."""
        while self._open:
            self._open.popleft().close()

    def _give(self, sock: socket.socket, data: bytes, *, proven: bool, leave_open: bool) -> str:
        if leave_open:
            sock.sendall(data)
            self._open.append(sock)
            if len(self._open) > OPEN_MAX:
                self._open.popleft().close()
            return "left open"
        answer = bytearray()
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while chunk := sock.recv(CHUNK_BYTES):
                answer += chunk
        except TimeoutError:
            raise
        except OSError:
            pass  # we were thrown out while we were still talking
        sock.close()
        # All that a proven peer is answered has a code; the two frames of the handshake were read before.
        plain = 0 if proven else SERVER_PLAIN - 1
        return self._judge([CODEC.decode(body) for body in bodies_in(bytes(answer), plain)])

    def _judge(self, messages: list[Any]) -> str:
        if not messages:
            return "closed"
        if isinstance(messages[-1], Refused):
            self.reasons[messages[-1].reason] += 1
            return "refused"
        return "answered"

    def _connect(self) -> socket.socket:
        # Each closed connection keeps its pair of ports for a minute; a whole network of addresses does not run out.
        source = f"127.0.{self._sent % 250 + 1}.1"
        return socket.create_connection(
            (self._endpoint.host, self._endpoint.port), timeout=TIMEOUT_S, source_address=(source, 0)
        )

    def _hear(self, sock: socket.socket) -> Any:
        reader = FrameReader()
        while True:
            data = sock.recv(CHUNK_BYTES)
            if not data:
                raise ConnectionError("the coordinator closed the connection before a word")
            if bodies := reader.feed(data):
                return CODEC.decode(bodies[0])
