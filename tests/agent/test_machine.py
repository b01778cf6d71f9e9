"""The agent's decisions: events in, effects out."""

from __future__ import annotations

import pytest

from holdfast.agent.machine import (
    SIGKILL,
    SIGTERM,
    AgentEffect,
    AgentEvent,
    AgentMachine,
    AgentRules,
    Begin,
    End,
    LeaveRun,
    NotStarted,
    Outcome,
    ReplaceWorkers,
    RoundLost,
    RunOver,
    Signalled,
    SignalPassing,
    SignalWorkers,
    Stage,
    StartWorkers,
    StopWorkers,
    TellFailure,
    TellFinished,
    TellLoss,
    WorkerFailed,
    WorkerLost,
    WorkersFinished,
    WorkersStarted,
    WorkersStopped,
)
from holdfast.coordinator.messages import Cause
from holdfast.machine import Tick

BOOM = Cause("rank 1: boom")
INT = Signalled(2, "SIGINT")


class Agent:
    """A machine that is checked after every event."""

    def __init__(self, **rules: object) -> None:
        self.machine = AgentMachine(AgentRules(**rules))  # type: ignore[arg-type]

    def do(self, *events: AgentEvent, now: float = 0.0) -> list[AgentEffect]:
        effects: list[AgentEffect] = []
        for event in events:
            effects = self.machine.handle(event, now)
            self.machine.check()
        return effects


@pytest.fixture
def running() -> Agent:
    agent = Agent()
    agent.do(Begin(), WorkersStarted())
    return agent


def test_it_starts_by_asking_for_a_round() -> None:
    assert Agent().do(Begin()) == [StartWorkers(None)]


def test_a_failure_is_told_before_workers_are_stopped(running: Agent) -> None:
    assert running.do(WorkerFailed(BOOM)) == [TellFailure(BOOM), StopWorkers(SIGTERM, 30.0, "rank 1: boom")]


def test_a_worker_that_is_lost_in_process_is_replaced_while_the_others_go_on(running: Agent) -> None:
    assert running.do(WorkerLost(BOOM)) == [TellLoss(BOOM), ReplaceWorkers()]
    assert running.machine.stage is Stage.RUNNING


def test_a_worker_that_is_lost_is_not_replaced_where_there_are_no_restarts() -> None:
    agent = Agent(replaces=False)
    agent.do(Begin(), WorkersStarted())

    assert agent.do(WorkerLost(BOOM)) == [TellFailure(BOOM), StopWorkers(SIGTERM, 30.0, "rank 1: boom")]


def test_after_the_stop_it_asks_again_with_the_cause(running: Agent) -> None:
    running.do(WorkerFailed(BOOM))

    assert running.do(WorkersStopped()) == [StartWorkers(BOOM)]


def test_a_true_cause_that_comes_to_light_replaces_a_victims(running: Agent) -> None:
    running.do(WorkerFailed(Cause("connection reset", victim=True)))

    assert running.do(WorkersStopped(BOOM)) == [StartWorkers(BOOM)]


def test_a_broken_round_stops_workers_and_asks_again_without_a_cause(running: Agent) -> None:
    assert running.do(RoundLost("host-b was lost")) == [StopWorkers(SIGTERM, 30.0, "host-b was lost")]
    assert running.do(WorkersStopped()) == [StartWorkers(None)]


def test_a_round_that_is_lost_while_its_workers_are_being_started_is_left_once_they_are() -> None:
    agent = Agent()

    assert agent.do(Begin(), RoundLost("host-b joined", 1)) == []
    assert agent.do(WorkersStarted(1)) == [StopWorkers(SIGTERM, 30.0, "host-b joined")]


def test_a_late_word_about_the_round_before_does_not_end_the_next() -> None:
    agent = Agent()
    agent.do(Begin(), WorkersStarted(1), WorkerFailed(BOOM), WorkersStopped(), RoundLost("host-b: boom too", 1))

    assert agent.do(WorkersStarted(2)) == []
    assert agent.machine.stage is Stage.RUNNING


def test_workers_that_fail_while_they_are_stopped_prove_nothing(running: Agent) -> None:
    running.do(RoundLost("host-b was lost"))

    assert running.do(WorkerFailed(BOOM)) == []


def test_success_waits_for_the_others_and_ends_with_the_run(running: Agent) -> None:
    assert running.do(WorkersFinished()) == [TellFinished()]
    assert running.do(RunOver("finished", failed=False)) == [End(Outcome(succeeded=True, reason="finished"))]


def test_success_does_not_wait_for_the_others_for_ever(running: Agent) -> None:
    running.do(WorkersFinished())

    assert running.machine.wakeup() == 300.0
    (end,) = running.do(Tick(), now=300.0)
    assert isinstance(end, End)
    assert end.outcome.succeeded


def test_an_agent_that_carries_the_coordinator_waits_as_long_as_the_others_need(running: Agent) -> None:
    running.do(WorkersFinished(hosting=True))

    assert running.machine.wakeup() is None
    assert running.do(Tick(), now=1e9) == []


def test_a_peers_failure_after_our_success_starts_us_again(running: Agent) -> None:
    running.do(WorkersFinished())

    assert running.do(RoundLost("host-b: boom")) == [StartWorkers(None)]


def test_the_end_of_the_run_by_a_failure_elsewhere_is_our_failure_too(running: Agent) -> None:
    assert running.do(RunOver("boom; not restarting: --max-restarts is 0", failed=True, cause=BOOM)) == [
        StopWorkers(SIGTERM, 30.0, "boom; not restarting: --max-restarts is 0")
    ]
    (end,) = running.do(WorkersStopped())
    assert end == End(Outcome(succeeded=False, reason="boom; not restarting: --max-restarts is 0", cause=BOOM))


