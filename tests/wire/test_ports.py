"""A held port: no other process can take it, and the one it is meant for can listen on it."""

import errno
import os
import socket
import subprocess
import sys

import pytest

from holdfast.wire.ports import HeldPort


@pytest.fixture
def held():
    held = HeldPort()
    yield held
    held.close()


def test_a_plain_bind_to_a_held_port_fails(held):
    with socket.socket() as sock, pytest.raises(OSError) as error:
        sock.bind(("127.0.0.1", held.port))

    assert error.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_socket_that_reuses_addresses_may_listen_on_it(held, host):
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, held.port))
        server.listen()
        with socket.create_connection(("127.0.0.1", held.port)) as client, server.accept()[0] as accepted:
            client.sendall(b"hello")

            assert accepted.recv(5) == b"hello"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
def test_a_program_of_another_user_may_listen_on_it_too(held):
    """A held port keeps accidents away, not attacks; the docstring says so."""
    code = (
        "import os, socket, sys; os.setuid(65534); s = socket.socket();"
        "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen()"
    )
    taken = subprocess.run([sys.executable, "-S", "-c", code, str(held.port)], check=False, capture_output=True)

    assert taken.returncode == 0, taken.stderr


def test_ports_held_at_the_same_time_differ():
    ports = [HeldPort() for _ in range(20)]

    assert len({each.port for each in ports}) == 20
    for each in ports:
        each.close()


def test_a_port_let_go_is_free_again():
    held = HeldPort()
    held.close()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", held.port))


def test_a_port_that_is_only_held_cannot_be_reached(held):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", held.port))
