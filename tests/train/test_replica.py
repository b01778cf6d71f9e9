"""A replica: its workers find each other, say what the leader decides, and never disagree about a step."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ReplicaLostError, RoundOverError, UnavailableError
from holdfast.store.memory import MemoryStore
from holdfast.train import events as t
from holdfast.train import neighbours, replica_lines
from holdfast.train.machine import TrainerMachine
from holdfast.train.neighbours import CALLERS_MAX, Caller
from holdfast.train.replica import SHARED, FollowerRounds, Follows, Leads, merge
from holdfast.train.replica_lines import FolderMeeting, FollowerEnd, LeaderEnd, StoreMeeting, meet

WAIT_S = 60.0
Ends = tuple[LeaderEnd, FollowerEnd, FollowerEnd]


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    with ThreadPoolExecutor(3) as pool:
        made: Any = tuple(
            pool.map(lambda index: meet(FolderMeeting(tmp_path, "replica-0"), "replica-0", index, 3), range(3))
        )
    yield made
    for end in made:
        end.close()


def die(leader: LeaderEnd) -> None:
    """Close a leader's connections as the kernel does it for a process that is killed."""
    for line in (*leader._control, *leader._news):
        line.close()


def together(*acts: Callable[[], Any]) -> list[Any]:
    """Do something on every worker at once; returns what each returned or raised."""

    def tried(act: Callable[[], Any]) -> Any:
        try:
            return act()
        except (RoundOverError, ReplicaLostError) as error:
            return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(tried, acts))


def test_other_processes_that_connect_are_turned_away_and_hold_up_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "CALLER_TIMEOUT_S", 10 * WAIT_S)  # it is not time that ends them
    with ThreadPoolExecutor(1) as pool, ExitStack() as others:
        meeting = FolderMeeting(tmp_path, "replica-0")
        leader = pool.submit(meet, meeting, "replica-0", 0, 2)
        where = tmp_path / "replica-0.json"
        while not where.exists():
            assert not leader.done()
        port, token = json.loads(where.read_text())
        crowd = []
        for said in ["x" * len(token), token, *[""] * (2 * CALLERS_MAX)]:
            crowd.append(others.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)))
            crowd[-1].sendall(said.encode())
        while crowd[2].recv(1024):  # the oldest that says nothing makes room
            pass
        follower = meet(meeting, "replica-0", 1, 2)
        leader.result(WAIT_S).close()
        follower.close()


def test_workers_of_several_hosts_find_the_leader_who_came_last(ends: Ends) -> None:
    """A follower that comes back finds what an earlier leader has said, and tries until the new one is there."""
    store = MemoryStore()
    with socket.create_server(("127.0.0.1", 0)) as gone:
        StoreMeeting(store, "replica-0", "127.0.0.1").tell(gone.getsockname()[1], "x" * 64)
    with ThreadPoolExecutor(2) as pool:
        follower = pool.submit(meet, StoreMeeting(store, "replica-0", "127.0.0.1"), "replica-0", 1, 2)
        leader = pool.submit(meet, StoreMeeting(store, "replica-0", "127.0.0.1"), "replica-0", 0, 2)
        met = leader.result(WAIT_S), follower.result(WAIT_S)

    assert met[0].token == met[1].token
    assert met[0].token not in ("", ends[0].token)
    for end in met:
        end.close()


def test_a_leader_hears_that_a_follower_is_gone_but_not_that_it_is_done(ends: Ends) -> None:
    leader, first, second = ends
    lost = threading.Semaphore(0)
    leader.watch(lost.release)
    first.close()

    assert lost.acquire(timeout=WAIT_S)
    leader.close()
    second.close()
    assert not lost.acquire(blocking=False)


def test_a_follower_hears_that_its_leader_is_gone_but_not_that_it_is_done(ends: Ends) -> None:
    leader, first, second = ends
    lost = threading.Event()
    watching, ending = FollowerRounds(first, lost.set), FollowerRounds(second, lost.set)
    watching.begin(1)
    ending.begin(1)
    leader.close()
    assert wait_for(ending) == wait_for(watching) == "the leader of this replica has ended its training"
    assert not lost.is_set()


def test_a_follower_whose_leader_dies_is_told(ends: Ends) -> None:
    lost = threading.Event()
    FollowerRounds(ends[1], lost.set)
    die(ends[0])

    assert lost.wait(WAIT_S)


