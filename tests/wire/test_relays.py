"""Programs between a client and its coordinator: they can pass bytes on or cut them off, and nothing else."""

import contextlib
import queue
import socket
import threading
import time

import pytest

from holdfast.coordinator.messages import CODEC, Query, Report
from holdfast.errors import ConnectionLostError, FrameError, HandshakeError
from holdfast.store.client import StoreClient
from holdfast.store.messages import STORE_CODEC, StoreDone, StoreHello, StoreSet, StoreWelcome
from holdfast.wire.address import Endpoint
from holdfast.wire.channel import Channel
from holdfast.wire.frames import HEADER_BYTES
from holdfast.wire.link import Link
from holdfast.wire.loop import io_thread
from holdfast.wire.session import MAC_BYTES

PATIENCE_S = 240.0
CHANGED = "authentication code is wrong"


class Relay:
    """Passes bytes between clients and a coordinator; a test decides what becomes of each frame.

    `on_frame(number, direction, frame)` is given every whole frame after the handshake, with its code, and returns the
    bytes that are passed on; None ends the connection.
    """

    def __init__(self, target, on_frame=lambda number, direction, frame: frame, *, host="127.0.0.2", port=None):
        # The coordinator's own port on another loopback address: clients bind the port that they dial.
        self._door = socket.create_server((host, target.port if port is None else port))
        self.endpoint = Endpoint(host, self._door.getsockname()[1])
        self._target = target
        self._on_frame = on_frame
        self._sockets = [self._door]
        self.frames = queue.SimpleQueue()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self):
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            far = socket.create_connection((self._target.host, self._target.port))
            self._sockets += [near, far]
            for source, sink, direction, plain in ((near, far, "up", 1), (far, near, "down", 2)):
                threading.Thread(target=self._pass_on, args=(source, sink, direction, plain), daemon=True).start()

    def _pass_on(self, source, sink, direction, plain):
        stream, number = b"", -plain
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                stream += data
                while (frame := whole_frame(stream, sealed=number >= 0)) is not None:
                    stream = stream[len(frame) :]
                    if number >= 0:
                        self.frames.put((direction, frame))
                        frame = self._on_frame(number, direction, frame)
                    number += 1
                    if frame is None:
                        break
                    sink.sendall(frame)
                else:
                    continue
                break
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def whole_frame(stream, *, sealed):
    if len(stream) < HEADER_BYTES:
        return None
    length = HEADER_BYTES + int.from_bytes(stream[4:8], "big") + (MAC_BYTES if sealed else 0)
    return stream[:length] if len(stream) >= length else None


def on_loop(function, *args):
    async def call():
        return function(*args)

    return io_thread().wait(call(), PATIENCE_S)


def ask(endpoint, secret, run=""):
    channel = Channel.connect(endpoint, CODEC, secret, run=run, timeout_s=PATIENCE_S)
    try:
        return channel.ask(Query(run), time.monotonic() + PATIENCE_S)
    finally:
        channel.close()


def link(endpoint, secret, on_message=lambda _: None, on_lost=lambda _: None):
    return io_thread().wait(Link.connect(endpoint, CODEC, secret, on_message, on_lost), PATIENCE_S)


def test_a_relay_that_only_passes_on_is_not_noticed(serve):
    """The other tests show something only if this one works."""
    server = serve()
    with Relay(server.endpoint) as relay:
        assert ask(relay.endpoint, server.secret) == Report([])


@pytest.mark.parametrize("connect", [ask, link])
def test_a_relay_on_another_port_of_this_machine_is_refused(serve, connect):
    """A program that squats port 29400 cannot lead clients to the coordinator on its real port."""
    server = serve()
    with Relay(server.endpoint, host="127.0.0.1", port=0) as relay:
        with pytest.raises(HandshakeError, match=f"dialled port {relay.endpoint.port} of localhost and reached port"):
            connect(relay.endpoint, server.secret)
        assert "another program passes the connection on" in server.next_refusal()


def test_a_relay_that_takes_over_after_the_handshake_can_say_nothing(serve):
    """The client's handshake is genuine; what the relay then says in its name is not believed."""
    server = serve()
    forged = STORE_CODEC.encode(StoreSet(1, "space", "key", b"forged"))

    def take_over(number, direction, frame):
        return forged + bytes(MAC_BYTES) if (number, direction) == (0, "up") else frame

    with Relay(server.endpoint, take_over) as relay:
        channel = Channel.connect(relay.endpoint, STORE_CODEC, server.secret, timeout_s=PATIENCE_S)
        with pytest.raises(HandshakeError, match=CHANGED):
            channel.ask(StoreHello("victim"), time.monotonic() + PATIENCE_S)
        channel.close()

    assert CHANGED in server.next_refusal()


