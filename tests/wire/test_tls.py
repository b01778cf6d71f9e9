"""TLS with real certificates: clients that have them connect, and others are refused."""

import contextlib
import queue
import socket
import ssl
import struct
import threading
import time

import pytest
import trustme

from holdfast.coordinator.messages import CODEC, Query, Report
from holdfast.errors import ConnectionLostError, HandshakeError, HoldfastError, UsageError
from holdfast.rendezvous import RendezvousParameters, get_rendezvous_handler
from holdfast.wire.address import Endpoint
from holdfast.wire.channel import Channel
from holdfast.wire.link import Link
from holdfast.wire.listener import Limits
from holdfast.wire.loop import io_thread
from holdfast.wire.tls import TlsFiles

PATIENCE_S = 240.0


class Authority:
    """A certificate authority with the files of a coordinator and a node."""

    def __init__(self, folder):
        folder.mkdir()
        self._ca = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.ca)
        self.cert, self.key = str(folder / "cert.pem"), str(folder / "key.pem")
        issued = self._ca.issue_cert("localhost", "127.0.0.1")
        issued.private_key_pem.write_to_path(self.key)
        for number, pem in enumerate(issued.cert_chain_pems):
            pem.write_to_path(self.cert, append=number > 0)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "others")


def ask(server, tls):
    endpoint = Endpoint("127.0.0.1", server.endpoint.port)
    channel = Channel.connect(endpoint, CODEC, server.secret, timeout_s=PATIENCE_S, tls=tls)
    try:
        return channel.ask(Query(), time.monotonic() + PATIENCE_S)
    finally:
        channel.close()


def ask_through_link(server, tls):
    answers = queue.SimpleQueue()

    async def connect():
        link = await Link.connect(
            Endpoint("127.0.0.1", server.endpoint.port), CODEC, server.secret, answers.put, answers.put, tls=tls
        )
        link.send(Query())
        return link

    async def close(link):
        link.close()

    link = io_thread().wait(connect(), PATIENCE_S)
    answer = answers.get(timeout=PATIENCE_S)
    io_thread().wait(close(link), PATIENCE_S)
    return answer


both_clients = pytest.mark.parametrize("client", [ask, ask_through_link])


@both_clients
def test_who_trusts_the_authority_is_served(serve, ours, client):
    server = serve(tls=TlsFiles(ours.cert, ours.key).server_context())

    assert client(server, TlsFiles(ca=ours.ca).client_context()) == Report([])


def connect_channel(endpoint, secret, tls=None, timeout_s=PATIENCE_S / 2):
    Channel.connect(endpoint, CODEC, secret, timeout_s=timeout_s, tls=tls).close()


def connect_link(endpoint, secret, tls=None, timeout_s=PATIENCE_S / 2):
    async def connect():
        link = await Link.connect(endpoint, CODEC, secret, print, print, timeout_s=timeout_s, tls=tls)
        link.close()

    io_thread().wait(connect(), PATIENCE_S)


both_connects = pytest.mark.parametrize("connect", [connect_channel, connect_link])


@both_connects
@pytest.mark.parametrize(("server_s", "client_s"), [(1, 10), (10, 0.2)], ids=["server first", "client first"])
def test_a_plain_client_hears_that_the_coordinator_speaks_tls(serve, ours, connect, server_s, client_s):
    """Whichever side gives up first."""
    limits = Limits(handshake_timeout_s=server_s)
    server = serve(limits, tls=TlsFiles(ours.cert, ours.key).server_context())
    endpoint = Endpoint("127.0.0.1", server.endpoint.port)
    with pytest.raises(HandshakeError, match=f"cannot talk to {endpoint}: it speaks TLS, and this node does not"):
        connect(endpoint, server.secret, timeout_s=client_s)

    assert ask(server, TlsFiles(ca=ours.ca).client_context()) == Report([])


@both_connects
def test_a_plain_client_also_hears_it_where_certificates_of_clients_are_asked_for(serve, ours, connect):
    server = serve(tls=TlsFiles(ours.cert, ours.key, ours.ca).server_context())
    with pytest.raises(HandshakeError, match="it speaks TLS, and this node does not"):
        connect(Endpoint("127.0.0.1", server.endpoint.port), server.secret, timeout_s=0.2)


