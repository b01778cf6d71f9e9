"""The job machine: events in, effects out, in virtual time."""

import itertools
import random

import pytest

from holdfast.machine import Tick
from holdfast.schedulers.local.machine import (
    CancelAsked,
    JobBegun,
    JobEnded,
    JobMachine,
    Phase,
    ReplicaEnded,
    ReplicaStarted,
    StartReplica,
    StopReplica,
)
from holdfast.schedulers.local.record import RolePlan
from holdfast.specs import AppState, RetryPolicy

SIGTERM = -15


class Job:
    """A machine with a clock, whose driver always starts what it is told to."""

    def __init__(self, *roles, sizes=None):
        self.roles = roles or (RolePlan("main"),)
        sizes = sizes or {role.name: 2 for role in self.roles}
        replicas = [(role.name, k) for role in self.roles for k in range(sizes[role.name])]
        self.machine = JobMachine(self.roles, replicas, retry_delay_s=1.0)
        self.now = 100.0
        self.starts = []
        self.stops = []
        self.hard = []
        self.ended = None

    def tell(self, event):
        pending = [event]
        while pending:
            for effect in self.machine.handle(pending.pop(0), self.now):
                match effect:
                    case StartReplica(number):
                        self.starts.append(number)
                        pending.append(ReplicaStarted(number, 1000 + number, self.now))
                    case StopReplica(number, hard):
                        self.stops.append(number)
                        self.hard += [number] if hard else []
                    case JobEnded():
                        assert self.ended is None, "a job ends once"
                        self.ended = effect
            self.machine.check()
        return self

    def begin(self):
        return self.tell(JobBegun())

    def end(self, number, code=0, *, stopped=False, cause="it broke"):
        self.now += 0.001
        return self.tell(ReplicaEnded(number, code, cause, stopped, self.now))

    def obey(self, code=SIGTERM):
        """End the replicas that are being stopped."""
        for number, replica in enumerate(self.machine.replicas):
            if replica.phase is Phase.STOPPING:
                self.end(number, code, stopped=True)
        return self

    def pass_time(self, seconds):
        self.now += seconds
        return self.tell(Tick())

    def states(self):
        return [replica.state for replica in self.machine.snapshot().replicas]


def test_all_replicas_start_together_and_the_job_succeeds_when_all_have():
    job = Job().begin()

    assert job.starts == [0, 1]
    assert job.machine.state is AppState.RUNNING
    assert job.end(0).ended is None
    assert job.end(1).ended == JobEnded(AppState.SUCCEEDED, "")


def test_one_dead_replica_ends_the_others_and_is_the_cause():
    job = Job().begin().end(1, 3)

    assert job.stops == [0]
    assert job.machine.state is AppState.RUNNING
    assert "1 of 2 replicas are still being stopped" in job.machine.sentence
    job.obey()
    assert job.ended == JobEnded(AppState.FAILED, "main/1 failed: it broke")
    assert job.states() == ["CANCELLED", "FAILED"]
    assert job.machine.replicas[0].cause == "it was stopped: main/1 failed"
    assert [each.exit_code for each in job.machine.replicas] == [SIGTERM, 3]


def test_a_replica_that_cannot_be_started_fails_without_an_exit_code():
    job = Job().begin().end(0, None, cause="no such program")
    job.obey()

    assert job.ended == JobEnded(AppState.FAILED, "main/0 failed: no such program")
    assert job.machine.replicas[0].exit_code is None


def test_a_replica_that_fails_while_it_is_stopped_is_not_the_cause():
    job = Job().begin().end(0, 3, cause="first").end(1, 4, cause="second")

    assert job.ended == JobEnded(AppState.FAILED, "main/0 failed: first")
    assert job.states() == ["FAILED", "FAILED"]


def test_a_replica_that_succeeded_before_its_stop_reached_it_has_succeeded():
    job = Job().begin().end(0, 3).end(1, 0, stopped=False)

    assert job.states() == ["FAILED", "SUCCEEDED"]


# -- retries -----------------------------------------------------------------------------------------------------------


