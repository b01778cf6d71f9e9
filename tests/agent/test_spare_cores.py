"""A template is prepared beside workers that leave a core to it."""

from __future__ import annotations

import os

import pytest

from holdfast.agent.spare_cores import BUSY_LOOK_S, IDLE_LOOK_S, PATIENCE_S, SpareCores, forks_first
from holdfast.workers.cores import cpu_seconds, usable_cores


def looks(spare: SpareCores, cores_used: float, until: float) -> float | None:
    """Look whenever asked to, at workers that use so many cores; returns when a core was found to be left over."""
    while (now := spare.wakeup()) is not None and now <= until:
        if spare.look(cores_used * now, now):
            return now
    return None


@pytest.mark.parametrize(("workers", "used"), [(1, 1.0), (4, 0.5), (8, 3.2)])
def test_workers_that_leave_a_core_make_room_at_the_first_look(workers: int, used: float) -> None:
    spare = SpareCores(4.0)
    spare.begin(0.0, workers=True)

    assert looks(spare, used, 100.0) == BUSY_LOOK_S


def test_workers_that_use_every_core_are_left_alone_for_a_while() -> None:
    spare = SpareCores(2.0)
    spare.begin(0.0, workers=True)

    assert looks(spare, 2.0, PATIENCE_S - 1) is None
    assert looks(spare, 2.0, PATIENCE_S + 1) == PATIENCE_S


def test_room_is_made_when_the_imports_of_workers_are_done() -> None:
    spare = SpareCores(2.0)
    spare.begin(0.0, workers=True)
    assert looks(spare, 2.0, 1.5) is None

    assert spare.look(2.0 * 1.5 + 0.1, 1.75)


def test_before_the_first_workers_it_waits_a_moment_for_the_round() -> None:
    spare = SpareCores(1.0)
    spare.begin(0.0, workers=False)

    assert looks(spare, 0.0, 100.0) == IDLE_LOOK_S


def test_it_is_said_once_and_not_after_the_end() -> None:
    spare = SpareCores(1.0)
    assert spare.wakeup() is None
    spare.begin(0.0, workers=False)
    spare.end()

    assert (spare.wakeup(), spare.look(0.0, 100.0)) == (None, False)


def test_many_workers_to_a_core_are_forked_from_the_start() -> None:
    assert [forks_first(workers, 2.0) for workers in (1, 2, 3, 4, 16)] == [False, False, False, True, True]


def test_what_processes_have_used_is_read_from_the_kernel() -> None:
    assert 0 < usable_cores() <= (os.cpu_count() or 1)
    assert cpu_seconds([os.getpid(), 2**22 + 1]) > 0
