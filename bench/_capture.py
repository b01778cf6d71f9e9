"""Real frames of real sessions, taken down by a relay between handlers and a coordinator."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Any

from holdfast.coordinator.messages import CODEC, Beat, Cause
from holdfast.coordinator.query import ask_coordinator
from holdfast.rendezvous import RendezvousParameters, get_rendezvous_handler
from holdfast.wire.address import Endpoint
from holdfast.wire.frames import FRAME_BYTES_MAX, Codec, FrameReader, Message
from holdfast.wire.session import KEY_BYTES, Seal

CHUNK_BYTES = 64 * 1024
PATIENCE_S = 30.0
#: The run that the captured frames belong to; garbage made of them never names another one that exists.
CAPTURED_RUN = "captured"
#: Frames of a handshake, which have no authentication code: the proof; the challenge and the welcome.
CLIENT_PLAIN, SERVER_PLAIN = 1, 2


class _Unchecked(Seal):
    """Believes every code."""

    def check(self, frame: bytes | memoryview, mac: bytes | memoryview) -> None:
        """Say nothing."""


def bodies_in(stream: bytes, plain: int) -> list[bytes]:
    """Return the bodies of all whole frames of one direction, of which the first `plain` have no code."""
    reader = FrameReader(stepwise=True)
    bodies: list[bytes] = []
    for _ in range(plain):
        bodies += reader.feed(stream)
        stream = b""
    reader.authenticate(_Unchecked(bytes(KEY_BYTES)), FRAME_BYTES_MAX)
    return bodies + reader.feed(stream)


class Relay:
    """A port that hands everything on to a coordinator and keeps a copy, from entering the context to leaving it.

    It has the coordinator's port on another loopback address: a client that reaches another port than it dialled is
    refused. It cannot check the codes behind the frames, nor make any.
    """

    def __init__(self, target: Endpoint) -> None:
        self._target = target
        self._sockets: list[socket.socket] = []
        self._changed = threading.Condition()
        #: What was said on each connection, one stream for each direction, and how many of its frames have no code.
        self._streams: list[tuple[bytearray, int]] = []

    def __enter__(self) -> Relay:
        self._door = socket.create_server(("127.0.0.2", self._target.port))
        self.endpoint = Endpoint("127.0.0.2", self._target.port)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sock in [self._door, *self._sockets]:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other side was first
            sock.close()

    def wait_for(self, codec: Codec[Message], kind: type[Message]) -> None:
        """Wait until a client has said a message of this kind."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._has(codec, kind), PATIENCE_S), f"no node sends {kind.__name__}"

    def bodies(self) -> list[bytes]:
        """Return the bodies of all whole frames so far."""
        with self._changed:
            return [body for stream, plain in self._streams for body in bodies_in(bytes(stream), plain)]

    def _has(self, codec: Codec[Message], kind: type[Message]) -> bool:
        return any(isinstance(codec.decode(body), kind) for body in self.bodies())

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return  # the relay was closed
            far = socket.create_connection((self._target.host, self._target.port))
            self._sockets += [near, far]
            for source, target, plain in ((near, far, CLIENT_PLAIN), (far, near, SERVER_PLAIN)):
                stream = bytearray()
                self._streams.append((stream, plain))
                threading.Thread(target=self._copy, args=(source, target, stream), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, stream: bytearray) -> None:
        try:
            while data := source.recv(CHUNK_BYTES):
                with self._changed:
                    stream += data
                    self._changed.notify_all()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # one side is gone, and the other will hear of it


def capture(endpoint: Endpoint, secret: bytes, secret_file: str) -> list[bytes]:
    """Play a small run through a relay and return the bodies of all frames, said by both sides."""
    with Relay(endpoint) as relay:
        handlers: list[Any] = [
            get_rendezvous_handler(
                RendezvousParameters(
                    "holdfast",
                    str(relay.endpoint),
                    CAPTURED_RUN,
                    2,
                    2,
                    is_host=False,
                    secret_file=secret_file,
                    lease="150ms",
                    max_restarts=2,
                )
            )
            for _ in range(2)
        ]
        _together(handlers).close()
        ask_coordinator(relay.endpoint, secret)
        handlers[0].fail(Cause("a worker died", detail={"exit_code": 1}))
        store = _together(handlers)
        store.set("key", "value")
        store.multi_set(["a", "b"], [b"1", b"2"])
        store.get("key")
        store.multi_get(["a", "b"])
        store.add("count", 1)
        store.compare_set("key", "value", "other")
        store.append("key", "more")
        store.check(["key"])
        store.wait(["key"])
        store.num_keys()
        store.delete_key("key")
        relay.wait_for(CODEC, Beat)
        handlers[1].finish()
        for handler in handlers:
            handler.leave("captured")
        store.close()
        return list(dict.fromkeys(relay.bodies()))


def _together(handlers: list[Any]) -> Any:
    """Have the handlers agree on a round; returns the store of the first."""
    infos: list[Any] = [None] * len(handlers)

    def take_part(number: int) -> None:
        infos[number] = handlers[number].next_rendezvous()

    threads = [threading.Thread(target=take_part, args=(number,)) for number in range(len(handlers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for info in infos[1:]:
        info.store.close()
    return infos[0].store