def test_by_replica_only_the_dead_one_starts_again():
    job = Job(RolePlan("main", 1, RetryPolicy.REPLICA)).begin().end(0, 3)

    assert job.stops == []
    assert job.starts == [0, 1, 0]
    job.end(1, 3)
    assert job.starts == [0, 1, 0, 1], "each replica has its own retries"
    job.end(0).end(1, 3)
    assert job.ended.state is AppState.FAILED
    assert job.ended.sentence == "main/1 failed: it broke (after 1 retries)"
    assert job.machine.num_restarts == 2


def test_by_role_all_of_the_role_start_again_and_no_others():
    job = Job(RolePlan("a", 1, RetryPolicy.ROLE), RolePlan("b")).begin()
    job.end(0)  # it has succeeded, and starts again with its role
    job.end(1, 3)

    assert job.stops == []
    assert job.starts == [0, 1, 2, 3, 0, 1]
    job.end(0, 5)
    assert job.stops == [1, 2, 3], "the role has no retries left, so the job ends"


def test_by_application_everything_is_stopped_and_starts_again():
    job = Job(RolePlan("a", 2), RolePlan("b")).begin().end(0, 3)

    assert job.stops == [1, 2, 3]
    assert job.starts == [0, 1, 2, 3]
    assert job.states() == ["PENDING", "RUNNING", "RUNNING", "RUNNING"]
    assert job.machine.sentence == "a/0 failed: it broke; started again, retry 1 of 2"
    job.obey()
    assert job.starts == [0, 1, 2, 3] * 2
    assert {each.restarts for each in job.machine.replicas} == {1}
    for number in range(4):
        job.end(number)
    assert job.ended == JobEnded(AppState.SUCCEEDED, "")
    assert job.machine.num_restarts == 1


def test_the_role_that_fails_says_how_often_the_app_is_retried():
    job = Job(RolePlan("a", 2), RolePlan("b", 0)).begin().end(2, 3)
    job.obey()

    assert job.ended.state is AppState.FAILED


def test_the_first_retry_comes_at_once_and_each_later_one_after_a_longer_wait():
    job = Job(RolePlan("main", 9, RetryPolicy.REPLICA), sizes={"main": 1}).begin()
    waits = []
    for _ in range(9):
        job.end(0, 1)
        due = job.machine.wakeup()
        waits.append(0.0 if due is None else due - job.now)
        if due is not None:
            assert job.machine.state is AppState.PENDING
            assert job.states() == ["PENDING"]
            job.pass_time(due - job.now)

    assert waits == pytest.approx([0, 1, 2, 4, 8, 16, 30, 30, 30])
    assert job.end(0, 1).ended.state is AppState.FAILED


def test_a_wider_restart_takes_a_narrower_one_in():
    job = Job(RolePlan("a", 3, RetryPolicy.REPLICA), RolePlan("b", 1)).begin()
    job.end(0, 1).end(0, 1)  # now a/0 waits for its second retry
    job.end(2, 1)  # and the app is to start again

    assert job.stops == [1, 3]
    job.obey().pass_time(1.0)
    assert sorted(job.starts[5:]) == [0, 1, 2, 3]


# -- going on with fewer -----------------------------------------------------------------------------------------------


def test_the_job_goes_on_while_enough_replicas_stand():
    job = Job(RolePlan("main", min_replicas=2), sizes={"main": 4}).begin().end(3, 1)

    assert job.stops == []
    assert "the job goes on without it" in job.machine.sentence
    job.end(0).end(1).end(2)
    assert job.ended.state is AppState.SUCCEEDED
    assert job.ended.sentence.startswith("main/3 failed: it broke; the job goes on without it")
    assert job.states() == ["SUCCEEDED"] * 3 + ["FAILED"]


def test_with_too_few_left_the_first_failure_is_the_cause():
    job = Job(RolePlan("main", min_replicas=2), sizes={"main": 3}).begin()
    job.end(2, 1, cause="first").end(0, 1, cause="second")
    job.obey()

    assert job.ended == JobEnded(AppState.FAILED, "main/2 failed: first")


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_a_cancelled_job_ends_when_nothing_runs_any_more():
    job = Job().begin().end(0).tell(CancelAsked()).tell(CancelAsked())

    assert job.stops == [1]
    assert job.ended is None
    job.obey(-9)
    assert job.ended == JobEnded(AppState.CANCELLED, "the job was cancelled")
    assert job.states() == ["SUCCEEDED", "CANCELLED"]


