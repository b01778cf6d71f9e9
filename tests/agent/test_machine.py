"""The agent's decisions: events in, effects out."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.agent.machine import (
    SIGKILL,
    SIGTERM,
    AgentEffect,
    AgentEvent,
    AgentMachine,
    AgentRules,
    AskRound,
    AwaitLink,
    AwaitPreload,
    Begin,
    End,
    LinkMended,
    Outcome,
    Parted,
    PreloadBegun,
    Preloaded,
    ReplaceWorkers,
    Signalled,
    SignalPassing,
    SignalWorkers,
    Stage,
    StartWorkers,
    StopWorkers,
    TakePlace,
    TrainsInProcess,
    WorkerFailed,
    WorkersFinished,
    WorkersStopped,
)
from holdfast.coordinator.messages import Cause, Place, RoundId
from holdfast.machine import Tick
from holdfast.rendezvous.events import AskFailed, Fail, Finish, Leave, Replace, RoundBroken, RoundSealed, RunEnded

BOOM = Cause("rank 1: boom")
INT = Signalled(2, "SIGINT")


def place(number: int = 1, restarts_used: int = 0) -> Place:
    return Place(RoundId(number, "x"), 0, 1, 0, 1, 0, 1, "10.0.0.1", 1000, restarts_used)


def sealed(number: int = 1, restarts_used: int = 0) -> RoundSealed:
    return RoundSealed(place(number, restarts_used))


def broken(reason: str, number: int = 1) -> RoundBroken:
    return RoundBroken(place(number), reason)


class Agent:
    """A machine that is checked after every event."""

    def __init__(self, **rules: object) -> None:
        self.machine = AgentMachine(AgentRules(**rules))  # type: ignore[arg-type]

    def do(self, *events: AgentEvent, now: float = 0.0) -> list[AgentEffect]:
        effects: list[AgentEffect] = []
        for event in events:
            if isinstance(event, RoundSealed) and not event.number:
                event = msgspec.structs.replace(event, number=self.machine.asks)
            effects = self.machine.handle(event, now)
            self.machine.check()
        return effects


@pytest.fixture
def running() -> Agent:
    agent = Agent()
    agent.do(Begin(), sealed())
    return agent


@pytest.fixture
def in_process(running: Agent) -> Agent:
    running.do(TrainsInProcess())
    return running


# -- rounds --------------------------------------------------------------------------------------------------


def test_it_asks_for_a_round_and_starts_workers_at_the_place_that_it_gets() -> None:
    agent = Agent()

    assert agent.do(Begin()) == [AskRound()]
    assert agent.do(sealed()) == [StartWorkers(place())]


def test_after_a_stop_it_asks_again_with_the_cause(running: Agent) -> None:
    running.do(WorkerFailed(BOOM))

    assert running.do(WorkersStopped()) == [AskRound(BOOM)]


def test_a_true_cause_that_comes_to_light_replaces_a_victims(running: Agent) -> None:
    running.do(WorkerFailed(Cause("connection reset", victim=True)))

    assert running.do(WorkersStopped(BOOM)) == [AskRound(BOOM)]


def test_a_broken_round_stops_workers_and_asks_again_without_a_cause(running: Agent) -> None:
    assert running.do(broken("host-b was lost")) == [StopWorkers(SIGTERM, 30.0, "host-b was lost")]
    assert running.do(WorkersStopped()) == [AskRound()]


def test_a_late_word_about_the_round_before_does_not_end_the_next() -> None:
    agent = Agent()
    agent.do(Begin(), sealed(1), WorkerFailed(BOOM), WorkersStopped(), broken("host-b: boom too", 1), sealed(2))

    assert agent.do(broken("host-b: boom too", 1)) == []
    assert agent.machine.stage is Stage.RUNNING


def test_the_answer_to_an_ask_that_was_given_up_does_not_count(in_process: Agent) -> None:
    """The workers outlived their round, then one failed for good, and the answer came while they were being stopped."""
    in_process.machine.rules = AgentRules(replaces=False)
    in_process.do(broken("host-b was lost"))
    asked_aside = in_process.machine.asks
    in_process.do(WorkerFailed(BOOM), WorkersStopped())

    assert in_process.do(RoundSealed(place(2), asked_aside)) == []
    assert in_process.do(sealed(3)) == [StartWorkers(place(3), restarts=0)]


def test_workers_are_told_how_many_restarts_the_job_has_used() -> None:
    agent = Agent()
    agent.do(Begin(), sealed(1, restarts_used=2), WorkerFailed(BOOM), WorkersStopped())

    assert agent.do(sealed(2, restarts_used=3)) == [StartWorkers(place(2, 3), restarts=3)]


@pytest.mark.parametrize(
    "answer", [AskFailed("1 of 2 nodes", connected=True), RunEnded("no", failed=True, rejected=True)]
)
def test_an_ask_that_leads_to_no_round_ends_the_agent_with_the_answer_as_data(answer: AskFailed | RunEnded) -> None:
    *_, end = Agent().do(Begin(), answer)

    assert end == End(Outcome(succeeded=False, reason=answer.reason, unanswered=answer))


def test_nothing_that_comes_while_a_round_is_asked_for_is_lost() -> None:
    assert Agent().do(Begin(), RunEnded("closed", failed=True)) == [End(Outcome(succeeded=False, reason="closed"))]
    assert Agent().do(Begin(), INT)[-1] == End(Outcome(succeeded=False, reason="received SIGINT", signal=2))


# -- imports -------------------------------------------------------------------------------------------------


def test_workers_start_when_both_the_round_and_the_imports_are_there() -> None:
    agent = Agent()

    assert agent.do(Begin(preloading=True)) == [AskRound()]
    assert agent.do(sealed()) == [AwaitPreload()]
    assert agent.do(Preloaded()) == [StartWorkers(place())]


def test_imports_that_are_done_before_the_round_hold_nothing_up() -> None:
    assert Agent().do(Begin(preloading=True), Preloaded(), sealed()) == [StartWorkers(place())]


def test_imports_that_begin_beside_the_workers_hold_up_only_the_next_start(running: Agent) -> None:
    assert running.do(PreloadBegun()) == []
    running.do(WorkerFailed(BOOM), WorkersStopped())

    assert running.do(sealed(2)) == [AwaitPreload()]
    assert running.do(Preloaded()) == [StartWorkers(place(2))]


def test_imports_that_end_beside_the_workers_hold_nothing_up(running: Agent) -> None:
    running.do(PreloadBegun(), Preloaded(), WorkerFailed(BOOM), WorkersStopped())

    assert running.do(sealed(2)) == [StartWorkers(place(2))]


def test_a_round_that_runs_is_not_broken_before_the_imports_are_done() -> None:
    agent = Agent()

    assert agent.do(Begin(preloading=True, busy=True)) == [AwaitPreload(busy=True)]
    assert agent.do(Preloaded()) == [AskRound()]


def test_a_round_that_breaks_before_its_workers_were_started_is_asked_for_anew() -> None:
    agent = Agent()

    assert agent.do(Begin(preloading=True), sealed(1), broken("host-b joined", 1)) == [AskRound()]
    assert agent.do(Preloaded()) == []
    assert agent.do(sealed(2)) == [StartWorkers(place(2))]


@pytest.mark.parametrize("before", [[Begin(preloading=True, busy=True)], [Begin(preloading=True), sealed()]])
def test_a_signal_while_imports_are_waited_for_ends_at_once(before: list[AgentEvent]) -> None:
    agent = Agent()
    agent.do(*before)

    assert agent.do(INT) == [
        Leave("received SIGINT"),
        End(Outcome(succeeded=False, reason="received SIGINT", signal=2)),
    ]


# -- failures ------------------------------------------------------------------------------------------------


def test_a_failure_is_told_before_workers_are_stopped(running: Agent) -> None:
    assert running.do(WorkerFailed(BOOM)) == [Fail(BOOM), StopWorkers(SIGTERM, 30.0, "rank 1: boom")]


def test_workers_that_fail_while_they_are_stopped_prove_nothing(running: Agent) -> None:
    running.do(broken("host-b was lost"))

    assert running.do(WorkerFailed(BOOM)) == []


def test_with_a_budget_of_its_own_it_counts_failures_and_ends() -> None:
    agent = Agent(max_restarts=1)
    agent.do(Begin(), sealed(), WorkerFailed(BOOM), WorkersStopped())
    assert agent.do(sealed()) == [StartWorkers(place(), restarts=1)]
    agent.do(WorkerFailed(BOOM))

    (end,) = agent.do(WorkersStopped())

    assert end == End(
        Outcome(succeeded=False, reason="rank 1: boom; not restarting: the only restart is used", cause=BOOM)
    )


def test_membership_changes_cost_no_budget() -> None:
    agent = Agent(max_restarts=0)
    agent.do(Begin(), sealed())
    for number in range(1, 6):
        agent.do(broken("host-c joined", number), WorkersStopped(), sealed(number + 1))

    assert agent.machine.restarts == 0


def test_the_pause_before_restarts_doubles_up_to_its_limit() -> None:
    agent = Agent(backoff_s=1.0, backoff_s_max=3.0)
    agent.do(Begin(), sealed())
    pauses = []
    for _ in range(4):
        agent.do(WorkerFailed(BOOM), WorkersStopped(), now=100.0)
        assert agent.machine.stage is Stage.PAUSED
        wakeup = agent.machine.wakeup()
        assert wakeup is not None
        pauses.append(wakeup - 100.0)
        assert agent.do(Tick(), now=wakeup) == [AskRound(BOOM)]
        agent.do(sealed())

    assert pauses == [1.0, 2.0, 3.0, 3.0]


# -- training in process ---------------------------------------------------------------------------------------


def test_a_worker_that_fails_in_process_is_replaced_while_the_others_go_on(in_process: Agent) -> None:
    assert in_process.do(WorkerFailed(BOOM)) == [Replace(BOOM), ReplaceWorkers(restarts=1)]
    assert in_process.machine.stage is Stage.RUNNING


def test_a_failure_that_no_restart_can_mend_is_not_answered_with_one(in_process: Agent) -> None:
    lost = Cause("rank 1: the state is lost", ends_job=True)

    assert in_process.do(WorkerFailed(lost)) == [Fail(lost), StopWorkers(SIGTERM, 30.0, lost.sentence)]
    assert in_process.do(WorkersStopped()) == [AskRound(lost)], "the coordinator ends the run for all nodes"
    assert in_process.machine.restarts == 0


def test_an_agent_that_counts_by_itself_ends_with_such_a_failure_too() -> None:
    agent, lost = Agent(max_restarts=3), Cause("rank 1: the state is lost", ends_job=True)
    agent.do(Begin(), sealed(), TrainsInProcess(), WorkerFailed(lost))

    reason = "rank 1: the state is lost; not restarting: a restart cannot mend this"
    assert agent.do(WorkersStopped()) == [End(Outcome(succeeded=False, reason=reason, cause=lost))]


def test_such_a_failure_is_told_although_a_round_was_sealed_meanwhile(in_process: Agent) -> None:
    """The answer to the ask beside the workers came before the coordinator heard of it."""
    lost = Cause("rank 1: the state is lost", ends_job=True)
    in_process.do(broken("host-b was lost"), WorkerFailed(lost), sealed(2))

    assert in_process.do(WorkersStopped()) == [AskRound(lost)]


def test_such_a_failure_counts_where_it_comes_to_light_during_a_stop(running: Agent) -> None:
    lost = Cause("rank 1: the state is lost", ends_job=True)
    running.do(WorkerFailed(BOOM))

    assert running.do(WorkersStopped(lost)) == [AskRound(lost)]


@pytest.mark.parametrize("rules", [{"replaces": False}, {"max_restarts": 0}])
def test_a_worker_is_not_replaced_where_there_are_no_restarts(rules: dict[str, object]) -> None:
    agent = Agent(**rules)
    agent.do(Begin(), sealed(), TrainsInProcess())

    assert agent.do(WorkerFailed(BOOM)) == [Fail(BOOM), StopWorkers(SIGTERM, 30.0, "rank 1: boom")]


def test_workers_that_outlive_a_broken_round_go_on_while_the_next_is_asked_for(in_process: Agent) -> None:
    assert in_process.do(broken("host-b was lost")) == [AskRound(aside=True)]
    assert in_process.do(broken("host-b was lost")) == []  # once is enough
    assert in_process.do(WorkerFailed(BOOM)) == [Replace(BOOM), ReplaceWorkers(restarts=1)]
    assert in_process.do(sealed(2)) == [TakePlace(place(2))]
    assert in_process.do(broken("host-c joined", 2)) == [AskRound(aside=True)]


def test_a_failure_after_a_broken_round_is_not_blamed_on_a_round_that_was_sealed_since() -> None:
    agent = Agent(replaces=False)
    agent.do(Begin(), sealed(1), TrainsInProcess(), broken("host-b was lost"))

    assert agent.do(WorkerFailed(BOOM)) == [Fail(BOOM), StopWorkers(SIGTERM, 30.0, "rank 1: boom")]
    agent.do(sealed(2))  # the answer to the ask beside the workers
    assert agent.do(WorkersStopped()) == [AskRound()]


def test_work_that_was_finished_in_a_broken_round_is_told_in_the_next(in_process: Agent) -> None:
    assert in_process.do(broken("host-b was lost"), WorkersFinished()) == [Finish()]
    assert in_process.do(sealed(2)) == [TakePlace(place(2)), Finish()]


def test_workers_that_outlive_a_round_are_stopped_where_no_other_comes_about(in_process: Agent) -> None:
    failed = AskFailed("1 of 2 nodes", connected=True)

    assert in_process.do(broken("host-b was lost"), failed) == [StopWorkers(SIGTERM, 30.0, "1 of 2 nodes")]
    assert in_process.do(WorkersStopped()) == [End(Outcome(succeeded=False, reason="1 of 2 nodes", unanswered=failed))]


def test_workers_of_the_next_start_have_to_say_anew_that_they_train_in_process(in_process: Agent) -> None:
    in_process.do(RunEnded("no", failed=True))  # which stops them
    agent = Agent()
    agent.do(Begin(), sealed(1), TrainsInProcess())
    agent.machine.rules = AgentRules(replaces=False)
    agent.do(WorkerFailed(BOOM), WorkersStopped(), sealed(2))

    assert agent.do(broken("host-b was lost", 2)) == [StopWorkers(SIGTERM, 30.0, "host-b was lost")]


# -- the end ---------------------------------------------------------------------------------------------------


def test_success_waits_for_the_others_and_ends_with_the_run(running: Agent) -> None:
    assert running.do(WorkersFinished()) == [Finish()]
    assert running.do(RunEnded("finished", failed=False)) == [End(Outcome(succeeded=True, reason="finished"))]


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

    assert running.do(broken("host-b: boom")) == [AskRound()]


def test_the_end_of_the_run_by_a_failure_elsewhere_is_our_failure_too(running: Agent) -> None:
    assert running.do(RunEnded("boom; not restarting: --max-restarts is 0", failed=True, cause=BOOM)) == [
        StopWorkers(SIGTERM, 30.0, "boom; not restarting: --max-restarts is 0")
    ]
    (end,) = running.do(WorkersStopped())
    assert end == End(Outcome(succeeded=False, reason="boom; not restarting: --max-restarts is 0", cause=BOOM))


# -- signals ---------------------------------------------------------------------------------------------------


def test_a_signal_leaves_politely_passes_itself_on_and_ends(running: Agent) -> None:
    assert running.do(INT) == [Leave("received SIGINT"), StopWorkers(2, 30.0, "received SIGINT")]
    assert running.do(WorkersStopped()) == [End(Outcome(succeeded=False, reason="received SIGINT", signal=2))]


def test_a_second_signal_makes_the_stop_hard(running: Agent) -> None:
    running.do(INT)

    assert running.do(INT) == [StopWorkers(SIGKILL, 0.0, "received SIGINT again")]


@pytest.mark.parametrize("before", [[], [sealed(), WorkerFailed(BOOM), WorkersStopped()]])
def test_a_signal_while_no_workers_run_ends_at_once(before: list[AgentEvent]) -> None:
    agent = Agent(backoff_s=10.0)
    agent.do(Begin(), *before)

    assert agent.do(INT) == [
        Leave("received SIGINT"),
        End(Outcome(succeeded=False, reason="received SIGINT", signal=2)),
    ]


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


def test_nothing_happens_after_the_end(running: Agent) -> None:
    running.do(INT, WorkersStopped())

    assert running.do(WorkerFailed(BOOM)) == running.do(broken("x")) == running.do(INT) == []


# -- apart ---------------------------------------------------------------------------------------------------


def test_a_node_that_cannot_talk_to_another_leaves_first_and_joins_again_once_it_can(running: Agent) -> None:
    assert running.do(Parted("no answer from b")) == [
        Leave("no answer from b"),
        StopWorkers(SIGTERM, 30.0, "no answer from b"),
    ]
    assert running.do(WorkersStopped()) == [AwaitLink("no answer from b")]
    assert running.do(broken("it left")) == []

    (end,) = running.do(LinkMended())

    assert isinstance(end, End)
    assert end.outcome.rejoins


def test_a_node_that_stands_apart_gives_up_after_a_time_and_says_why() -> None:
    agent = Agent(apart_timeout_s=60.0)
    agent.do(Begin(), sealed(), Parted("no answer from b"), WorkersStopped(), now=5.0)

    assert agent.machine.wakeup() == 65.0
    (end,) = agent.do(Tick(), now=65.0)
    assert isinstance(end, End)
    assert not end.outcome.rejoins
    assert end.outcome.reason == "no answer from b; still so after 60 s, mend the network between them"


def test_a_node_that_stands_apart_heeds_signals(running: Agent) -> None:
    running.do(Parted("no answer from b"), WorkersStopped())

    (end,) = running.do(INT)

    assert isinstance(end, End)
    assert (end.outcome.signal, end.outcome.rejoins) == (2, False)


def test_workers_that_do_not_run_need_not_be_kept_apart() -> None:
    assert Agent().do(Begin(), Parted("no answer from b")) == []
    assert Agent().do(Begin(), sealed(), WorkerFailed(BOOM), Parted("no answer from b"), LinkMended()) == []
