"""Timers under virtual time."""

from __future__ import annotations

from holdfast.machine import Tick
from holdfast.timer.machine import (
    LOOK_S,
    TIMERS_MAX,
    TimerMachine,
    TimerReleased,
    TimerSet,
    TimersExpired,
    WorkerForgotten,
)


def run_until(machine: TimerMachine, now: float, until: float) -> list[tuple[float, TimersExpired]]:
    """Tick whenever the machine asks for it."""
    found: list[tuple[float, TimersExpired]] = []
    while (wakeup := machine.wakeup()) is not None and wakeup <= until:
        now = max(now, wakeup)
        found += [(now, effect) for effect in machine.handle(Tick(), now)]
        machine.check()
    return found


def test_a_timer_expires_at_its_deadline_and_is_reported_once() -> None:
    machine = TimerMachine()
    timer = TimerSet(1, "step", 112.0)
    machine.handle(timer, 100.0)

    assert run_until(machine, 100.0, 111.9) == []
    assert run_until(machine, 111.9, 500.0) == [(112.0, TimersExpired(1, (timer,)))]
    assert machine.wakeup() is None


def test_a_release_in_time_is_the_end_of_it() -> None:
    machine = TimerMachine()
    machine.handle(TimerSet(1, "step", 112.0), 100.0)
    machine.handle(TimerReleased(1, "step"), 111.0)
    machine.handle(TimerReleased(1, "never set"), 111.0)
    machine.handle(TimerReleased(2, "nobody"), 111.0)

    assert machine.wakeup() is None
    assert machine.handle(Tick(), 500.0) == []


def test_setting_a_timer_again_replaces_it() -> None:
    machine = TimerMachine()
    machine.handle(TimerSet(1, "step", 101.0), 100.0)
    machine.handle(TimerSet(1, "step", 103.0), 100.5)

    assert [when for when, _ in run_until(machine, 100.5, 200.0)] == [103.0]


def test_all_expired_timers_of_a_worker_come_together_the_earliest_first() -> None:
    machine = TimerMachine()
    outer, inner = TimerSet(1, "outer", 101.5), TimerSet(1, "inner", 101.0)
    other, later = TimerSet(2, "other", 101.2), TimerSet(1, "later", 900.0)
    for timer in (outer, inner, other, later):
        machine.handle(timer, 100.0)

    assert machine.handle(Tick(), 102.0) == [TimersExpired(1, (inner, outer)), TimersExpired(2, (other,))]
    assert machine.snapshot() == {"timers": []}


def test_a_worker_that_is_gone_has_no_timers() -> None:
    machine = TimerMachine()
    machine.handle(TimerSet(1, "step", 101.0), 100.0)
    machine.handle(WorkerForgotten(1), 100.5)

    assert machine.wakeup() is None


def test_a_pause_of_our_own_is_not_counted() -> None:
    machine = TimerMachine()
    machine.handle(TimerSet(1, "step", 110.0), 100.0)
    machine.handle(Tick(), 101.0)

    assert machine.handle(Tick(), 101.0 + LOOK_S + 1000.0) == []
    assert [when for when, _ in run_until(machine, 1106.0, 9999.0)] == [1110.0]


def test_a_machine_that_slept_without_timers_was_not_paused() -> None:
    machine = TimerMachine()
    machine.handle(Tick(), 0.0)
    machine.handle(TimerSet(1, "step", 1001.0), 1000.0)

    assert [when for when, _ in run_until(machine, 1000.0, 9999.0)] == [1001.0]


def test_one_worker_cannot_fill_the_memory() -> None:
    machine = TimerMachine()
    for number in range(TIMERS_MAX + 100):
        machine.handle(TimerSet(1, f"scope {number}", 200.0), 100.0)
    machine.check()

    assert len(machine.snapshot()["timers"]) == TIMERS_MAX
