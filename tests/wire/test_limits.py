"""Connections that prove nothing: they hold little, for a short time, and never take what proven ones need."""

import asyncio
import contextlib
import errno
import queue
import resource
import signal
import socket
import ssl
import subprocess
import sys
import time

import pytest

from holdfast.coordinator.messages import CODEC, Query, Report
from holdfast.facts import facts
from holdfast.wire import descriptors
from holdfast.wire.address import Endpoint
from holdfast.wire.channel import Channel
from holdfast.wire.handshake import Refused
from holdfast.wire.listener import Limits, Listener
from holdfast.wire.tls import TlsFiles
from tests.processes import finish
from tests.wire.test_tls import Authority

PATIENCE_S = 240.0


@pytest.mark.parametrize(
    ("limit", "share", "connections"),
    [
        (64, 1.0, descriptors.CONNECTIONS_MIN),
        (256, 1.0, 128),
        (1024, 1.0, 768),
        (1024, 0.75, 576),
        (1024, 0.25, 192),
        (4096, 1.0, 3072),
        (1 << 20, 0.75, descriptors.CONNECTIONS_MAX),
    ],
)
def test_connections_leave_descriptors_for_all_else(limit, share, connections):
    assert descriptors.connections_within(limit, share) == connections


def test_the_oldest_connection_that_has_proven_nothing_makes_room(serve, raw_peer, start_job):
    server = serve(Limits(connections_max=6))
    job = start_job(server)  # two proven connections
    silent = [raw_peer(server.endpoint) for _ in range(4)]
    for gone in silent:
        newcomer = raw_peer(server.endpoint).proven()
        assert gone.hear() == Refused("too many connections are being opened; try again", again=True)
        assert gone.hear() is None
        newcomer.socket.close()
        newcomer = raw_peer(server.endpoint)  # takes the place of the one that left

    job.assert_undisturbed()


def test_a_crowd_that_proves_nothing_is_thinned_out_before_its_time_is_up(serve, raw_peer):
    server = serve(Limits(unproven_max=3, unproven_grace_s=0.05, handshake_timeout_s=10 * PATIENCE_S))
    silent = [raw_peer(server.endpoint) for _ in range(10)]

    for gone in silent[:7]:
        assert gone.hear() == Refused("no handshake within 0.05 s", again=True)
    for kept in silent[7:]:
        assert kept.proven().session is not None


def test_a_flood_of_refusals_leaves_few_facts(serve):
    server = serve()
    told = queue.SimpleQueue()
    stop = facts.listen(told.put)
    for _ in range(500):
        with socket.create_connection((server.endpoint.host, server.endpoint.port), timeout=PATIENCE_S) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                while sock.recv(4096):
                    pass
    server.close()
    stop()
    kinds = []
    while not told.empty():
        kinds.append(told.get())

    assert [fact.kind for fact in kinds].count("connection_refused") == 3
    [summary] = [fact for fact in kinds if fact.kind == "connections_refused"]
    assert summary.data["count"] == 497
    assert "refused 497 more connections from 127.0.0.1" in summary.sentence
    assert len(kinds) < 10


# -- connections inside the TLS handshake, and both kinds of loop ---------------------------------------------------


class Deaf:
    """Serves no client."""

    def opened(self, peer):
        pass

    def received(self, peer, message):
        pass

    def closed(self, peer, reason):
        pass


def loops():
    kinds = [asyncio.new_event_loop]
    with contextlib.suppress(ImportError):
        import uvloop

        kinds.append(uvloop.new_event_loop)
    return kinds


@pytest.fixture(params=loops(), ids=lambda kind: kind.__module__.partition(".")[0])
def loop(request):
    loop = request.param()
    yield loop
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "limits")


async def read_to_end(reader, writer):
    data = b""
    with contextlib.suppress(ConnectionError):
        data = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    return data


def test_connections_inside_the_tls_handshake_count_and_the_oldest_goes_first(loop, authority):
    async def work():
        listener = Listener(Deaf(), CODEC, b"", Limits(connections_max=5))
        opened = await listener.open(Endpoint("127.0.0.1", 0), TlsFiles(authority.cert, authority.key).server_context())
        mute = [await asyncio.open_connection("127.0.0.1", opened.port) for _ in range(12)]
        for reader, writer in mute[:7]:
            assert await read_to_end(reader, writer) == b""
        assert len(listener._unproven) == 5
        context = TlsFiles(ca=authority.ca).client_context()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", opened.port, ssl=context, server_hostname="localhost"
        )
        assert (await asyncio.wait_for(reader.readexactly(2), PATIENCE_S)) == b"HF"
        for _, each in [*mute[7:], (reader, writer)]:
            each.close()
        await listener.close()
        assert not listener._unproven

    loop.run_until_complete(asyncio.wait_for(work(), 2 * PATIENCE_S))


