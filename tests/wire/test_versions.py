"""Sides of different versions: another protocol is named as such, and an unknown message costs nothing but itself."""

import queue
import socket
import threading
import time

import msgspec
import pytest

from holdfast.coordinator.messages import CODEC, Query, Report
from holdfast.errors import FrameError, PeerError, UnknownMessageError
from holdfast.facts import facts
from holdfast.rendezvous import RendezvousParameters, get_rendezvous_handler
from holdfast.wire.address import Endpoint
from holdfast.wire.channel import Channel
from holdfast.wire.frames import PROTOCOL_VERSION, UnknownTags
from holdfast.wire.handshake import Challenge, NotUnderstood, Purpose, Refused, ServerHandshake
from holdfast.wire.link import Link
from holdfast.wire.loop import io_thread

PATIENCE_S = 240.0
FUTURE_TAG = 240
INSTALL = "install the same holdfast version on every node"


def frame_of(*values, version=PROTOCOL_VERSION):
    body = msgspec.msgpack.encode(values)
    return b"HF" + bytes([version, 0]) + len(body).to_bytes(4, "big") + body


@pytest.fixture
def told():
    """The facts that are published during a test."""
    found = queue.SimpleQueue()
    stop = facts.listen(found.put)
    yield found
    stop()


class OldCoordinator:
    """A port that greets like a coordinator of another version, and keeps what clients answer."""

    def __init__(self, version):
        self._door = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint("127.0.0.1", self._door.getsockname()[1])
        self.heard = queue.SimpleQueue()
        self._version = version
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._door.close()

    def _serve(self):
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            with client:
                client.sendall(frame_of(1, bytes(16), True, version=self._version))
                self.heard.put(client.recv(65536))


def connect_channel(endpoint):
    Channel.connect(endpoint, CODEC, b"secret", timeout_s=PATIENCE_S)


def connect_link(endpoint):
    io_thread().wait(Link.connect(endpoint, CODEC, b"secret", lambda _: None, lambda _: None), PATIENCE_S)


@pytest.mark.parametrize("connect", [connect_channel, connect_link])
@pytest.mark.parametrize("version", [1, 3])
def test_a_coordinator_of_another_version_is_named_and_hears_of_it(connect, version):
    with OldCoordinator(version) as old:
        with pytest.raises(FrameError, match=f"speaks protocol version {version}, this side 2: {INSTALL}"):
            connect(old.endpoint)

        # By the version in this header the other side can say the same in its own log.
        assert old.heard.get(timeout=PATIENCE_S)[:3] == b"HF\x02"


def test_a_node_whose_coordinator_has_another_version_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    with OldCoordinator(1) as old:
        handler = get_rendezvous_handler(
            RendezvousParameters("holdfast", str(old.endpoint), "run", 1, 1, is_host=False)
        )
        with pytest.raises(Exception, match=INSTALL):
            handler.next_rendezvous()
        handler.shutdown()


@pytest.mark.parametrize("version", [1, 3])
def test_a_node_of_another_version_is_told_what_to_install(serve, raw_peer, version):
    server = serve()
    old = raw_peer(server.endpoint)
    old.say_bytes(frame_of(2, bytes(16), bytes(32), version=version))

    refused = old.hear()
    assert isinstance(refused, Refused)
    assert f"speaks protocol version {version}, this side 2: {INSTALL}" in refused.reason
    assert server.next_refusal() == refused.reason


def test_an_unknown_message_of_a_proven_node_is_ignored_answered_and_reported_once(serve, raw_peer, told):
    server = serve()
    newer = raw_peer(server.endpoint).proven()
    for number in range(3):
        newer.say_sealed(frame_of(FUTURE_TAG, number, {"of": "a later version"}))
    newer.say(Query())

    assert [newer.hear() for _ in range(4)] == [NotUnderstood(FUTURE_TAG)] * 3 + [Report([])]
    unknown = [fact for fact in drain(told) if fact.kind == "message_unknown"]
    assert [fact.data["tag"] for fact in unknown] == [FUTURE_TAG]