def test_with_a_budget_of_its_own_it_counts_failures_and_ends() -> None:
    agent = Agent(max_restarts=1)
    agent.do(Begin(), WorkersStarted(), WorkerFailed(BOOM), WorkersStopped(), WorkersStarted())
    agent.do(WorkerFailed(BOOM))

    (end,) = agent.do(WorkersStopped())

    assert end == End(
        Outcome(succeeded=False, reason="rank 1: boom; not restarting: the only restart is used", cause=BOOM)
    )


def test_membership_changes_cost_no_budget() -> None:
    agent = Agent(max_restarts=0)
    agent.do(Begin(), WorkersStarted())
    for _ in range(5):
        agent.do(RoundLost("host-c joined"), WorkersStopped(), WorkersStarted())

    assert agent.machine.restarts == 0


def test_the_pause_before_restarts_doubles_up_to_its_limit() -> None:
    agent = Agent(backoff_s=1.0, backoff_s_max=3.0)
    agent.do(Begin(), WorkersStarted())
    pauses = []
    for _ in range(4):
        agent.do(WorkerFailed(BOOM), WorkersStopped(), now=100.0)
        assert agent.machine.stage is Stage.PAUSED
        wakeup = agent.machine.wakeup()
        assert wakeup is not None
        pauses.append(wakeup - 100.0)
        assert agent.do(Tick(), now=wakeup) == [StartWorkers(BOOM)]
        agent.do(WorkersStarted())

    assert pauses == [1.0, 2.0, 3.0, 3.0]


def test_a_signal_leaves_politely_passes_itself_on_and_ends(running: Agent) -> None:
    assert running.do(INT) == [LeaveRun("received SIGINT"), StopWorkers(2, 30.0, "received SIGINT")]
    assert running.do(WorkersStopped()) == [End(Outcome(succeeded=False, reason="received SIGINT", signal=2))]


def test_a_second_signal_makes_the_stop_hard(running: Agent) -> None:
    running.do(INT)

    assert running.do(INT) == [StopWorkers(SIGKILL, 0.0, "received SIGINT again")]


@pytest.mark.parametrize("before", [[NotStarted()], [WorkersStarted(), WorkerFailed(BOOM), WorkersStopped()]])
def test_a_signal_while_no_workers_run_ends_at_once(before: list[AgentEvent]) -> None:
    agent = Agent(backoff_s=10.0)
    agent.do(Begin(), *before)

    assert agent.do(INT) == [
        LeaveRun("received SIGINT"),
        End(Outcome(succeeded=False, reason="received SIGINT", signal=2)),
    ]


def test_a_signal_while_workers_are_being_started_waits_for_the_news_of_them() -> None:
    agent = Agent()

    assert agent.do(Begin(), INT) == []
    assert agent.do(WorkersStarted()) == [LeaveRun("received SIGINT"), StopWorkers(2, 30.0, "received SIGINT")]
    assert agent.do(INT) == [StopWorkers(SIGKILL, 0.0, "received SIGINT again")]


def test_two_signals_while_workers_are_being_started_kill_them() -> None:
    assert Agent().do(Begin(), INT, INT, WorkersStarted()) == [
        LeaveRun("received SIGINT"),
        StopWorkers(2, 30.0, "received SIGINT"),
        StopWorkers(SIGKILL, 0.0, "received SIGINT again"),
    ]


def test_a_signal_before_workers_were_started_ends_at_once() -> None:
    *_, end = Agent().do(Begin(), INT, NotStarted())

    assert end == End(Outcome(succeeded=False, reason="received SIGINT", signal=2))


def test_the_end_of_the_run_while_workers_are_being_started_stops_them_first() -> None:
    over = RunOver("closed", failed=True)

    assert Agent().do(Begin(), over, WorkersStarted()) == [StopWorkers(SIGTERM, 30.0, "closed")]
    assert Agent().do(Begin(), over, NotStarted()) == [End(Outcome(succeeded=False, reason="closed"))]
    assert Agent().do(Begin(), NotStarted(), over) == [End(Outcome(succeeded=False, reason="closed"))]


def test_a_signal_wins_over_a_round_that_was_lost_while_its_workers_were_being_started() -> None:
    agent = Agent()

    *_, stop = agent.do(Begin(), RoundLost("gone", 1), INT, WorkersStarted(1))
    (end,) = agent.do(WorkersStopped())

    assert stop == StopWorkers(2, 30.0, "received SIGINT")
    assert isinstance(end, End)
    assert end.outcome.signal == 2


def test_a_signal_during_a_restart_wins_over_the_restart(running: Agent) -> None:
    running.do(WorkerFailed(BOOM), INT)

    (end,) = running.do(WorkersStopped())

    assert isinstance(end, End)
    assert end.outcome.signal == 2


def test_a_signal_after_success_keeps_the_success(running: Agent) -> None:
    running.do(WorkersFinished())

    *_, end = running.do(INT)

    assert isinstance(end, End)
    assert end.outcome.succeeded


def test_forwarded_signals_reach_running_workers_and_mean_nothing_else(running: Agent) -> None:
    assert running.do(SignalPassing(10)) == [SignalWorkers(10)]
    assert running.machine.stage is Stage.RUNNING
    assert Agent().do(Begin(), SignalPassing(10)) == []


def test_a_forwarded_signal_that_overtakes_the_news_of_the_start_is_not_lost() -> None:
    assert Agent().do(Begin(), SignalPassing(10), WorkersStarted()) == [SignalWorkers(10)]


def test_nothing_happens_after_the_end(running: Agent) -> None:
    running.do(INT, WorkersStopped())

    assert running.do(WorkerFailed(BOOM)) == running.do(RoundLost("x")) == running.do(INT) == []
