"""A signal at every moment of an agent's life: workers are stopped with words, a second one kills, nothing is left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import LocalElasticAgent, SimpleElasticAgent, WorkerGroup, WorkerSpec, WorkerState
from holdfast.agent.api import RunResult
from holdfast.agent.options import LocalOptions
from holdfast.compat.elastic.classic_rounds import EXIT_BARRIER_KEY
from holdfast.coordinator.messages import Cause
from holdfast.errors import SignalError
from holdfast.facts import Fact, facts
from holdfast.rendezvous import RendezvousHandler, RendezvousParameters, get_rendezvous_handler
from holdfast.rendezvous.events import RoundSealed
from holdfast.rendezvous.native import HoldfastRendezvousHandler
from holdfast.store import MemoryStore, Store
from holdfast.workers import DefaultLogsSpecs, Script
from holdfast.workers.strays import descendants

STUBBORN = """
import os, signal
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
open("up", "w").close()
while True:
    signal.pause()
"""


def press() -> None:
    """Press Ctrl-C: the handler runs before this returns."""
    os.kill(os.getpid(), signal.SIGINT)


class Told:
    """Everything that was told, and what to do when it is."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.then: dict[str, Callable[[], None]] = {}

    def __call__(self, fact: Fact) -> None:
        self.sentences.append(fact.sentence)
        for piece in [piece for piece in self.then if piece in fact.sentence]:
            self.then.pop(piece)()

    def __contains__(self, piece: str) -> bool:
        return any(piece in sentence for sentence in self.sentences)


@pytest.fixture
def told() -> Iterator[Told]:
    made = Told()
    stop = facts.listen(made)
    yield made
    stop()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    before, handler = set(descendants(os.getpid())), signal.getsignal(signal.SIGINT)
    yield
    assert set(descendants(os.getpid())) <= before, "a process was left behind"
    assert signal.getsignal(signal.SIGINT) is handler


class Alone(RendezvousHandler):
    """A rendezvous of another make, which is polled."""

    def __init__(self, store: Store | None = None) -> None:
        self.asked = 0
        self._store = store or MemoryStore()

    def next_rendezvous(self) -> tuple[Store, int, int]:  # type: ignore[override]
        self.asked += 1
        return self._store, 0, 1

    def get_backend(self) -> str:
        return "alone"

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None: ...

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "run"

    def shutdown(self) -> bool:
        return True


def ours() -> RendezvousHandler:
    return get_rendezvous_handler(RendezvousParameters("holdfast", "localhost:0", "run", 1, 1))


@pytest.fixture(params=["pushed", "polled"])
def handler(request: pytest.FixtureRequest) -> Iterator[RendezvousHandler]:
    made = ours() if request.param == "pushed" else Alone()
    yield made
    made.shutdown()


def spec(handler: RendezvousHandler, entry: Any = None, **settings: Any) -> WorkerSpec:
    entry = entry or Script("stubborn.py")
    return WorkerSpec(rdzv_handler=handler, entrypoint=entry, monitor_interval=0.01, **settings)


class Pressed(LocalElasticAgent):
    """Sends itself a signal at one moment of its start."""

    def __init__(self, spec: WorkerSpec, moment: str) -> None:
        super().__init__(spec, DefaultLogsSpecs(str(Path.cwd() / "logs")))
        self.moment = moment

    def _at(self, moment: str) -> None:
        if moment == self.moment:
            press()

    def _invoke_run(self, role: str = "default") -> RunResult:
        self._at("getting ready")
        return super()._invoke_run(role)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        ids = super()._start_workers(worker_group)
        self._at("started")
        return ids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self.moment == "broken":
            raise RuntimeError("planted")
        return super()._monitor_workers(worker_group)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        if self._local.gangs is not None:
            self._at("broken")
        super()._shutdown(death_sig, timeout)


def test_before_a_round_is_asked_for(handler: RendezvousHandler, told: Told) -> None:
    with pytest.raises(SignalError, match="received SIGINT"):
        Pressed(spec(handler), "getting ready").run()

    assert not Path("up").exists()
    assert "stopping workers" not in told


def test_between_the_round_and_the_start_of_its_workers(told: Told) -> None:
    """The signal and the round wait in the inbox together: the signal is taken first."""

    class Sealing(HoldfastRendezvousHandler):
        def ask(self, cause: Cause | None = None, number: int = 0) -> None:
            sealed = threading.Event()
            self.listen(lambda effect: sealed.set() if isinstance(effect, RoundSealed) else None)
            super().ask(cause, number)
            assert sealed.wait(240)
            press()

    with pytest.raises(SignalError, match="received SIGINT"):
        Pressed(spec(Sealing(RendezvousParameters("holdfast", "localhost:0", "run", 1, 1))), "never").run()

    assert not Path("up").exists()
    assert "stopping workers" not in told


def test_while_imports_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    (tmp_path / "endless.py").write_text("import signal\nwhile True:\n    signal.pause()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told.then["importing endless"] = press
    handler = ours()

    with pytest.raises(SignalError, match="received SIGINT"):
        LocalElasticAgent(spec(handler), options=LocalOptions(preload=("endless",))).run()
    handler.shutdown()

    assert not Path("up").exists()
    assert "stopping workers" not in told


def test_between_the_start_of_workers_and_the_news_of_it(handler: RendezvousHandler, told: Told) -> None:
    """Workers that do not listen are stopped with words, and the second signal kills them."""
    told.then["stopping workers: received SIGINT"] = press

    with pytest.raises(SignalError, match="received SIGINT"):
        Pressed(spec(handler), "started").run()

    assert "stopping workers: received SIGINT again" in told


def test_while_an_agent_that_has_failed_stops_its_workers(handler: RendezvousHandler, told: Told) -> None:
    with pytest.raises(RuntimeError, match="planted"):
        Pressed(spec(handler), "broken").run()

    assert "stopping workers: received SIGINT" in told


def test_just_before_a_rendezvous_of_another_make_blocks() -> None:
    handler = Alone()

    with pytest.raises(SignalError, match="received SIGINT"):
        Pressed(spec(handler), "getting ready").run()

    assert handler.asked == 0


def test_while_others_are_waited_for_at_the_end_of_a_rendezvous_of_another_make(told: Told) -> None:
    class Interrupting(MemoryStore):
        def add(self, key: str, num: int) -> int:
            if EXIT_BARRIER_KEY in key:
                press()
            return super().add(key, num)

    class OfTwo(LocalElasticAgent):
        def _exit_barrier(self) -> None:
            self._worker_group.group_world_size = 2  # one of them never comes
            super()._exit_barrier()

    Path("ok.py").write_text("")
    agent = OfTwo(spec(Alone(Interrupting()), Script("ok.py")), exit_barrier_timeout=20)

    assert agent.run().state is WorkerState.SUCCEEDED
    assert "the others did not finish with us: process" in told


def test_out_of_a_shutdown_of_ones_own_that_does_not_end(told: Told) -> None:
    class Own(SimpleElasticAgent):
        def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
            return {0: 0}

        def _stop_workers(self, worker_group: WorkerGroup) -> None: ...

        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            return RunResult(WorkerState.SUCCEEDED)

        def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
            press()
            threading.Event().wait(240)
            raise AssertionError("the signal was not heard")

    with pytest.raises(SignalError):
        Own(spec(Alone(), lambda: None)).run()