def test_an_unknown_message_before_the_proof_is_refused(serve, raw_peer):
    server = serve()
    early = raw_peer(server.endpoint)
    early.say_bytes(frame_of(FUTURE_TAG))

    assert isinstance(early.hear(), Refused)
    assert f"tag {FUTURE_TAG}" in server.next_refusal()


class NewerCoordinator:
    """A coordinator that says things which this version does not know, between those that it does."""

    def __init__(self):
        self._door = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint("127.0.0.1", self._door.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._door.close()

    def _serve(self):
        client, _ = self._door.accept()
        with client:
            handshake = ServerHandshake(b"secret", Purpose("coordinator", port=self.endpoint.port), bytes(16), "served")
            client.sendall(CODEC.encode(handshake.challenge))
            welcome = handshake.hear(CODEC.decode(client.recv(65536)[8:]))
            # The first words of the session come together with the end of the handshake.
            stream = CODEC.encode(welcome)
            for frame in (frame_of(FUTURE_TAG), frame_of(FUTURE_TAG, 2), CODEC.encode(Report([]))):
                stream += frame + handshake.session.outgoing.mac(frame)
            client.sendall(stream)
            client.recv(65536)
            frame = CODEC.encode(NotUnderstood(FUTURE_TAG))
            client.sendall(frame + handshake.session.outgoing.mac(frame))
            client.recv(65536)


def test_a_channel_passes_over_what_it_does_not_know_and_is_told_what_the_other_side_does_not(told):
    with NewerCoordinator() as newer:
        channel = Channel.connect(newer.endpoint, CODEC, b"secret", timeout_s=PATIENCE_S)
        assert channel.receive(time.monotonic() + PATIENCE_S) == Report([])
        with pytest.raises(PeerError, match=f"does not know messages with tag {FUTURE_TAG}: {INSTALL}"):
            channel.ask(Query(), time.monotonic() + PATIENCE_S)
        channel.close()

    assert [fact.kind for fact in drain(told)].count("message_unknown") == 1


def test_a_link_passes_over_what_it_does_not_know_and_stays_open(told):
    heard, lost = queue.SimpleQueue(), queue.SimpleQueue()

    async def say():
        link.send(Query())

    with NewerCoordinator() as newer:
        link = io_thread().wait(Link.connect(newer.endpoint, CODEC, b"secret", heard.put, lost.put), PATIENCE_S)
        assert heard.get(timeout=PATIENCE_S) == Report([])
        io_thread().wait(say(), PATIENCE_S)
        kinds = []
        while kinds.count("message_unknown") < 2:  # what it did not know, and what the other side does not
            kinds.append(told.get(timeout=PATIENCE_S).kind)
        assert lost.empty()

        async def close():
            link.close()

        io_thread().wait(close(), PATIENCE_S)


def test_an_unknown_tag_is_told_from_a_broken_message():
    with pytest.raises(UnknownMessageError) as unknown:
        CODEC.decode(frame_of(FUTURE_TAG, "anything")[8:])
    assert unknown.value.tag == FUTURE_TAG
    for body in (frame_of(1, "text where bytes belong")[8:], frame_of("240")[8:], frame_of()[8:], b"\xc1"):
        with pytest.raises(FrameError) as broken:
            CODEC.decode(body)
        assert not isinstance(broken.value, UnknownMessageError)
    assert CODEC.decode(frame_of(1, bytes(16), True, False, "of a later version")[8:]) == Challenge(bytes(16), True)


def test_reports_of_unknown_tags_are_bounded():
    tags = UnknownTags()

    assert sum(tags.is_new(tag) for tag in range(1000)) == UnknownTags.TAGS_MAX


def drain(facts_told):
    found = []
    while not facts_told.empty():
        found.append(facts_told.get())
    return found
