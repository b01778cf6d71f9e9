"""Slow and rude clients: they cost themselves their connection, and everybody else nothing."""

from __future__ import annotations

import contextlib
import http.client
import random
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest

from holdfast.health import HealthCheckServer, Limits
from tests.health.conftest import PATIENCE_S, ask, connect, read_all

Serve = Callable[..., HealthCheckServer]

#: A client that is too slow is refused soon.
HASTY = Limits(request_timeout_s=1.0, idle_timeout_s=1.0)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Allow as many open sockets as a crowd needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 8192:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def send_for_ever(client: socket.socket, data: bytes) -> None:
    """Send until the other side has had enough, which raises."""
    while True:
        client.sendall(data)


def test_a_connection_is_kept_for_many_requests(serve: Serve) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", serve().port, timeout=PATIENCE_S)
    sockets = set()
    with contextlib.closing(connection):
        for path in ("/healthz", "/nothing", "/status", "/healthz"):
            connection.request("GET", path)
            connection.getresponse().read()
            sockets.add(connection.sock)

    assert len(sockets) == 1
    assert None not in sockets


def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    server = serve(ready=lambda: (True, "in round 7"))
    paths = ["/healthz", "/readyz", "/nothing", "/readyz", "/healthz"] * 40
    with connect(server.port) as client:
        client.sendall(b"".join(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in paths))
        client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        answers = read_all(client).split(b"HTTP/1.1 ")[1:]

    statuses = [int(answer[:3]) for answer in answers]
    assert statuses == [404 if path == "/nothing" else 200 for path in paths] + [200]
    assert answers[-1].endswith(b"in round 7\n")


def test_a_flood_of_pipelined_requests_is_held_up_and_not_held(serve: Serve) -> None:
    server = serve()
    assert server._handle is not None
    process = psutil.Process(server._handle.pid)

    def flood(requests: int) -> int:
        """Send so many at once while another thread reads the answers; returns the most memory that was seen."""
        most = 0
        with connect(server.port) as client:
            sender = threading.Thread(
                target=client.sendall,
                args=(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n" * requests + b"HEAD / HTTP/1.0\r\n\r\n",),
            )
            sender.start()
            while client.recv(1_000_000):
                most = max(most, process.memory_info().rss)
            sender.join()
        return most

    before = flood(2000)

    assert flood(60_000) - before < 500_000  # of more than a million bytes sent


def test_a_client_that_half_closes_after_asking_is_answered(serve: Serve) -> None:
    server = serve(ready=lambda: (True, "in round 7"))
    with connect(server.port) as client:
        client.sendall(
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        client.shutdown(socket.SHUT_WR)
        answers = read_all(client)

    assert answers.count(b" 200 OK") == 2
    assert answers.endswith(b"in round 7\n")


def test_a_request_that_drips_in_is_cut_off_with_408(serve: Serve) -> None:
    server = serve(limits=HASTY)
    with connect(server.port) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: ")
        client.settimeout(0.05)
        answer = b""
        while not answer:
            client.sendall(b"b")
            with contextlib.suppress(TimeoutError):
                answer = client.recv(4096)

    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_connection_without_a_word_is_ended(serve: Serve) -> None:
    server = serve(limits=HASTY)
    with connect(server.port) as client:
        assert read_all(client) == b""
    with connect(server.port) as client:
        client.sendall(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 200 ")  # and then the idle connection is ended


def test_a_client_that_does_not_read_its_answers_is_ended(serve: Serve) -> None:
    server = serve(metrics=lambda: (b"x" * 8_000_000, "text/plain"), limits=HASTY)
    with connect(server.port) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        for _ in range(3):
            assert ask(server.port).status == 200
        with pytest.raises(ConnectionError):
            send_for_ever(client, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")


def test_a_huge_head_is_refused_with_431(serve: Serve) -> None:
    server = serve()
    with connect(server.port) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 100_000)
        assert read_all(client).startswith(b"HTTP/1.1 431 ")


def test_an_endless_head_is_cut_off(serve: Serve) -> None:
    server = serve()
    with connect(server.port) as client, pytest.raises(ConnectionError):
        send_for_ever(client, b"a" * 65536)

    assert ask(server.port).status == 200


def test_a_body_is_refused_with_413(serve: Serve) -> None:
    server = serve()
    with connect(server.port) as client:
        client.sendall(b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b"a" * 100_000)
        assert read_all(client).startswith(b"HTTP/1.1 413 ")


def test_garbage_costs_only_the_sender_its_connection(serve: Serve) -> None:
    server = serve()
    dice = random.Random(20_240)
    pieces = [b"GET ", b"/healthz", b" HTTP/1.1", b"\r\n", b"\r\n\r\n", b"Host: x", b"\0", b"\x16\x03\x01", b"\n\n"]
    for _ in range(300):
        with connect(server.port) as client, contextlib.suppress(OSError):
            noise = [dice.choice(pieces) if dice.random() < 0.7 else dice.randbytes(20) for _ in range(12)]
            client.sendall(b"".join(noise))
            client.shutdown(socket.SHUT_WR)
            answer = read_all(client)
            assert not answer or answer.startswith(b"HTTP/1.1 ")

    assert ask(server.port).status == 200
    assert server._handle is not None
    assert server._handle.last_output() == ""


def test_clients_that_leave_early_do_no_harm(serve: Serve) -> None:
    server = serve(metrics=lambda: (b"x" * 1_000_000, "text/plain"))
    for path in (b"/healthz", b"/metrics", b"/status") * 50:
        with connect(server.port) as client:
            # Closing now resets the connection, whatever is under way on it.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert ask(server.port, "/metrics").status == 200
    assert server._handle is not None
    assert server._handle.last_output() == ""


@pytest.mark.usefixtures("many_files")
def test_a_thousand_half_finished_requests_block_no_other(serve: Serve) -> None:
    server = serve()
    with contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(connect(server.port)).sendall(b"GET /healthz HTT")

        answers = [ask(server.port).status for _ in range(20)]

    assert set(answers) == {200}


@pytest.mark.usefixtures("many_files")
def test_where_there_are_too_many_the_one_that_waited_longest_makes_room(serve: Serve) -> None:
    server = serve(limits=Limits(connections_max=10, request_timeout_s=10 * PATIENCE_S, idle_timeout_s=10 * PATIENCE_S))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(server.port)) for _ in range(30)]
        for client in clients[-5:]:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")

        assert ask(server.port).status == 200
        assert [read_all(client) for client in clients[:20]] == [b""] * 20


@pytest.mark.usefixtures("many_files")
def test_five_thousand_silent_connections_delay_no_answer(serve: Serve) -> None:
    """They never say a word, and the server keeps no more of them than its limit."""
    patient = Limits(request_timeout_s=10 * PATIENCE_S, idle_timeout_s=10 * PATIENCE_S)
    server = serve(limits=patient)
    with contextlib.ExitStack() as stack:
        for number in range(5000):
            stack.enter_context(connect(server.port))
            if number % 500 == 499:
                assert ask(server.port).status == 200
        assert server._handle is not None
        held = psutil.Process(server._handle.pid).num_fds()

        assert {ask(server.port).status for _ in range(20)} == {200}
    assert held <= patient.connections_max + 32


def test_a_low_limit_of_descriptors_is_raised_as_far_as_allowed(serve: Serve) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        server = serve(limits=Limits(connections_max=500))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert server._handle is not None
    assert ask(server.port).status == 200  # it has read its settings

    limit, _ = psutil.Process(server._handle.pid).rlimit(psutil.RLIMIT_NOFILE)
    assert limit >= min(532, hard)
