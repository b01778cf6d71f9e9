"""The agent's driver, given a source of rounds and workers that the test plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.agent.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from holdfast.agent.driver import Agent
from holdfast.agent.inbox import Inbox
from holdfast.agent.machine import (
    AgentEvent,
    AgentRules,
    Preloaded,
    WorkerFailed,
    WorkersFinished,
    WorkersStopped,
)
from holdfast.agent.round_source import Blocking, is_source, rounds_of
from holdfast.compat.elastic.classic_rounds import ClassicRounds
from holdfast.coordinator.messages import Cause, Place, RoundId
from holdfast.errors import HoldfastError, RendezvousTimeoutError
from holdfast.rendezvous import RendezvousParameters
from holdfast.rendezvous.events import AskFailed, MemberEffect, RoundBroken, RoundSealed, RunEnded
from holdfast.rendezvous.native import HoldfastRendezvousHandler
from tests.agent.test_extension import MyRendezvousHandler


def place(number: int) -> Place:
    return Place(RoundId(number, "x"), 0, 1, 0, 1, 0, 1, "127.0.0.1", 1000)


class Rounds:
    """A source whose answers are written down beforehand: one list of effects for each ask."""

    counts_restarts = True
    node, endpoint, is_host, poll_s = "me", None, False, None

    def __init__(self, *answers: list[MemberEffect]) -> None:
        self.said: list[str] = []
        self._answers = list(answers)
        self._tell: Callable[[MemberEffect], None] = print

    def describe_spec(self, spec: WorkerSpec) -> None: ...

    def listen(self, listener: Callable[[MemberEffect], None], blocking: Blocking | None = None) -> None:
        self._tell = listener

    def would_disturb(self) -> bool:
        return False

    def ask(self, cause: Cause | None = None, number: int = 0) -> None:
        self.said.append(f"ask ({cause.sentence})" if cause is not None else "ask")
        for effect in self._answers.pop(0):
            self._tell(RoundSealed(effect.place, number) if isinstance(effect, RoundSealed) else effect)

    def sentence(self) -> str:
        return "1 of 2 nodes"

    def poll(self) -> None: ...

    def fail(self, cause: Cause) -> None:
        self.said.append(f"fail ({cause.sentence})")

    def replace(self, cause: Cause) -> None:
        self.said.append(f"replace ({cause.sentence})")

    def finish(self) -> None:
        self.said.append("finish")
        self._tell(RunEnded("finished", failed=False))

    def leave(self, reason: str) -> bool:
        self.said.append(f"leave ({reason})")
        return True

    def release(self, *, signalled: bool) -> None: ...

    def error_of(self, unanswered: AskFailed | RunEnded) -> HoldfastError:
        return RendezvousTimeoutError(unanswered.reason)

    def variables(self, place: Place, workers: int) -> dict[str, str]:
        return {}


class Workers:
    """Workers whose fate is written down beforehand: what `look` returns, in its order."""

    heeds_signals = True

    def __init__(self, *fate: AgentEvent, preloading: bool = False, in_process: bool = False) -> None:
        self.preloads = preloading
        self.result = RunResult(WorkerState.SUCCEEDED, return_values={0: "done"})
        self.done: list[str] = []
        self._fate: list[Any] = list(fate)
        self._in_process = in_process
        self._is_told = True

    def begin(self) -> dict[str, Any]:
        return {}

    def preload(self, *, at_once: bool) -> bool:
        return self.preloads

    def tell_preload(self, *, busy: bool) -> None:
        self.done.append("preloading")

    def start(self, place: Place, restarts: int) -> dict[str, Any]:
        self.done.append(f"start {place.round.number}")
        self._is_told = False
        return {}

    def move(self, place: Place) -> None:
        self.done.append(f"move {place.round.number}")

    def replace(self, restarts: int) -> tuple[list[int], str]:
        self.done.append("replace")
        return [0], "it died"

    def trains_in_process(self) -> bool:
        if self._is_told or not self._in_process:
            return False
        self._is_told = True
        return True

    def look(self, now: float) -> Any:
        return self._fate.pop(0) if self._fate else None

    def failures_told(self) -> list[dict[str, Any]]:
        return []

    def wakeup(self) -> float | None:
        return 0.0 if self._fate else None

    def filenos(self) -> tuple[int, ...]:
        return ()

    def stop(self, number: int, grace_s: float) -> None:
        self.done.append(f"stop {number}")

    def send(self, number: int) -> None: ...

    def close(self, number: int) -> None:
        self.done.append("close")


def agent(rounds: Rounds, workers: Workers) -> Agent:
    spec = WorkerSpec(rdzv_handler=MyRendezvousHandler(), entrypoint="unused")
    inbox: Inbox[AgentEvent] = Inbox()
    made = Agent(WorkerGroup(spec), rounds, AgentRules(), inbox)
    made.supervise(workers)
    return made


BOOM = WorkerFailed(Cause("boom"))


def test_a_failure_is_told_before_the_stop_and_with_the_next_ask() -> None:
    rounds = Rounds([RoundSealed(place(1))], [RoundSealed(place(2))])
    workers = Workers(BOOM, WorkersStopped(), WorkersFinished())

    result = agent(rounds, workers).run()

    assert result.return_values == {0: "done"}
    assert rounds.said == ["ask", "fail (boom)", "ask (boom)", "finish"]
    assert workers.done == ["start 1", "stop 15", "start 2", "close"]


def test_workers_that_outlive_their_round_go_on() -> None:
    rounds = Rounds([RoundSealed(place(1)), RoundBroken(place(1), "another node was lost")], [RoundSealed(place(2))])
    workers = Workers(BOOM, WorkersFinished(), in_process=True)

    agent(rounds, workers).run()

    assert rounds.said == ["ask", "ask", "replace (boom)", "finish"]
    assert workers.done == ["start 1", "move 2", "replace", "close"]


def test_a_round_that_breaks_while_imports_are_waited_for_starts_no_workers() -> None:
    rounds = Rounds([RoundSealed(place(1)), RoundBroken(place(1), "a node joined")], [RoundSealed(place(2))])
    workers = Workers(Preloaded(), WorkersFinished(), preloading=True)

    agent(rounds, workers).run()

    assert workers.done == ["preloading", "preloading", "start 2", "close"]


def test_an_ask_that_leads_to_no_round_raises_what_the_source_makes_of_it() -> None:
    rounds = Rounds([AskFailed("1 of 2 nodes", connected=True)])
    workers = Workers()

    with pytest.raises(RendezvousTimeoutError, match="1 of 2 nodes"):
        agent(rounds, workers).run()

    assert workers.done == ["close"]


def test_the_end_of_the_run_while_a_round_is_asked_for_ends_the_agent() -> None:
    result = agent(Rounds([RunEnded("closed", failed=True)]), Workers()).run()

    assert result.is_failed()


def test_a_handler_of_ours_is_a_source_and_one_that_passes_calls_on_to_it_is_not() -> None:
    """The methods that a wrapper has changed must be called."""

    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    ours = HoldfastRendezvousHandler(RendezvousParameters("holdfast", "localhost:0", "run", 1, 1))
    wrapped: Any = Wrapper(ours)

    assert is_source(Rounds())
    assert rounds_of(WorkerSpec(rdzv_handler=ours, entrypoint="unused"), 1.0) is ours
    adapter = rounds_of(WorkerSpec(rdzv_handler=wrapped, entrypoint="unused"), 1.0)
    assert isinstance(adapter, ClassicRounds)
    assert is_source(adapter)
    ours.shutdown()