def test_tls_that_fails_is_reported_and_leaves_nothing(loop, authority):
    told = queue.SimpleQueue()
    stop = facts.listen(told.put)

    async def work():
        listener = Listener(Deaf(), CODEC, b"")
        opened = await listener.open(Endpoint("127.0.0.1", 0), TlsFiles(authority.cert, authority.key).server_context())
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.port)
        writer.write(b"this is no TLS" * 10)
        await read_to_end(reader, writer)
        while told.empty():
            await asyncio.sleep(0.01)
        assert not listener._unproven
        await listener.close()

    loop.run_until_complete(asyncio.wait_for(work(), PATIENCE_S))
    stop()

    assert "TLS failed" in told.get().sentence


def test_a_connection_that_is_dropped_before_it_is_open_is_closed(loop):
    async def work():
        listener = Listener(Deaf(), CODEC, b"", Limits(connections_max=1))
        opened = await listener.open(Endpoint("127.0.0.1", 0))
        socks = []
        for _ in range(5):  # they all are in the queue before the listener looks at the first
            sock = socket.create_connection(("127.0.0.1", opened.port), timeout=PATIENCE_S)
            sock.setblocking(False)
            socks.append(sock)
        for sock in socks[:-1]:
            while await asyncio.wait_for(loop.sock_recv(sock, 4096), PATIENCE_S):
                pass
        assert (await asyncio.wait_for(loop.sock_recv(socks[-1], 2), PATIENCE_S)) == b"HF"
        for sock in socks:
            sock.close()
        await listener.close()

    loop.run_until_complete(asyncio.wait_for(work(), 2 * PATIENCE_S))


def test_a_listener_without_descriptors_waits_and_goes_on(loop):
    """The connection stays in the kernel's queue; nothing spins, and it is served once there is room."""

    class Starved(Listener):
        tries = 0

        def _accept(self, sock):
            Starved.tries += 1
            if Starved.tries <= 3:
                self._pause(sock, OSError(errno.EMFILE, "Too many open files"))
            else:
                super()._accept(sock)

    told = queue.SimpleQueue()
    stop = facts.listen(told.put)

    async def work():
        listener = Starved(Deaf(), CODEC, b"")
        opened = await listener.open(Endpoint("127.0.0.1", 0))
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.port)
        assert (await asyncio.wait_for(reader.readexactly(2), PATIENCE_S)) == b"HF"
        writer.close()
        await listener.close()

    loop.run_until_complete(asyncio.wait_for(work(), PATIENCE_S))
    stop()

    assert Starved.tries == 4
    assert [told.get().kind for _ in range(told.qsize())] == ["accept_paused"]


# -- processes with a low limit on open files -----------------------------------------------------------------------

#: Takes all descriptors of its process but a few, and serves.
STARVED = """
import asyncio, os, resource, sys
from holdfast.coordinator.driver import Coordinator
from holdfast.wire.address import Endpoint
from holdfast.wire.loop import new_loop

async def main():
    coordinator = Coordinator(b"secret")
    opened = await coordinator.open(Endpoint("127.0.0.1", 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 3, hard))
    print(opened.port, flush=True)
    await asyncio.sleep(600)

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
new_loop().run_until_complete(main())
"""


def test_a_process_that_runs_out_of_descriptors_serves_again_once_there_are_some():
    """Real EMFILE: the limit falls below what the listener counts on."""
    with subprocess.Popen(
        [sys.executable, "-c", STARVED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            port = int(process.stdout.readline())
            crowd = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(30)]
            lines = [process.stderr.readline()]
            while "cannot accept connections for now: Too many open files" not in lines[-1]:
                assert lines[-1].startswith("refused 127.0.0.1: too many connections are being opened")
                lines.append(process.stderr.readline())
            for sock in crowd:
                sock.close()
            channel = Channel.connect(Endpoint("127.0.0.1", port), CODEC, b"secret", timeout_s=PATIENCE_S)
            assert channel.ask(Query(), time.monotonic() + PATIENCE_S) == Report([])
            channel.close()
        finally:
            process.send_signal(signal.SIGTERM)
            _, complaints = finish(process)

    assert "cannot accept" not in complaints
    assert "Traceback" not in complaints


RAISED = """
import os, resource, subprocess, sys
from holdfast.wire.descriptors import raise_limit
soft = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]
print(soft(), raise_limit(), soft(), raise_limit())
sys.stdout.flush()
if os.fork() == 0:
    print(soft(), flush=True)
    os._exit(0)
os.wait()
subprocess.run(["/bin/sh", "-c", "ulimit -n"], preexec_fn=lambda: None, check=True)
"""


def test_the_limit_is_raised_for_this_process_and_restored_in_its_children():
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 4000)
    done = subprocess.run(
        [
            "/bin/sh",
            "-c",
            f'ulimit -S -n 200; ulimit -H -n {hard}; exec "$0" -W ignore -c "$1"',
            sys.executable,
            RAISED,
        ],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["200", str(hard), str(hard), str(hard), "200", "200"]


def test_a_context_for_tls_is_what_the_listener_gets(authority):
    """The tests above mean something only if the context asks for TLS."""
    assert isinstance(TlsFiles(authority.cert, authority.key).server_context(), ssl.SSLContext)
