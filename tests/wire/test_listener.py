"""The listener: where it listens, how it ends, and the clients of both kinds that talk to it."""

import asyncio
import queue
import socket
import threading
import time

import pytest

from holdfast.coordinator.messages import CODEC, Query, Report
from holdfast.errors import ConnectionLostError, HandshakeError, UnavailableError, UsageError
from holdfast.wire.address import Endpoint
from holdfast.wire.channel import Channel
from holdfast.wire.handshake import Challenge
from holdfast.wire.link import Link
from holdfast.wire.listener import Listener
from holdfast.wire.loop import io_thread, new_loop
from holdfast.wire.ports import HeldPort
from tests.processes import free_port

PATIENCE_S = 240.0


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")


def ask(endpoint, secret):
    channel = Channel.connect(endpoint, CODEC, secret, timeout_s=PATIENCE_S)
    try:
        return channel.ask(Query(), time.monotonic() + PATIENCE_S)
    finally:
        channel.close()


def link(endpoint, secret, on_message=lambda _: None, on_lost=lambda _: None):
    return io_thread().wait(Link.connect(endpoint, CODEC, secret, on_message, on_lost), PATIENCE_S)


def on_loop(function, *args):
    """Call a function on the background thread and return its result."""

    async def call():
        return function(*args)

    return io_thread().wait(call(), PATIENCE_S)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "", pytest.param("::1", marks=needs_ipv6), pytest.param("::", marks=needs_ipv6)]
)
def test_a_channel_and_a_link_are_served_wherever_the_coordinator_listens(serve, host):
    server = serve(endpoint=Endpoint(host, 0))
    reached = Endpoint({"": "127.0.0.1", "::": "::1"}.get(host, host), server.endpoint.port)
    heard = queue.SimpleQueue()

    assert ask(reached, server.secret) == Report([])
    connected = link(reached, server.secret, heard.put)
    on_loop(connected.send, Query())
    assert heard.get(timeout=PATIENCE_S) == Report([])
    assert connected.kind == "served"
    on_loop(connected.close)


@needs_ipv6
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_every_interface_means_both_families_on_one_port(serve, address):
    server = serve(endpoint=Endpoint("", 0))

    assert ask(Endpoint(address, server.endpoint.port), server.secret) == Report([])


def test_a_taken_port_says_what_to_do(serve):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"cannot listen on 127.0.0.1:{port}: .*port 0 takes any free one"):
            serve(endpoint=Endpoint("127.0.0.1", port))


def test_a_host_that_means_nothing_is_the_callers_mistake(serve):
    with pytest.raises(UsageError, match=r"cannot listen on no\.such\.host\.invalid:0"):
        serve(endpoint=Endpoint("no.such.host.invalid", 0))


def test_a_port_is_free_again_once_its_coordinator_is_closed(serve):
    first = serve()
    connected = link(first.endpoint, first.secret)
    first.close()
    second = serve(endpoint=first.endpoint)

    assert second.endpoint == first.endpoint
    on_loop(connected.close)


def test_a_link_hears_once_that_the_coordinator_has_stopped(serve):
    server = serve()
    lost = queue.SimpleQueue()
    link(server.endpoint, server.secret, on_lost=lost.put)
    server.close()

    assert "closed the connection" in lost.get(timeout=PATIENCE_S)
    assert lost.empty()


def test_a_link_that_was_closed_here_does_not_call_it_lost(serve):
    server = serve()
    lost = queue.SimpleQueue()
    connected = link(server.endpoint, server.secret, on_lost=lost.put)
    on_loop(connected.close)
    on_loop(connected.send, Query())
    assert ask(server.endpoint, server.secret) == Report([])

    assert lost.empty()


@pytest.mark.parametrize("secret", [b"", b"another one"])
def test_both_clients_say_why_the_secret_was_not_enough(serve, secret):
    server = serve()
    for connect in (ask, link):
        with pytest.raises(HandshakeError, match="--secret-file"):
            connect(server.endpoint, secret)


def test_both_clients_notice_a_coordinator_that_does_not_know_the_secret():
    """An impostor that lets everybody in has not proven anything."""
    from holdfast.wire.handshake import NONCE_BYTES, Welcome

    with socket.create_server(("127.0.0.1", 0)) as door:
        endpoint = Endpoint("127.0.0.1", door.getsockname()[1])

        def pretend(connect):
            async def lie(reader, writer):
                writer.write(CODEC.encode(Challenge(bytes(NONCE_BYTES), guarded=True)))
                await reader.read(4096)
                writer.write(CODEC.encode(Welcome(bytes(32), "served")))
                await reader.read(4096)
                writer.close()

            async def open_door():
                return await asyncio.start_server(lie, sock=door.dup())

            impostor = io_thread().wait(open_door(), PATIENCE_S)
            with pytest.raises(HandshakeError, match="did not prove the shared secret"):
                connect(endpoint, b"secret")
            on_loop(impostor.close)

        pretend(ask)
        pretend(link)


def test_both_clients_say_that_no_process_listens():
    endpoint = Endpoint("127.0.0.1", free_port())
    for connect in (ask, link):
        with pytest.raises(ConnectionLostError, match=f"cannot reach {endpoint}"):
            connect(endpoint, b"")


def test_a_client_does_not_wait_for_ever_for_a_silent_server():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        endpoint = Endpoint("127.0.0.1", mute.getsockname()[1])
        with pytest.raises(ConnectionLostError):
            Channel.connect(endpoint, CODEC, b"", timeout_s=0.05)
        with pytest.raises(ConnectionLostError, match=r"did not answer within 0\.05 s"):
            io_thread().wait(
                Link.connect(endpoint, CODEC, b"", lambda _: None, lambda _: None, timeout_s=0.05), PATIENCE_S
            )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_of_several_processes_that_want_one_port_at_once_exactly_one_has_it(host):
    """All of them can bind it: only who listens first has it, and the others are told."""

    def try_open(start, port, done):
        async def work():
            listener = Listener(NoService(), CODEC, b"")
            start.wait()
            try:
                await listener.open(Endpoint(host, port))
            except UnavailableError:
                return False
            start.wait()  # until the others have tried
            await listener.close()
            return True

        loop = new_loop()
        try:
            won = loop.run_until_complete(work())
        finally:
            loop.close()
        if not won:
            start.wait()
        done.append(won)

    for _ in range(30):
        held = HeldPort()
        start, done = threading.Barrier(4), []
        threads = [threading.Thread(target=try_open, args=(start, held.port, done)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        held.close()
        assert sorted(done) == [False, False, False, True]


class NoService:
    """Serves no client."""
