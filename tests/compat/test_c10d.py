"""torch's own stores, made as TorchElastic makes them."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.compat.elastic.dynamic import DynamicRendezvousHandler, create_handler
from holdfast.errors import RendezvousConnectionError, UsageError
from holdfast.rendezvous import RendezvousParameters
from holdfast.store.agree import barrier
from tests.processes import free_port

dist = pytest.importorskip("torch.distributed", reason="needs torch")
if not dist.is_available():
    pytest.skip("this torch has no distributed", allow_module_level=True)

from holdfast.compat.elastic.c10d import create_backend, create_c10d_store  # noqa: E402

pytestmark = pytest.mark.torch


def test_a_server_picks_a_port_and_a_client_joins() -> None:
    server = create_c10d_store(is_server=True, server_addr="localhost", timeout=60)
    client = create_c10d_store(
        is_server=False, server_addr="localhost", server_port=server.port, timeout=60, wait_for_workers=False
    )
    server.set("k", "v")

    assert client.get("k") == b"v"
    with pytest.raises(UsageError, match="server_port must be specified"):
        create_c10d_store(True, "localhost", world_size=2)


def test_a_port_that_was_taken_in_between_is_left_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken:
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr("holdfast.compat.elastic.c10d.get_free_port", lambda: next(ports))

        server = create_c10d_store(is_server=True, server_addr="localhost", timeout=60)

        assert server.port != taken.getsockname()[1]


def test_a_barrier_through_torchs_store_names_missing_ranks() -> None:
    server = create_c10d_store(is_server=True, server_addr="localhost", timeout=60)

    with pytest.raises(dist.DistStoreError, match=r"missing_ranks=\[1\]"):
        barrier(server, 2, "b", 0.05, rank=0, trace_timeout=0.05)
    assert server.timeout == timedelta(seconds=60)


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_nodes_meet_through_a_store_of_torch(kind: str, tmp_path: Path) -> None:
    endpoint = f"localhost:{free_port()}" if kind == "tcp" else str(tmp_path / "store")
    params = RendezvousParameters("c10d", endpoint, "run", 2, 2, store_type=kind)
    handlers: list[DynamicRendezvousHandler] = []
    for _ in range(2):
        backend, store = create_backend(params)
        handlers.append(create_handler(store, backend, params))

    with ThreadPoolExecutor(2) as pool:
        infos: list[Any] = list(pool.map(lambda each: each.next_rendezvous(), handlers))
    for each in handlers:
        each.shutdown()

    assert sorted(info.rank for info in infos) == [0, 1]
    assert all(isinstance(info.store, dist.PrefixStore) for info in infos)


def test_a_kind_of_store_that_there_is_not_and_a_host_that_is_not_there_are_told() -> None:
    with pytest.raises(UsageError, match="Invalid store type"):
        create_backend(RendezvousParameters("c10d", "localhost", "run", 1, 1, store_type="x"))
    with pytest.raises(UsageError, match="read timeout"):
        create_backend(RendezvousParameters("c10d", "localhost", "run", 1, 1, read_timeout="0"))
    nowhere = RendezvousParameters("c10d", f"127.0.0.1:{free_port()}", "r", 1, 1, is_host=False, read_timeout=1)
    with pytest.raises(RendezvousConnectionError, match="has failed"):
        create_backend(nowhere)
