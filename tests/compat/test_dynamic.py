"""A rendezvous over a backend of another package: threads over one in memory, processes over one in a file."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.compat.elastic.dynamic import (
    DynamicRendezvousHandler,
    RendezvousBackend,
    RendezvousTimeout,
    Token,
    create_handler,
)
from holdfast.compat.elastic.store_backend import C10dRendezvousBackend
from holdfast.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
    UsageError,
)
from holdfast.rendezvous import RendezvousInfo, RendezvousParameters
from holdfast.store import MemoryStore
from holdfast.testing.store_server import StoreServer


class InMemory(RendezvousBackend):
    """Some bytes and a number."""

    def __init__(self) -> None:
        self._state: tuple[bytes, int] | None = None
        self._lock = threading.Lock()
        self.broken = False

    @property
    def name(self) -> str:
        return "memory"

    def get_state(self) -> tuple[bytes, Token] | None:
        if self.broken:
            raise RendezvousConnectionError("the backend is down")
        return self._state

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        if self.broken:
            raise RendezvousConnectionError("the backend is down")
        with self._lock:
            known = None if self._state is None else self._state[1]
            if known != token:
                return None if self._state is None else (*self._state, False)
            self._state = (state, (known or 0) + 1)
            return (*self._state, True)


class InFile(RendezvousBackend):
    """The same in a file that processes share."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        return "file"

    def get_state(self) -> tuple[bytes, Token] | None:
        with self._path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            file.seek(0)
            data = file.read()
        return (data, data) if data else None

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        with self._path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            data = file.read()
            if (data or None) != token:
                return (data, data, False) if data else None
            file.truncate(0)
            file.write(state)
        return state, state, True


Make = Callable[..., DynamicRendezvousHandler]


