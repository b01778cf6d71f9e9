"""A static rendezvous made by a launcher of one's own."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.compat.elastic.rendezvous_utils import StaticTCPRendezvous
from tests.processes import free_port


@pytest.mark.usefixtures("environ")
def test_nodes_with_given_ranks_meet_at_the_master(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", environ["HOLDFAST_HOME"])
    port = free_port()
    handlers = [StaticTCPRendezvous("127.0.0.1", port, rank, 2, "run", 60) for rank in (0, 1)]

    with ThreadPoolExecutor(2) as pool:
        infos = list(pool.map(lambda each: each.next_rendezvous(), handlers))

    assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]
    assert handlers[1].get_backend() == "static"
    for each in reversed(handlers):
        each.shutdown()


@pytest.mark.usefixtures("environ")
def test_the_port_of_one_node_alone_is_that_of_its_workers_in_every_round(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", environ["HOLDFAST_HOME"])
    port = free_port()
    handler = StaticTCPRendezvous("127.0.0.1", port, 0, 1, "run", 60)

    for _ in range(2):
        info = handler.next_rendezvous()
        assert info.bootstrap_store_info is not None
        assert info.bootstrap_store_info.master_port == port
        with socket.socket() as server:  # as torch's store does
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()
    handler.shutdown()