def test_a_changed_answer_ends_a_channel_and_both_sides_say_why(serve):
    server = serve()
    closed = queue.SimpleQueue()
    server.coordinator.closed = lambda _peer, reason: closed.put(reason)

    def change(_number, direction, frame):
        return frame if direction == "up" else bytes([*frame[:-1], frame[-1] ^ 1])

    with Relay(server.endpoint, change) as relay:
        with pytest.raises(FrameError, match=CHANGED):
            ask(relay.endpoint, server.secret)

        assert CHANGED in closed.get(timeout=PATIENCE_S)


def test_a_changed_message_ends_a_link_and_both_sides_say_why(serve):
    server = serve()
    heard, lost, closed = queue.SimpleQueue(), queue.SimpleQueue(), queue.SimpleQueue()
    server.coordinator.closed = lambda _peer, reason: closed.put(reason)

    def change(_number, direction, frame):
        return frame if direction == "up" else bytes([*frame[:-1], frame[-1] ^ 1])

    with Relay(server.endpoint, change) as relay:
        connected = link(relay.endpoint, server.secret, heard.put, lost.put)
        on_loop(connected.send, Query())

        assert CHANGED in lost.get(timeout=PATIENCE_S)
        assert CHANGED in closed.get(timeout=PATIENCE_S)
    assert heard.empty()


@pytest.mark.parametrize(
    ("name", "tamper"),
    [
        ("a replay", lambda number, direction, frame: frame + frame if direction == "up" else frame),
        ("a loss", lambda number, direction, frame: b"" if (number, direction) == (0, "up") else frame),
        ("a truncated code", lambda number, direction, frame: frame[:-1] if direction == "up" else frame),
    ],
)
def test_repeated_lost_and_shortened_messages_end_the_connection(serve, name, tamper):
    del name
    server = serve()
    with Relay(server.endpoint, tamper) as relay:
        channel = Channel.connect(relay.endpoint, CODEC, server.secret, timeout_s=PATIENCE_S)
        for _ in range(2):
            channel.send(Query())
        with pytest.raises(HandshakeError, match=CHANGED):
            receive_all(channel)
        channel.close()


def receive_all(channel):
    """Take the answers to what was in order before."""
    while True:
        assert channel.receive(time.monotonic() + PATIENCE_S) == Report([])


def test_a_message_that_is_sent_back_is_not_taken_for_an_answer(serve):
    server = serve()
    sent = []

    def reflect(_number, direction, frame):
        if direction == "up":
            sent.append(frame)
            return frame
        return sent[0]

    with Relay(server.endpoint, reflect) as relay, pytest.raises(FrameError, match=CHANGED):
        ask(relay.endpoint, server.secret)


def test_a_message_of_another_connection_is_not_believed(serve):
    """Each connection has keys of its own, though the secret is the same."""
    server = serve()
    seen = []

    def splice(_number, direction, frame):
        if direction == "up":
            seen.append(frame)
            return seen[0]
        return frame

    with Relay(server.endpoint, splice) as relay:
        assert ask(relay.endpoint, server.secret) == Report([])
        with pytest.raises(HandshakeError, match=CHANGED):
            ask(relay.endpoint, server.secret)


@pytest.mark.parametrize("end", [-1, -MAC_BYTES, HEADER_BYTES, HEADER_BYTES - 1, 0])
def test_a_connection_that_is_cut_is_never_taken_for_an_answer(serve, end):
    server = serve()

    def cut(number, direction, frame):
        if direction == "up":
            return frame
        return frame[:end] if number == 0 else None

    with Relay(server.endpoint, cut) as relay:
        channel = Channel.connect(relay.endpoint, CODEC, server.secret, timeout_s=PATIENCE_S)
        channel.send(Query())
        channel.send(Query())  # the second answer ends the connection
        middle = " in the middle of a message" if end else "$"
        with pytest.raises(ConnectionLostError, match=f"closed the connection{middle}"):
            channel.receive(time.monotonic() + PATIENCE_S)
        channel.close()


def test_what_was_set_before_a_forgery_stands_and_the_forgery_does_not(serve):
    server = serve()

    def forge(number, direction, frame):
        if (number, direction) != (2, "up"):
            return frame
        return STORE_CODEC.encode(StoreSet(2, "space", "key", b"forged")) + frame[-MAC_BYTES:]

    with Relay(server.endpoint, forge) as relay:
        channel = Channel.connect(relay.endpoint, STORE_CODEC, server.secret, timeout_s=PATIENCE_S)
        until = time.monotonic() + PATIENCE_S
        assert isinstance(channel.ask(StoreHello("client"), until), StoreWelcome)
        assert isinstance(channel.ask(StoreSet(1, "space", "key", b"genuine"), until), StoreDone)
        with pytest.raises(HandshakeError, match=CHANGED):
            channel.ask(StoreSet(2, "space", "key", b"second!"), until)
        channel.close()
    with StoreClient.connect(server.endpoint, "space", secret=server.secret) as store:
        assert store.get("key") == b"genuine"
