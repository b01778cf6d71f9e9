"""What follows from what the workers of a round say they hold, driven without workers."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.train import events as t
from holdfast.train.events import Account
from holdfast.train.machine import HALF_BEGUN, LONG_WAIT_S, LOOK_MAX_S, RESTORES_MAX, TrainerMachine

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


# -- checkpoints that are further than the workers of a round ----------------------------------------------------------


def train_in_round_1(rank: int, *, world_size: int = 2, keeps: bool = True) -> TrainerMachine:
    """Return a machine that has counted one step in round 1, and undid the next because a worker is gone."""
    machine = TrainerMachine(keeps=keeps)
    mine = Account(0, whole=True, synced=False)
    events: list[Any] = [t.StepAsked(), t.RoundSealed(1, rank, world_size), t.RoundOpened(), t.SharingAsked()]
    events += [t.SavedFound(-1), t.AccountsHeard((mine,) * world_size), t.StateMoved(0), t.StateSynced()]
    events += [t.StepEntered(), t.StepDone(0.0), t.SumsSettled(), t.VotesHeard((t.Vote(0),) * world_size)]
    events += [t.StepAsked(), t.StepEntered(), t.StepFailed(t.Blame.ROUND, "a worker is gone")]
    events += [t.StepRolledBack(whole=True), t.StepAsked()]
    for event in events:
        effects = machine.handle(event, 0.0)
        machine.check()
    assert isinstance(effects[-1], t.AskRound)
    return machine


def begin_round_2(machine: TrainerMachine, world_size: int = 1, now: float = 0.0) -> list[Any]:
    """Return what a machine of rank 0 does first for the state of another round."""
    machine.handle(t.RoundSealed(2, 0, world_size), now)
    machine.handle(t.RoundOpened(), now)
    return machine.handle(t.SharingAsked(), now)


def told(effects: list[Any]) -> Account:
    (effect,) = effects
    assert isinstance(effect, t.TellAccount)
    return effect.account


def test_where_the_one_that_writes_checkpoints_lives_nobody_looks_for_one() -> None:
    mine = told(begin_round_2(train_in_round_1(rank=1), world_size=2))
    writer = told(begin_round_2(train_in_round_1(rank=0), world_size=2))

    assert (mine.straight, mine.wrote, writer.straight, writer.wrote) == (True, False, True, True)
    machine = train_in_round_1(rank=1)
    begin_round_2(machine, world_size=2)
    assert machine.handle(t.AccountsHeard((mine, writer)), 0.0) == [t.StateShared()]


def test_without_the_one_that_writes_checkpoints_all_look_for_one_that_is_further() -> None:
    machine = train_in_round_1(rank=1)
    mine = told(begin_round_2(machine))

    assert machine.handle(t.AccountsHeard((mine,)), 0.0) == [t.FindSaved(LOOK_MAX_S)]
    mine = told(machine.handle(t.SavedFound(2), 0.0))
    assert (mine.step, mine.saved, mine.straight) == (1, 2, False)
    assert machine.handle(t.AccountsHeard((mine,)), 0.0) == [t.RestoreSaved(1, LOOK_MAX_S)]
    assert machine.handle(t.SavedRestored(2), 0.0) == [t.StateShared()]
    assert machine.step == 2


@pytest.mark.parametrize("saved", [-1, 0, 1])
def test_where_no_checkpoint_is_further_the_workers_go_on_with_what_they_have(saved: int) -> None:
    machine = train_in_round_1(rank=1)
    machine.handle(t.AccountsHeard((told(begin_round_2(machine)),)), 0.0)

    assert machine.handle(t.AccountsHeard((told(machine.handle(t.SavedFound(saved), 0.0)),)), 0.0) == [t.StateShared()]
    assert machine.step == 1


def test_a_worker_that_has_looked_tells_the_same_again_while_the_others_look() -> None:
    machine = TrainerMachine()
    for event in (t.StepAsked(), t.RoundSealed(2, 0, 2), t.RoundOpened(), t.SharingAsked()):
        effects = machine.handle(event, 0.0)
    assert effects == [t.FindSaved(None)], "it has no state of its own, and must know"
    mine = told(machine.handle(t.SavedFound(2), 0.0))

    assert told(machine.handle(t.AccountsHeard((mine, Account(1, True, True, straight=True))), 0.0)) == mine


def test_without_checkpoints_nobody_looks_for_one() -> None:
    machine = train_in_round_1(rank=1, keeps=False)

    mine = told(begin_round_2(machine, now=LONG_WAIT_S * 2))
    assert not mine.straight
    assert machine.handle(t.AccountsHeard((mine,)), 0.0) == [t.StateShared()]


def test_a_round_that_took_long_is_worth_a_look() -> None:
    assert begin_round_2(train_in_round_1(rank=0), now=LONG_WAIT_S * 2) == [t.FindSaved(LOOK_MAX_S)]


def test_a_worker_that_has_its_state_goes_on_without_a_checkpoint_that_cannot_be_read() -> None:
    machine = train_in_round_1(rank=1)
    begin_round_2(machine)
    for number in range(3, 3 + RESTORES_MAX):
        mine = told(machine.handle(t.SavedFound(2), 0.0))
        assert isinstance(machine.handle(t.AccountsHeard((mine,)), 0.0)[-1], t.RestoreSaved)
        assert machine.handle(t.SavedUnreadable(), 0.0) == [
            t.RoundGone("the checkpoint that was there a moment ago cannot be read any more")
        ]
        machine.handle(t.RoundLost("unreadable"), 0.0)
        for event in (t.RoundSealed(number, 0, 1), t.RoundOpened(), t.SharingAsked()):
            machine.handle(event, 0.0)

    mine = told(machine.handle(t.SavedFound(2), 0.0))
    assert mine.refused == 2
    assert machine.handle(t.AccountsHeard((mine,)), 0.0) == [t.StateShared()]
    assert machine.step == 1
