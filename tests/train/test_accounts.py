"""What follows from what the workers of a round say they hold, driven without workers."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.train import events as t
from holdfast.train.events import Account
from holdfast.train.machine import HALF_BEGUN, TrainerMachine

TORN = Account(0, whole=False, synced=True)


def hear(*accounts: Account) -> list[Any]:
    """Bring a machine of rank 0 to where it hears these accounts; returns what it does then."""
    machine = TrainerMachine()
    began = [t.StepAsked(), t.RoundSealed(1, 0, len(accounts)), t.RoundOpened(), t.SharingAsked(), t.SavedFound(-1)]
    for event in began:
        effects = machine.handle(event, 0.0)
    assert isinstance(effects[-1], t.TellAccount)
    return machine.handle(t.AccountsHeard(accounts), 0.0)


def test_where_no_state_is_whole_and_no_step_was_done_workers_end_and_others_begin() -> None:
    assert hear(TORN, TORN) == [t.TrainingFailed(HALF_BEGUN)]


def test_a_worker_that_is_new_has_the_state_to_begin_with() -> None:
    assert hear(TORN, Account(0, whole=True, synced=False), TORN) == [t.MoveState(1, (0, 2))]


@pytest.mark.parametrize("new", [(), (Account(0, whole=True, synced=False),)])
def test_where_steps_would_be_lost_the_training_ends_for_all(new: tuple[Account, ...]) -> None:
    torn = Account(3, whole=False, synced=True, counted_in=1)
    reason = "no worker holds the whole state of step 3 any more, and there is no checkpoint to go back to"

    assert hear(torn, *new) == [t.CloseRun(reason, failed=True), t.TrainingFailed(reason, ends_job=True)]


def test_with_a_checkpoint_the_training_goes_back_to_what_is_whole_and_further() -> None:
    torn, away = Account(5, False, True, saved=2, counted_in=4), Account(3, True, True, saved=2, counted_in=3)

    assert hear(torn, away) == [t.MoveState(1, (0,))]
