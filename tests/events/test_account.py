"""What became of a run's time, from its facts."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.events.account import _HANDLERS, FINISHING, FIRST_START, GATHERING, SINCE, Accountant, Phase, Steps
from holdfast.events.entry import TIMED, Entry
from holdfast.events.summary import goodput_line, losses_by_cause, percent, short_cause, slowest_text, split_line

KILLED = "rank 1 (local rank 1, pid 11) on a: killed by SIGKILL (often the kernel's OOM killer)"


class Facts:
    """Writes the facts of agents and hands them to an accountant."""

    def __init__(self) -> None:
        self.accountant = Accountant()

    def tell(self, when: float, kind: str, host: str = "a", pid: int = 1, **data: Any) -> None:
        self.accountant.take(Entry(time=when, kind=kind, sentence=kind, data=data, host=host, pid=pid))

    def start(self, when: float, round_: int, ranks: list[int], host: str = "a") -> None:
        self.tell(when, "workers_started", host, round=round_, ranks=ranks, pids=[10 + rank for rank in ranks])

    def steps(self, when: float, host: str = "a", **ranks: tuple[int, float, float, int | None, int | None]) -> None:
        names = ("steps", "first_at", "last_at", "first_step", "last_step")
        told = {rank.removeprefix("r"): dict(zip(names, values, strict=True)) for rank, values in ranks.items()}
        self.tell(when, "steps", host, ranks=told)


@pytest.fixture
def facts() -> Facts:
    made = Facts()
    made.tell(0, "agent_started", workers=2)
    made.tell(1, "rendezvous", round=1)
    made.start(3, 1, [0, 1])
    return made


def test_every_second_of_every_rank_is_in_one_phase(facts: Facts) -> None:
    facts.steps(20, r0=(10, 6, 15, 0, 9), r1=(10, 6, 15, 0, 9))
    facts.tell(20, "run_ended", outcome="succeeded")

    account = facts.accountant.account(99)

    assert account.total_s == pytest.approx(20)
    assert account.seconds == pytest.approx(
        {Phase.WAITING: 1, Phase.STARTING: 4, Phase.STEPPING: 10, Phase.REDONE: 0, Phase.IDLE: 5}
    )
    assert [(loss.cause, loss.seconds) for loss in account.losses] == [(FINISHING, 5), (FIRST_START, 4), (GATHERING, 1)]
    assert (account.goodput, account.steps, account.measured) == (pytest.approx(0.5), 10, True)


def test_steps_that_were_lost_are_charged_to_the_failure_when_they_are_made_again(facts: Facts) -> None:
    facts.tell(13, "worker_failed", rank=1)
    facts.tell(13, "round_lost", round=1, reason=KILLED)
    facts.steps(13, r0=(10, 4, 13, 0, 9), r1=(10, 4, 13, 0, 9))
    facts.tell(14, "workers_stopped")
    facts.tell(15, "rendezvous", round=2)
    facts.start(16, 2, [0, 1])
    facts.steps(28, r0=(10, 19, 28, 5, 14), r1=(10, 19, 28, 5, 14))
    facts.tell(28, "run_ended", outcome="succeeded")

    account = facts.accountant.account(99)

    # Steps 5 to 9 come again: five of ten steps, which took ten seconds.
    assert account.seconds[Phase.REDONE] == pytest.approx(5)
    assert (account.steps, account.steps_redone) == (15, 5)
    assert losses_by_cause(account)[0] == (KILLED, pytest.approx(2 + 3 + 5))
    assert account.total_s == pytest.approx(28)


def test_a_worker_that_is_replaced_costs_only_its_own_rank(facts: Facts) -> None:
    facts.tell(10, "worker_failed", rank=1)
    facts.steps(10, r1=(6, 4, 9, 0, 5))
    facts.tell(11, "workers_replaced", round=1, ranks=[1], pids=[77], reason=KILLED)
    facts.tell(10.5, "regrouped", pid=10, round=2, rank=0, duration_ms=500)
    facts.steps(20, r0=(16, 4, 19, 0, 15), r1=(6, 14, 19, 10, 15))
    facts.tell(20, "run_ended", outcome="succeeded")

    account = facts.accountant.account(99)

    assert account.seconds[Phase.REDONE] == 0
    lost = {(loss.cause, loss.phase): loss.seconds for loss in account.losses}
    assert lost[KILLED, Phase.WAITING] == pytest.approx(0.25)  # half a second of one rank in two
    assert lost[KILLED, Phase.STARTING] == pytest.approx(1.5)
    assert lost[KILLED, Phase.IDLE] == pytest.approx(0.5)
    assert account.total_s == pytest.approx(20)


def test_steps_that_a_worker_undid_itself_are_redone(facts: Facts) -> None:
    facts.steps(20, r0=(12, 4, 15, 0, 9), r1=(12, 4, 15, 0, 9))
    facts.tell(20, "run_ended", outcome="succeeded")

    assert facts.accountant.account(99).seconds[Phase.REDONE] == pytest.approx(2)


def test_workers_that_tell_no_steps_count_as_stepping_and_the_account_says_so(facts: Facts) -> None:
    facts.tell(10, "run_ended", outcome="succeeded")

    account = facts.accountant.account(99)

    assert (account.measured, account.seconds[Phase.STEPPING]) == (False, 7)
    assert goodput_line(account).startswith("unknown: no worker called holdfast.heartbeat(step); lost 2.0 s to")
    assert percent(account) == ""


def test_a_live_run_is_accounted_up_to_now(facts: Facts) -> None:
    live = {0: Steps(5, 4, 8, 0, 4), 1: Steps(5, 4, 8, 0, 4)}

    account = facts.accountant.account(10, live)

    assert account.total_s == pytest.approx(10)
    assert account.seconds[Phase.STEPPING] == pytest.approx(5)
    assert [loss.cause for loss in account.losses if loss.phase is Phase.IDLE] == [SINCE]
    assert facts.accountant.account(20).total_s == pytest.approx(20)  # asking changes nothing


def test_a_node_that_waits_for_others_loses_the_time_of_its_ranks() -> None:
    facts = Facts()
    facts.tell(0, "agent_started", workers=2)

    account = facts.accountant.account(5)

    assert (account.seconds[Phase.WAITING], account.goodput) == (5, 0.0)


def test_two_nodes_have_their_own_times() -> None:
    facts = Facts()
    for host, ranks in (("a", [0]), ("b", [1])):
        facts.tell(0 if host == "a" else 4, "agent_started", host, workers=1)
        facts.tell(5, "rendezvous", host, round=1)
        facts.start(5, 1, ranks, host)
        facts.tell(15, "run_ended", host)

    account = facts.accountant.account(99)

    assert account.seconds[Phase.WAITING] == pytest.approx((5 + 1) / 2)
    assert account.seconds[Phase.STEPPING] == pytest.approx(10)


def test_malformed_facts_cost_only_themselves(facts: Facts) -> None:
    facts.tell(10, "steps", ranks={"0": {"steps": "many"}, "x": None})
    facts.tell(11, "run_ended")

    assert facts.accountant.account(99).total_s == pytest.approx(11)


def test_the_slowest_rank_is_named_only_where_it_is_slow(facts: Facts) -> None:
    facts.steps(14, r0=(11, 4, 14, None, None), r1=(6, 4, 14, None, None))
    facts.tell(14, "run_ended")

    assert slowest_text(facts.accountant.account(99)) == "slowest rank 1 (0.5 steps/s)"


def test_an_account_in_words(facts: Facts) -> None:
    facts.steps(20, r0=(10, 6, 15, 0, 9), r1=(10, 6, 15, 0, 9))
    facts.tell(20, "run_ended", outcome="succeeded")
    account = facts.accountant.account(99)

    assert goodput_line(account) == (
        "50.0 %; lost 5.0 s to the end, after the last step, 4.0 s to the first start, 1.0 s to gathering nodes"
    )
    assert split_line(account) == "waiting 1.0 s, starting 4.0 s, stepping 10.0 s, idle 5.0 s"
    assert short_cause(KILLED) == "rank 1 on a: killed by SIGKILL"


def test_the_time_of_a_node_that_was_lost_ends_with_it() -> None:
    facts = Facts()
    take = facts.accountant.take
    for host, rank in (("a", 0), ("b", 1)):
        take(Entry(time=0, kind="agent_started", data={"workers": 1}, host=host, node=f"node-{host}", pid=1))
        facts.tell(0, "rendezvous", host, round=1)
        facts.start(0, 1, [rank], host)
    take(Entry(time=10, kind="node_gone", sentence="b was lost", data={"node": "node-b"}, number=7))

    account = facts.accountant.account(30)

    assert sum(span.seconds for span in account.spans if span.rank == 1) == pytest.approx(10)
    assert sum(span.seconds for span in account.spans if span.rank == 0) == pytest.approx(30)


def test_steps_made_before_all_workers_were_started_count() -> None:
    facts = Facts()
    facts.tell(0, "agent_started", workers=1)
    facts.tell(1, "rendezvous", round=1)
    facts.tell(9, "workers_started", round=1, ranks=[0], pids=[10], duration_ms=7000)
    facts.steps(9, r0=(5, 4, 8, 0, 4))
    facts.tell(9, "run_ended")

    assert facts.accountant.account(99).seconds[Phase.STEPPING] == pytest.approx(5)


def test_what_a_screen_keeps_for_the_account_is_what_the_account_takes() -> None:
    assert {*_HANDLERS, "agent_started", "regrouped"} == TIMED