@both_connects
def test_a_silent_port_is_not_said_to_speak_tls(connect, monkeypatch):
    monkeypatch.setattr("holdfast.wire.tls.PROBE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(ConnectionLostError) as lost:
        connect(Endpoint("127.0.0.1", mute.getsockname()[1]), b"secret", timeout_s=0.2)

    assert "TLS" not in str(lost.value)


@both_connects
def test_a_connection_that_is_cut_in_the_tls_handshake_has_a_reason(ours, connect):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def cut():
            client, _ = server.accept()
            client.recv(1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()  # with a reset

        thread = threading.Thread(target=cut)
        thread.start()
        tls = TlsFiles(ca=ours.ca).client_context()
        with pytest.raises(HoldfastError, match="failed: it ended the connection in the TLS handshake"):
            connect(Endpoint("127.0.0.1", server.getsockname()[1]), b"secret", tls)
        thread.join()


def test_who_never_ends_its_tls_handshake_is_dropped_in_time(serve, ours):
    server = serve(Limits(handshake_timeout_s=0.1), tls=TlsFiles(ours.cert, ours.key).server_context())
    address = ("127.0.0.1", server.endpoint.port)
    with socket.create_connection(address, timeout=PATIENCE_S) as mute, contextlib.suppress(ConnectionError):
        assert mute.recv(1) == b""


@both_clients
def test_a_tls_client_of_a_plain_coordinator_says_so(serve, ours, client):
    server = serve()

    with pytest.raises(HandshakeError, match=r"TLS with .* failed: it does not speak TLS"):
        client(server, TlsFiles(ca=ours.ca).client_context())
    assert "the other side speaks TLS, and this side does not" in server.next_refusal()


@both_clients
def test_a_coordinator_of_another_authority_is_not_believed(serve, ours, others, client):
    server = serve(tls=TlsFiles(ours.cert, ours.key).server_context())

    with pytest.raises(HandshakeError, match=r"TLS with .* failed: .*certificate; --tls-ca must name the authority"):
        client(server, TlsFiles(ca=others.ca).client_context())
    assert client(server, TlsFiles(ca=ours.ca).client_context()) == Report([])


@both_clients
def test_a_coordinator_with_an_authority_asks_every_client_for_a_certificate(serve, ours, others, client):
    server = serve(tls=TlsFiles(ours.cert, ours.key, ours.ca).server_context())

    assert client(server, TlsFiles(ours.cert, ours.key, ours.ca).client_context()) == Report([])
    # With TLS 1.3 a client learns of its refusal only after its own side of the handshake is done.
    with pytest.raises(HoldfastError, match=r"TLS with .* failed: .*--tls-cert and --tls-key"):
        client(server, TlsFiles(ca=ours.ca).client_context())
    with pytest.raises(HoldfastError, match=r"TLS with .* failed: .*--tls-cert and --tls-key"):
        client(server, TlsFiles(others.cert, others.key, ours.ca).client_context())


def test_handlers_gather_over_tls(serve, ours, monkeypatch, tmp_path):
    for name in ("CERT", "KEY", "CA"):
        monkeypatch.setenv(f"HOLDFAST_TLS_{name}", getattr(ours, name.lower()))
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    handler = get_rendezvous_handler(RendezvousParameters("holdfast", "localhost:0", "tls", 1, 1))
    info = handler.next_rendezvous()
    with info.store as store:
        store.set("key", "value")

        assert (info.rank, info.world_size, store.get("key")) == (0, 1, b"value")
    assert handler.shutdown()


def test_the_environment_names_the_files():
    environ = {"HOLDFAST_TLS_CERT": "c", "HOLDFAST_TLS_KEY": "k", "HOLDFAST_TLS_CA": "a"}

    assert TlsFiles.from_environ(environ) == TlsFiles("c", "k", "a")
    assert TlsFiles.from_environ({}) is None


def test_missing_files_are_asked_for_by_their_flags(ours, tmp_path):
    with pytest.raises(UsageError, match="needs both --tls-cert and --tls-key"):
        TlsFiles(cert=ours.cert).server_context()
    with pytest.raises(UsageError, match="needs --tls-ca"):
        TlsFiles(ours.cert, ours.key).client_context()
    with pytest.raises(UsageError, match="cannot load the TLS files"):
        TlsFiles(ca=str(tmp_path / "missing")).client_context()
    with pytest.raises(UsageError, match="cannot load the TLS files"):
        TlsFiles(ours.key, ours.cert).server_context()


def test_old_versions_of_tls_are_not_spoken(ours):
    assert TlsFiles(ours.cert, ours.key).server_context().minimum_version == ssl.TLSVersion.TLSv1_2
    assert TlsFiles(ca=ours.ca).client_context().verify_mode is ssl.CERT_REQUIRED