@pytest.fixture(params=["memory", "store"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes handlers of one run; what they share is in memory, or under a key of a store of ours."""
    store = MemoryStore()
    shared: RendezvousBackend = InMemory() if request.param == "memory" else C10dRendezvousBackend(store, "run")
    made: list[DynamicRendezvousHandler] = []

    def start(low: int, high: int, last_call_s: float = 60, join_s: float = 60) -> DynamicRendezvousHandler:
        times = RendezvousTimeout(timedelta(seconds=join_s), timedelta(seconds=last_call_s))
        handler = DynamicRendezvousHandler.from_backend(
            "run", store, shared, low, high, local_addr=f"n{len(made)}", timeout=times, keep_alive_interval=1
        )
        made.append(handler)
        return handler

    yield start
    for handler in made:
        handler.shutdown()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def meet(threads: ThreadPoolExecutor, handlers: list[DynamicRendezvousHandler]) -> list[RendezvousInfo]:
    asked: list[Future[RendezvousInfo]] = [threads.submit(each.next_rendezvous) for each in handlers]
    return [each.result(240) for each in asked]


def test_nodes_meet_and_share_a_store_and_a_master(make: Make, threads: ThreadPoolExecutor) -> None:
    handlers = [make(4, 4) for _ in range(4)]

    infos = meet(threads, handlers)

    assert [info.rank for info in infos] == [0, 1, 2, 3]
    assert {info.world_size for info in infos} == {4}
    infos[1].store.set("key", b"value")
    assert infos[3].store.get("key") == b"value"
    masters = {info.bootstrap_store_info for info in infos}
    assert len(masters) == 1
    (master,) = masters
    assert master is not None
    assert master.master_addr == "n0"
    assert {each.num_nodes_waiting() for each in handlers} == {0}


def test_a_late_node_is_seen_and_the_next_round_has_all(make: Make, threads: ThreadPoolExecutor) -> None:
    first = make(1, 3, last_call_s=0.001)
    (before,) = meet(threads, [first])
    second = make(1, 3)
    waiting = threads.submit(second.next_rendezvous)
    while first.num_nodes_waiting() == 0:
        threading.Event().wait(0.01)

    after = first.next_rendezvous()
    while after.world_size == 1:  # its last call was over before the other one had looked
        while first.num_nodes_waiting() == 0:
            threading.Event().wait(0.01)
        after = first.next_rendezvous()

    assert (before.world_size, after.world_size, waiting.result(240).world_size) == (1, 2, 2)
    before.store.set("key", b"old")
    assert not after.store.check(["key"])  # each round has names of its own


def test_a_node_that_does_not_beat_is_lost_and_the_others_are_told(make: Make, threads: ThreadPoolExecutor) -> None:
    handlers = [make(1, 3, last_call_s=60) for _ in range(3)]
    meet(threads, handlers)

    handlers[2]._stop_beating()
    while handlers[0].num_nodes_waiting() == 0:
        threading.Event().wait(0.05)

    infos = meet(threads, handlers[:2])
    assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]


def test_a_closed_run_admits_no_node(make: Make, threads: ThreadPoolExecutor) -> None:
    first, second = make(1, 1), make(1, 1)
    meet(threads, [first])

    assert not second.is_closed()
    first.set_closed()

    assert second.is_closed()
    with pytest.raises(RendezvousClosedError):
        second.next_rendezvous()


def test_a_round_that_is_not_formed_names_the_nodes_that_joined(make: Make) -> None:
    with pytest.raises(RendezvousTimeoutError, match=r"within 0\.2 s: 1 of at least 2 nodes are here"):
        make(2, 2, join_s=0.2).next_rendezvous()


def test_a_node_that_gave_up_is_not_counted_later(make: Make, threads: ThreadPoolExecutor) -> None:
    with pytest.raises(RendezvousTimeoutError):
        make(2, 3, join_s=0.01).next_rendezvous()

    infos = meet(threads, [make(2, 2), make(2, 2)])

    assert [info.world_size for info in infos] == [2, 2]


def test_a_backend_that_is_down_is_told_to_the_caller() -> None:
    backend = InMemory()
    handler = DynamicRendezvousHandler.from_backend("run", MemoryStore(), backend, 1, 1)
    handler.next_rendezvous()
    backend.broken = True

    with pytest.raises(RendezvousConnectionError, match="is down"):
        handler.num_nodes_waiting()
    assert handler.shutdown() is False


class TakesNothing(InMemory):
    """Answers every change with None: not taken, and not known why."""

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        return None


def test_the_join_timeout_counts_also_while_a_backend_takes_no_change() -> None:
    times = RendezvousTimeout(timedelta(seconds=0.1), close=timedelta(seconds=0.1))
    handler = DynamicRendezvousHandler.from_backend("run", MemoryStore(), TakesNothing(), 1, 1, timeout=times)

    with pytest.raises(RendezvousTimeoutError, match="'memory' did not take this node's change"):
        handler.next_rendezvous()
    with pytest.raises(RendezvousTimeoutError):
        handler.set_closed()
    assert handler.shutdown() is False


def test_a_foreign_state_is_refused() -> None:
    backend = InMemory()
    backend.set_state(b"\x80\x04]q\x00.")

    with pytest.raises(RendezvousStateError, match="used by another launcher"):
        DynamicRendezvousHandler.from_backend("run", MemoryStore(), backend, 1, 1).next_rendezvous()


def test_settings_are_read_as_torchrun_writes_them() -> None:
    settings: dict[str, Any] = {"join_timeout": "7", "last_call_timeout": "0.5", "keep_alive_interval": "2"}
    params = RendezvousParameters("memory", "", "run", 1, 2, local_addr="here", **settings)

    handler = create_handler(MemoryStore(), InMemory(), params)

    assert handler.settings.timeout.join == timedelta(seconds=7)
    assert handler.settings.timeout.last_call == timedelta(seconds=0.5)
    assert handler.settings.timeout.close == timedelta(seconds=30)
    assert handler.settings.keep_alive_interval == timedelta(seconds=2)
    assert (handler.get_backend(), handler.get_run_id(), handler.use_agent_store) == ("memory", "run", False)


@pytest.mark.parametrize(("run", "low", "high"), [("", 1, 1), ("run", 0, 1), ("run", 2, 1)])
def test_what_cannot_be_is_refused(run: str, low: int, high: int) -> None:
    with pytest.raises(UsageError):
        DynamicRendezvousHandler.from_backend(run, MemoryStore(), InMemory(), low, high)


def test_a_store_backend_knows_whether_it_was_overtaken() -> None:
    store = MemoryStore()
    one, other = C10dRendezvousBackend(store, "run"), C10dRendezvousBackend(store, "run")

    assert one.get_state() is None
    first = one.set_state(b"a")
    assert first is not None
    assert (first[0], first[2]) == (b"a", True)
    assert other.set_state(b"b") == (b"a", first[1], False)
    assert other.set_state(b"b", "no token of ours") == (b"a", first[1], False)
    second = other.set_state(b"b", first[1])
    assert second is not None
    assert second[2]
    assert one.get_state() == second[:2]
    store.set("torch.rendezvous.run", b"\xff")
    with pytest.raises(RendezvousStateError, match="corrupt"):
        one.get_state()


def test_agents_of_other_processes_meet_through_a_file(tmp_path: Path) -> None:
    """Two agents with real workers, over a backend and a launcher that are not ours."""
    environ = {**os.environ, "HOLDFAST_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    with StoreServer() as server:
        agents = [
            subprocess.Popen(
                [sys.executable, "-W", "error", "-c", AGENT, str(tmp_path / "state"), str(server.endpoint)],
                stdout=subprocess.PIPE,
                text=True,
                env=environ,
            )
            for _ in range(2)
        ]
        answers = [each.communicate(timeout=240)[0] for each in agents]

    assert [each.returncode for each in agents] == [0, 0], answers
    found = {int(rank): value for text in answers for rank, value in json.loads(text).items()}
    assert found == {0: [0, 4], 1: [1, 4], 2: [2, 4], 3: [3, 4]}


def work() -> list[int]:
    return [int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])]


ROOT = Path(__file__).parent.parent.parent
AGENT = """
import json, sys
from pathlib import Path
from holdfast.agent import LocalElasticAgent, WorkerSpec
from holdfast.compat.elastic.dynamic import DynamicRendezvousHandler
from holdfast.store import StoreClient
from tests.compat.test_dynamic import InFile, work

if __name__ == "__main__":
    store = StoreClient.connect(sys.argv[2], "run/1", secret=b"")
    handler = DynamicRendezvousHandler.from_backend("run", store, InFile(Path(sys.argv[1])), 2, 2)
    result = LocalElasticAgent(WorkerSpec("default", 2, handler, entrypoint=work)).run()
    print(json.dumps(result.return_values))
    handler.shutdown()
    store.close()
"""
