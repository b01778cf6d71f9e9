"""A static rendezvous made by a launcher of one's own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.rendezvous.static import StaticTCPRendezvous
from holdfast.wire.ports import get_free_port


@pytest.mark.usefixtures("environ")
def test_nodes_with_given_ranks_meet_at_the_master(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", environ["HOLDFAST_HOME"])
    port = get_free_port()
    handlers = [StaticTCPRendezvous("127.0.0.1", port, rank, 2, "run", 60) for rank in (0, 1)]

    with ThreadPoolExecutor(2) as pool:
        infos = list(pool.map(lambda each: each.next_rendezvous(), handlers))

    assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]
    assert handlers[1].get_backend() == "static"
    for each in reversed(handlers):
        each.shutdown()
