"""The stop machine: given these events at these times, exactly these effects."""

import signal

from hypothesis import given
from hypothesis import strategies as st

from holdfast.machine import Tick
from holdfast.workers.machine import (
    KillStrays,
    SignalWorker,
    StopAsked,
    StopEnded,
    StopMachine,
    StopState,
    StraysGone,
    WorkerGone,
)

TERM, KILL = signal.SIGTERM, signal.SIGKILL


def test_workers_that_obey_are_terminated_and_swept_after():
    machine = StopMachine([1, 0])

    assert machine.handle(StopAsked(TERM, 30), 100.0) == [SignalWorker(0, TERM), SignalWorker(1, TERM)]
    assert machine.wakeup() == 130.0
    assert machine.handle(WorkerGone(1), 100.1) == []
    assert machine.handle(WorkerGone(0), 100.2) == [KillStrays()]
    assert machine.handle(StraysGone(), 100.3) == [StopEnded((), "all workers have ended")]
    assert machine.wakeup() is None


def test_who_outlives_the_grace_is_killed():
    machine = StopMachine([0, 1])
    machine.handle(StopAsked(TERM, 30), 0.0)
    machine.handle(WorkerGone(0), 1.0)

    assert machine.handle(Tick(), 29.9) == []
    assert machine.handle(Tick(), 30.0) == [SignalWorker(1, KILL)]
    assert machine.handle(WorkerGone(1), 30.1) == [KillStrays()]
    assert machine.handle(StraysGone(), 30.2) == [StopEnded((), "local rank 1 did not end in time and was killed")]


def test_who_outlives_even_sigkill_is_reported_and_left():
    machine = StopMachine([0], kill_timeout_s=5)
    machine.handle(StopAsked(KILL, 30), 0.0)

    assert machine.handle(Tick(), 5.0) == [KillStrays()]
    [ended] = machine.handle(Tick(), 10.0)
    assert ended.stuck == (0,)
    assert "hangs in the kernel" in ended.sentence


def test_strays_that_cannot_be_killed_do_not_hold_up_the_stop():
    machine = StopMachine([0], kill_timeout_s=5)
    machine.handle(WorkerGone(0), 0.0)
    assert machine.handle(StopAsked(TERM, 30), 1.0) == [KillStrays()]

    [ended] = machine.handle(Tick(), 6.0)

    assert ended.stuck == ()
    assert "could not be ended" in ended.sentence


def test_asking_harder_wins_and_asking_softer_changes_nothing():
    machine = StopMachine([0])
    machine.handle(StopAsked(TERM, 30), 0.0)

    assert machine.handle(StopAsked(TERM, 60), 1.0) == []
    assert machine.wakeup() == 30.0
    assert machine.handle(StopAsked(TERM, 5), 2.0) == []
    assert machine.wakeup() == 7.0
    assert machine.handle(StopAsked(KILL, 0), 3.0) == [SignalWorker(0, KILL)]
    assert machine.handle(StopAsked(TERM, 30), 4.0) == []


def test_a_grace_of_zero_kills_at_once():
    assert StopMachine([0]).handle(StopAsked(TERM, 0), 0.0) == [SignalWorker(0, KILL)]


def test_an_end_without_a_stop_asks_for_nothing():
    machine = StopMachine([0])

    assert machine.handle(WorkerGone(0), 0.0) == []
    assert machine.handle(Tick(), 1e9) == []
    assert machine.snapshot() == {"state": "running", "alive": [], "deadline": None}


_events = st.one_of(
    st.builds(StopAsked, st.sampled_from([TERM, KILL]), st.sampled_from([0.0, 1.0, 30.0])),
    st.builds(WorkerGone, st.integers(0, 3)),
    st.just(StraysGone()),
    st.just(Tick()),
)


@given(st.lists(st.tuples(_events, st.floats(0, 20))))
def test_any_history_ends_once_asked_and_never_signals_the_dead(history):
    machine, now, gone, ended, asked = StopMachine(range(4)), 0.0, set(), 0, False
    # After whatever happened, time alone brings a stop to its end.
    for event, step in [*history, *[(Tick(), 31.0)] * 4]:
        now += step
        if isinstance(event, WorkerGone):
            gone.add(event.local_rank)
        asked = asked or isinstance(event, StopAsked)
        for effect in machine.handle(event, now):
            if isinstance(effect, SignalWorker):
                assert effect.local_rank not in gone
            ended += isinstance(effect, StopEnded)
        machine.check()

    assert ended == int(asked)
    assert (machine.state is StopState.DONE) == asked