def test_who_is_being_stopped_can_be_stopped_harder():
    job = Job().begin().end(0).tell(CancelAsked()).tell(CancelAsked(hard=True)).tell(CancelAsked(hard=True))

    assert job.stops == [1, 1]
    assert job.hard == [1]
    assert job.obey(-9).ended.state is AppState.CANCELLED


def test_a_failing_job_can_be_stopped_harder_and_stays_failed():
    job = Job().begin().end(0, 3).tell(CancelAsked(hard=True))

    assert job.hard == [1]
    assert job.obey(-9).ended.state is AppState.FAILED


def test_a_job_can_be_killed_at_once():
    assert Job().begin().tell(CancelAsked(hard=True)).hard == [0, 1]


def test_a_job_that_is_cancelled_before_it_begins_never_starts():
    job = Job().tell(CancelAsked())

    assert job.ended.state is AppState.CANCELLED
    assert job.begin().starts == []
    assert job.machine.replicas[0].cause == "it was never started: the job was cancelled"


def test_a_job_that_is_cancelled_while_it_waits_for_a_retry_does_not_start_again():
    job = Job(RolePlan("main", 5), sizes={"main": 1}).begin().end(0, 1).end(0, 1)
    assert job.machine.wakeup() is not None
    job.tell(CancelAsked())

    assert job.ended.state is AppState.CANCELLED
    assert job.pass_time(100).starts == [0, 0]


def test_who_waits_for_a_retry_when_the_job_ends_is_not_the_one_that_ended_it():
    roles = (RolePlan("patient", 5, RetryPolicy.REPLICA), RolePlan("final"))
    job = Job(*roles, sizes={"patient": 1, "final": 1}).begin().end(0, 1).end(0, 1, cause="it tripped")
    assert job.states() == ["PENDING", "RUNNING"]
    job.end(1, 5)

    assert job.ended == JobEnded(AppState.FAILED, "final/0 failed: it broke")
    assert job.states() == ["CANCELLED", "FAILED"]
    assert job.machine.replicas[0].cause == "it was not started again: final/0 failed; before, it tripped"


def test_a_job_that_is_already_failing_stays_failed():
    job = Job().begin().end(0, 3).tell(CancelAsked())
    job.obey()

    assert job.ended.state is AppState.FAILED


def test_an_ended_job_stays_as_it_is():
    job = Job(sizes={"main": 1}).begin().end(0)
    job.tell(CancelAsked()).pass_time(1000)

    assert job.ended.state is AppState.SUCCEEDED
    assert job.machine.wakeup() is None


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_a_job_ends_once_and_nothing_runs_then(seed):
    """Random exits, stops and cancels under random policies: every job comes to an end."""
    rng = random.Random(seed)
    roles = [
        RolePlan(name, rng.randrange(4), rng.choice(list(RetryPolicy)), rng.choice([None, 1, 2]))
        for name in "ab"[: rng.randint(1, 2)]
    ]
    job = Job(*roles, sizes={role.name: rng.randint(2, 3) for role in roles}).begin()
    for step in itertools.count():
        if job.ended is not None:
            break
        assert step < 10_000
        live = [
            (n, each) for n, each in enumerate(job.machine.replicas) if each.phase in (Phase.RUNNING, Phase.STOPPING)
        ]
        if rng.random() < 0.02:
            job.tell(CancelAsked())
        elif live:
            number, replica = rng.choice(live)
            stopped = replica.phase is Phase.STOPPING and rng.random() < 0.8
            job.end(number, SIGTERM if stopped else rng.choice([0, 0, 1, -9]), stopped=stopped)
        else:
            due = job.machine.wakeup()
            assert due is not None, "nothing runs, nothing is due, and yet the job has not ended"
            job.pass_time(max(0.0, due - job.now))

    assert all(each.phase is Phase.ENDED for each in job.machine.replicas)
    for replica in job.machine.replicas:
        policy = next(role for role in roles if role.name == replica.role)
        if all(role.max_retries == 0 for role in roles):
            assert replica.restarts == 0, policy