def test_nothing_is_said_to_a_program_that_has_taken_the_leaders_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_lines, "MEET_S", 0.0)
    with ThreadPoolExecutor(1) as pool, socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "replica-0.json").write_text(json.dumps([server.getsockname()[1], "the token"]))
        follower = pool.submit(meet, FolderMeeting(tmp_path, "replica-0"), "replica-0", 1, 2)
        server.settimeout(WAIT_S)
        sock, _ = server.accept()
        sock.settimeout(WAIT_S)
        with sock:
            other = Caller(sock, b"another token", time.monotonic())
            sock.setblocking(True)
            with pytest.raises(ConnectionError, match="does not belong"):
                other.hear()
            assert sock.recv(1) == b""
        with pytest.raises(UnavailableError, match="cannot be reached"):
            follower.result(WAIT_S)


# -- one report of several ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reports", "merged"),
    [
        ([t.RoundOpened(), t.RoundOpened()], t.RoundOpened()),
        ([t.RoundOpened(), t.RoundLost("host-b is gone")], t.RoundLost("host-b is gone")),
        ([t.RoundLost("mine"), t.RoundLost("theirs", touched=True)], t.RoundLost("mine", touched=True)),
        ([t.StepRolledBack(whole=True), t.StepRolledBack(whole=False)], t.StepRolledBack(whole=False)),
        ([t.SavedRestored(4), t.SavedUnreadable()], t.SavedUnreadable()),
        ([t.SavedFound(4), t.SavedFound(4)], t.SavedFound(4)),
        ([None, None], None),
    ],
)
def test_the_worst_report_counts(reports: list[Any], merged: Any) -> None:
    assert merge(reports) == merged


def test_every_effect_and_report_of_a_replica_can_be_said() -> None:
    from holdfast.train.replica import _decode, _encode

    effects = [kind(0, (1,)) if kind is t.MoveState else kind() for kind in SHARED]
    for each in (*effects, t.RoundLost("gone", touched=True), t.StepRolledBack(whole=False), t.StepGiven()):
        assert _decode(*_encode(each)) == each


# -- exchanges ---------------------------------------------------------------------------------------------------------


def test_a_sum_is_the_same_for_all(ends: Ends) -> None:
    sums = together(
        *(lambda end=end, value=value: end.exchange(value, lambda s: 10 * s) for value, end in enumerate(ends))
    )

    assert sums == [30.0, 30.0, 30.0]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_where_one_fails_all_give_the_step_up(ends: Ends, failing: int) -> None:
    def act(index: int) -> Any:
        if index == failing:
            return ends[index].fail("host-b is gone")
        return ends[index].exchange(0.0, lambda s: s)

    outcomes = together(*(lambda index=index: act(index) for index in range(3)))

    for index, outcome in enumerate(outcomes):
        if index != failing:
            assert isinstance(outcome, RoundOverError)
            assert str(outcome) == "host-b is gone"


def test_a_sum_over_the_replicas_that_fails_on_the_leader_fails_on_all(ends: Ends) -> None:
    def broken(_: float) -> float:
        raise RoundOverError("the ring is broken")

    outcomes = together(*(lambda end=end: end.exchange(1.0, broken) for end in ends))

    assert [str(outcome) for outcome in outcomes] == ["the ring is broken"] * 3


def test_a_worker_that_is_gone_ends_the_waits_of_the_others(ends: Ends) -> None:
    leader, first, second = ends
    second.close()
    outcomes = together(lambda: leader.exchange(1.0, lambda s: s), lambda: leader.close() or first.hear())

    assert all(isinstance(outcome, ReplicaLostError) for outcome in outcomes)


# -- news --------------------------------------------------------------------------------------------------------------


def wait_for(rounds: FollowerRounds) -> str:
    told, reasons = threading.Event(), []
    rounds.on_break(lambda reason: (reasons.append(reason), told.set()))
    assert told.wait(WAIT_S)
    return str(reasons[0])


def test_a_follower_hears_that_the_round_is_over(ends: Ends) -> None:
    rounds = FollowerRounds(ends[1])
    rounds.begin(3)
    assert rounds.broken is None
    ends[0].tell_over(3, "host-b is gone")

    assert wait_for(rounds) == "host-b is gone"


def test_old_news_do_not_end_the_next_round(ends: Ends) -> None:
    rounds = FollowerRounds(ends[1])
    rounds.begin(4)
    ends[0].tell_over(3, "old")
    ends[0].tell_over(4, "new")

    assert wait_for(rounds) == "new"


def test_news_that_are_faster_than_the_round_itself_count(ends: Ends) -> None:
    rounds = FollowerRounds(ends[1])
    rounds.begin(3)
    ends[0].tell_over(4, "over before it began")
    wait_for(rounds)
    rounds.begin(4)

    assert rounds.broken == "over before it began"


def test_a_leader_that_is_gone_ends_the_round(ends: Ends) -> None:
    rounds = FollowerRounds(ends[1])
    rounds.begin(3)
    die(ends[0])

    assert "same replica is gone" in wait_for(rounds)


# -- decisions ---------------------------------------------------------------------------------------------------------


class Hands:
    """As much of a trainer as a decider needs, which notes what it carries out."""

    def __init__(self, reports: dict[type, Any] | None = None) -> None:
        self.done: list[str] = []
        self.reports = reports or {}

    def news(self) -> list[Any]:
        return []

    def is_save_due(self) -> bool:
        return True


def test_the_followers_do_what_the_leader_decides_and_get_its_answer(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def carry_out(hands: Any, effect: Any) -> Any:
        hands.done.append(type(effect).__name__)
        return hands.reports.get(type(effect))

    monkeypatch.setattr("holdfast.train.replica.carry_out", carry_out)
    machine = TrainerMachine()
    whole, half = t.StepRolledBack(whole=True), t.StepRolledBack(whole=False)
    workers: list[Any] = [Hands({t.RollBack: whole}), Hands({t.RollBack: whole}), Hands({t.RollBack: half})]
    machine.stage, machine.round = machine.stage.STEPPING, t.RoundSealed(1, 0, 2)
    machine.synced, machine._regroup = True, None
    leads = Leads(machine, ends[0])
    follows = [Follows(end, FollowerRounds(end)) for end in ends[1:]]
    event = t.StepFailed(t.Blame.ROUND, "host-b is gone")

    answers = together(
        lambda: leads.drive(workers[0], event),
        lambda: follows[0].drive(workers[1], event),
        lambda: follows[1].drive(workers[2], event),
    )

    assert answers == [t.StepUndone()] * 3
    assert [worker.done for worker in workers] == [["RollBack"]] * 3
    assert machine.whole is False, "one worker could not undo its part"


def test_a_step_of_all_is_counted_by_all_before_any_gets_the_answer(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    def carry_out(hands: Any, effect: Any) -> Any:
        hands.done.append(type(effect).__name__)
        return hands.reports.get(type(effect))

    monkeypatch.setattr("holdfast.train.replica.carry_out", carry_out)
    machine = TrainerMachine()
    machine.stage, machine.round = machine.stage.READY, t.RoundSealed(1, 1, 2)
    machine.synced, machine._regroup, machine._vote_at = True, None, 100
    workers: list[Any] = [Hands({t.SettleSums: t.SumsSettled()}) for _ in range(3)]
    deciders = [Leads(machine, ends[0]), *(Follows(end, FollowerRounds(end)) for end in ends[1:])]

    def do_step(decider: Any, hands: Any) -> list[Any]:
        return [decider.drive(hands, event) for event in (t.StepEntered(), t.StepDone(0.1, False))]

    answers = together(*(lambda pair=pair: do_step(*pair) for pair in zip(deciders, workers, strict=True)))

    assert answers == [[t.StepBegun(), t.StepCounted()]] * 3
    assert [worker.done for worker in workers] == [["MarkState", "SettleSums", "CountStep"]] * 3
    assert machine.step == 1


def test_what_is_told_later_comes_before_the_next_words_and_in_one_piece(ends: Ends) -> None:
    leader, follower, _ = ends
    leader.tell_later("do", 1)
    leader.tell_later("do", 2)

    leader.tell("answer", 3)

    assert follower.hear() == ["do", 1]
    assert follower._control._unheard, "the rest has come with it"
    assert [follower.hear(), follower.hear()] == [["do", 2], ["answer", 3]]
