"""A member's decisions: events in, effects out, at virtual times."""

import pytest

from holdfast.coordinator import messages as wire
from holdfast.coordinator.messages import (
    Ack,
    Beat,
    Broken,
    Cause,
    Closed,
    Heir,
    Join,
    Newcomers,
    NodeSpec,
    Out,
    Phase,
    Place,
    Rejected,
    Resend,
    RoundId,
    RunSettings,
    Sealed,
)
from holdfast.machine import Tick
from holdfast.rendezvous.machine import (
    Ask,
    AskFailed,
    Close,
    CoordinatorAway,
    CoordinatorBack,
    DropLink,
    Fail,
    Finish,
    Heard,
    Leave,
    LinkDown,
    LinkUp,
    MemberEffect,
    MemberEvent,
    MemberMachine,
    NewcomersWait,
    OpenLink,
    Replace,
    RoundBroken,
    RoundSealed,
    RunEnded,
    Say,
    Sought,
    State,
)
from holdfast.rendezvous.seeking import RETRY_S_MAX
from holdfast.wire.frames import Message

LEASE_S = 3.0


def place(number: int = 1) -> Place:
    return Place(RoundId(number, "x"), 0, 1, 0, 1, 0, 1, "10.0.0.1", 1000)


class Member:
    """A machine and a clock that only moves when told."""

    def __init__(self, *, takeover: bool = False) -> None:
        spec = NodeSpec("a", "host-a", "trainer", 1, 0, lease_s=LEASE_S, standby="a:1")
        self.machine = MemberMachine("job", spec, RunSettings(1, 2, takeover=takeover), lambda: 0.5)
        self.now = 100.0

    def tell(self, event: MemberEvent) -> list[MemberEffect]:
        effects = self.machine.handle(event, self.now)
        self.machine.check()
        return effects

    def hear(self, message: Message) -> list[MemberEffect]:
        return self.tell(Heard(message))

    def pass_time(self, seconds: float) -> list[MemberEffect]:
        """Let time pass, waking the machine when it asks for that."""
        effects: list[MemberEffect] = []
        end = self.now + seconds
        while (wakeup := self.machine.wakeup()) is not None and wakeup <= end:
            self.now = max(self.now, wakeup)
            effects += self.tell(Tick())
        self.now = end
        return effects


def waiting(*, takeover: bool = False) -> Member:
    """A member that is connected and has asked."""
    member = Member(takeover=takeover)
    assert member.tell(Ask(1000, member.now + 600)) == [OpenLink()]
    assert len(said(member.tell(LinkUp()), Join)) == 1
    return member


def running() -> Member:
    """A member whose round is sealed."""
    member = waiting()
    assert member.hear(Sealed(1, place())) == [RoundSealed(place())]
    return member


def said(effects: list[MemberEffect], kind: type) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, Say) and isinstance(effect.message, kind)]


def test_an_ask_connects_and_joins_with_all_that_the_coordinator_needs() -> None:
    member = Member()
    member.tell(Ask(1234, member.now + 600))

    [join] = said(member.tell(LinkUp()), Join)

    assert isinstance(join, Join)
    assert (join.phase, join.ask, join.spec.port, join.place) == (Phase.WAITING, 1, 1234, None)


def test_a_node_that_is_turned_away_while_it_waits_gives_up_at_once() -> None:
    member = Member()
    member.tell(Ask(1000, member.now + 600))

    assert AskFailed("wrong secret", connected=False, final=True) in member.tell(LinkDown("wrong secret", final=True))
    assert member.machine.state is State.ENDED


def test_a_node_that_is_turned_away_in_a_round_goes_on_and_keeps_trying() -> None:
    """A coordinator that was started anew with another secret may be put right; the workers are fine meanwhile."""
    member = running()
    member.tell(LinkDown("the connection broke"))

    effects = member.tell(LinkDown("wrong secret", final=True))

    assert member.machine.state is State.RUNNING
    assert OpenLink() in effects + member.pass_time(2)
    assert len(said(member.tell(LinkUp()), Join)) == 1


def test_only_the_answer_to_the_latest_ask_counts() -> None:
    member = running()
    member.hear(Broken(RoundId(1, "x"), "host-b failed"))
    member.tell(Ask(1000, member.now + 600))

    assert member.hear(Sealed(1, place())) == []
    assert member.hear(Sealed(2, place(2))) == [RoundSealed(place(2))]


def test_an_ask_that_was_answered_by_a_round_that_is_over_is_asked_anew() -> None:
    member = waiting()

    [join] = said(member.hear(Resend(void=1)), Join)

    assert isinstance(join, Join)
    assert join.ask == 2
    assert member.hear(Sealed(1, place())) == []


def test_a_plain_resend_says_the_same_ask_again() -> None:
    [join] = said(waiting().hear(Resend()), Join)

    assert isinstance(join, Join)
    assert join.ask == 1


def test_a_broken_round_is_told_once_and_only_if_it_is_ours() -> None:
    member = running()

    assert member.hear(Broken(RoundId(7, "y"), "another")) == []
    assert member.hear(Broken(RoundId(1, "x"), "host-b failed")) == [RoundBroken(place(), "host-b failed")]
    assert member.hear(Broken(RoundId(1, "x"), "host-b failed")) == []


def test_a_lost_connection_does_not_disturb_the_workers() -> None:
    member = running()

    effects = member.tell(LinkDown("reset by peer"))

    assert effects == [OpenLink()]
    assert member.machine.state is State.RUNNING
    [join] = said(member.tell(LinkUp()), Join)
    assert isinstance(join, Join)
    assert (join.phase, join.place) == (Phase.RUNNING, place())


def test_a_refusal_is_final_for_a_wait_but_a_node_that_runs_tries_again() -> None:
    member = waiting()
    member.tell(LinkDown("the coordinator closed the connection"))
    assert member.tell(LinkDown("the shared secret is wrong", final=True)) == [
        DropLink(),
        AskFailed("the shared secret is wrong", connected=False, final=True),
    ]

    member = running()
    assert member.tell(LinkDown("the coordinator closed the connection")) == [OpenLink()]
    member.tell(LinkDown("the shared secret is wrong", final=True))
    assert member.pass_time(LEASE_S).count(OpenLink()) == 1
    # Asked for a round meanwhile, it waits for the attempt that is under way.
    member.tell(Fail(Cause("it failed")))
    assert member.tell(Ask(1, member.now + 600)) == []
    assert len(said(member.tell(LinkUp()), Join)) == 1


def carried_by(rank: int) -> Member:
    """A member of a round of three, as rank 1; the agent with that rank carries the coordinator, or none does."""
    member = waiting()
    mine = Place(RoundId(1, "x"), 1, 3, 1, 3, 1, 3, "10.0.0.1", 1000, coordinator_rank=rank)
    member.hear(Sealed(1, mine))
    return member


def of_kind(effects: list[MemberEffect], kind: type) -> list[MemberEffect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def refuse(member: Member, seconds: float) -> list[MemberEffect]:
    """Let time pass while every attempt to connect fails, the one that is under way too."""
    effects = member.tell(LinkDown("no route to host"))
    end = member.now + seconds
    while member.now < end:
        effects += member.pass_time(0.5)
        if OpenLink() in effects[-3:]:
            effects += member.tell(LinkDown("no route to host"))
    return effects


def test_a_coordinator_that_stays_away_is_told_once_and_again_when_the_work_is_done() -> None:
    member = carried_by(-1)
    assert not of_kind(member.tell(LinkDown("the connection broke")), CoordinatorAway)

    effects = refuse(member, 10 * LEASE_S)
    assert of_kind(effects, CoordinatorAway) == [
        CoordinatorAway("the coordinator is out of reach (no route to host); workers go on; trying again")
    ]
    [again] = of_kind(member.tell(Finish()), CoordinatorAway)
    assert isinstance(again, CoordinatorAway)
    assert "the work here is done" in again.sentence
    assert not of_kind(refuse(member, 10 * LEASE_S), CoordinatorAway)
    while OpenLink() not in member.pass_time(0.5):
        pass
    assert len(of_kind(member.tell(LinkUp()), CoordinatorBack)) == 1
    # A connection that is back at once is not worth a word.
    member.tell(LinkDown("the connection broke"))
    assert not of_kind(member.tell(LinkUp()), CoordinatorBack)


def test_a_coordinator_whose_node_is_part_of_the_round_is_waited_for_as_long_as_for_a_round() -> None:
    member = carried_by(0)
    member.tell(LinkDown("the coordinator was silent for 3 s"))

    effects = refuse(member, 590)
    [away] = of_kind(effects, CoordinatorAway)
    assert isinstance(away, CoordinatorAway)
    assert "its node is part of the round" in away.sentence
    assert not of_kind(effects, RunEnded)
    [ended] = of_kind(refuse(member, 20), RunEnded)
    assert isinstance(ended, RunEnded)
    assert ended.failed
    assert ended.reason == "the coordinator is out of reach (no route to host) for 600 s"
    assert member.machine.state is State.ENDED


def test_a_coordinator_of_its_own_may_stay_away_for_ever() -> None:
    for member in (carried_by(-1), carried_by(1)):
        member.tell(LinkDown("the connection broke"))
        assert not of_kind(refuse(member, 10_000), RunEnded)
        assert member.machine.state is State.RUNNING


def test_a_member_that_stops_its_workers_does_not_ask_to_be_called_for_nothing() -> None:
    member = carried_by(0)
    member.tell(Fail(Cause("it failed")))
    member.tell(LinkDown("the connection broke"))
    member.tell(LinkDown("refused"))
    member.now += 100 * LEASE_S
    member.tell(Tick())
    wakeup = member.machine.wakeup()

    assert wakeup is None or wakeup > member.now


def test_it_tries_to_reconnect_ever_more_slowly() -> None:
    member = waiting()
    member.tell(LinkDown("refused"))
    waits: list[float] = []

    for _ in range(8):
        assert member.tell(LinkDown("refused")) == []
        began = member.now
        wakeup = member.machine.wakeup()
        assert wakeup is not None
        member.now = wakeup
        waits.append(wakeup - began)
        assert member.tell(Tick()) == [OpenLink()]

    assert waits == sorted(waits)
    assert waits[-1] == 1.0


def test_a_silent_coordinator_costs_the_connection() -> None:
    member = running()

    effects = member.pass_time(LEASE_S)

    assert DropLink(silent=True) in effects
    assert effects[-1] == OpenLink()
    assert member.machine.state is State.RUNNING
    assert [type(effect) for effect in effects if isinstance(effect, CoordinatorAway)] == [CoordinatorAway]


def test_with_a_long_lease_silence_is_told_before_it_has_run_out() -> None:
    member = running()
    member.machine.describe(lease_s=60.0)
    member.hear(Ack("round 1: 1 node", 0))

    told = [effect for effect in member.pass_time(9.0) if isinstance(effect, CoordinatorAway)]

    assert [effect.sentence for effect in told] == [
        "the coordinator is out of reach (it has been silent for 8 s); workers go on; trying again"
    ]
    assert member.machine.is_linked
    [back] = [effect for effect in member.hear(Ack("round 1: 1 node", 0)) if isinstance(effect, CoordinatorBack)]
    assert back.away_s >= 8


def test_a_member_that_was_asleep_reads_before_it_blames_the_coordinator() -> None:
    member = running()
    member.now += 5 * LEASE_S

    effects = member.tell(Tick())

    assert not any(isinstance(effect, DropLink) for effect in effects)
    assert said(effects, Beat)
    assert any(isinstance(effect, DropLink) for effect in member.pass_time(LEASE_S))


def test_it_beats_four_times_per_lease_and_says_what_it_believes() -> None:
    member = running()
    member.machine.steps = 17
    beats: list[Message] = []
    for _ in range(8):
        beats += said(member.pass_time(LEASE_S / 4), Beat)
        member.hear(Ack("round 1: 1 node", 0))

    assert len(beats) in (8, 9)
    assert isinstance(beats[-1], Beat)
    assert beats[-1].steps == 17
    assert (beats[-1].phase, beats[-1].round) == (Phase.RUNNING, RoundId(1, "x"))
    assert member.machine.sentence() == "round 1: 1 node"


def test_a_failure_is_said_at_once_and_again_with_the_next_ask() -> None:
    member = running()
    cause = Cause("exit code 1")

    assert len(said(member.tell(Fail(cause)), wire.Fail)) == 1
    [join] = said(member.tell(Ask(1000, member.now + 600)), Join)

    assert isinstance(join, Join)
    assert (join.cause, join.place) == (cause, place())


@pytest.mark.parametrize("event", [Fail, Replace])
def test_a_worker_that_fails_while_the_next_round_is_asked_for_counts_for_the_last_one(
    event: type[Fail] | type[Replace],
) -> None:
    member = running()
    member.hear(Broken(place().round, "host-b was lost"))
    [before] = said(member.tell(Ask(1000, member.now + 600)), Join)
    cause = Cause("exit code 1")
    [join] = said(member.tell(event(cause)), Join)

    assert isinstance(before, Join)
    assert isinstance(join, Join)
    assert (join.cause, join.place, join.ask) == (cause, place(), before.ask)


def test_finished_work_is_said_and_the_end_ends_it() -> None:
    member = running()

    assert len(said(member.tell(Finish()), wire.Finish)) == 1
    assert member.hear(Closed("finished", False)) == [DropLink(), RunEnded("finished", False)]
    assert member.machine.wakeup() is None


def test_a_polite_leave_is_said_before_the_connection_ends() -> None:
    effects = running().tell(Leave("preempted"))

    assert isinstance(effects[0], Say)
    assert isinstance(effects[0].message, wire.Leave)
    assert effects[1] == DropLink()


def test_an_ask_ends_at_its_deadline_with_what_was_missing() -> None:
    member = Member()
    member.tell(Ask(1000, member.now + 10))
    member.tell(LinkUp())
    member.hear(Ack("1 of 2 nodes (host-a); waiting for 1 more", 0))

    effects: list[MemberEffect] = []
    for _ in range(10):
        effects += member.pass_time(1.0)
        member.hear(Ack("1 of 2 nodes (host-a); waiting for 1 more", 0))

    assert AskFailed("1 of 2 nodes (host-a); waiting for 1 more", True) in effects
    assert len(said(effects, wire.Leave)) == 1


def test_a_rejected_node_is_told_why() -> None:
    assert RunEnded("too old", True, rejected=True) in waiting().hear(Rejected("too old"))


def test_newcomers_are_told_when_their_number_changes() -> None:
    member = running()

    assert member.hear(Newcomers(1)) == [NewcomersWait(1)]
    assert member.hear(Newcomers(1)) == []


def test_nodes_that_waited_for_a_round_are_no_newcomers_once_it_is_sealed() -> None:
    """While it waits, a node is counted itself; a poll would end the round again, and a real newcomer was not told."""
    member = waiting()
    member.hear(Ack("1 of 2 nodes (host-a); last call in 3 s", 1))
    member.hear(Sealed(1, place()))

    assert member.machine.count_waiting() == 0
    assert member.hear(Newcomers(1)) == [NewcomersWait(1)]
    assert member.machine.count_waiting() == 1


def test_the_end_of_the_run_is_asked_for_until_it_is_granted() -> None:
    member = running()
    member.tell(LinkDown("reset by peer"))
    assert said(member.tell(Close("enough")), wire.Close) == []

    effects = member.tell(LinkUp())
    assert [type(effect.message) for effect in effects if isinstance(effect, Say)] == [Join, wire.Close]
    assert len(said(member.pass_time(LEASE_S / 2), wire.Close)) >= 1
    member.hear(Closed("enough", False))

    assert member.machine.state is State.ENDED
    assert member.pass_time(60) == []


def tried(member: Member, places: int) -> list[tuple[str, bool]]:
    """Let connections fail, and return where the member looks, and whether its own agent would carry the run there."""
    found: list[tuple[str, bool]] = []
    while len(found) < places:
        effects = member.tell(LinkDown("connection refused", ended=True)) + member.pass_time(3.0)
        found += [(each.address, each.lead) for each in effects if isinstance(each, OpenLink)]
    return found


def test_a_node_that_stands_by_looks_where_the_coordinator_may_be_and_never_carries_it_itself() -> None:
    """It knows of no round that counts: a run of its own would be beside that of the others."""
    member = waiting(takeover=True)
    member.hear(Ack("waits", 0, heirs=(Heir("b", "b:1"), Heir("c", "c:1"))))

    found = tried(member, 12)

    assert {address for address, _ in found} == {"", "b:1", "c:1"}
    assert not any(leads for _, leads in found)


def test_a_node_without_a_coordinator_looks_where_one_asks_for_it() -> None:
    member = waiting(takeover=True)
    member.hear(Ack("waits", 0))
    member.tell(LinkDown("connection refused", ended=True))
    member.tell(Sought("d:1"))

    assert ("d:1", False) in tried(member, 6)


def test_a_node_that_has_a_coordinator_stays_with_it() -> None:
    member = waiting(takeover=True)
    member.hear(Ack("waits", 0))

    assert member.tell(Sought("d:1")) == []
    assert {address for address, _ in tried(member, 4)} == {""}


def test_a_node_that_two_agents_send_to_each_other_looks_elsewhere_in_the_end() -> None:
    """Neither of them carries the coordinator; it is back where all nodes begin."""
    member = waiting(takeover=True)
    member.hear(Ack("waiting", 0, heirs=(Heir("b", "b:1"), Heir("c", "c:1"))))
    looked = opened(member.tell(LinkDown("its process ended", ended=True)))
    for _ in range(40):
        at = looked[-1]
        if at in ("b:1", "c:1"):
            member.tell(LinkUp())
            looked += opened(member.hear(Out("c:1" if at == "b:1" else "b:1", "another agent carries it")))
        else:
            looked += opened(member.tell(LinkDown("refused")))
        looked += opened(member.pass_time(1.5 * RETRY_S_MAX))

    assert looked[1:5] == ["b:1", "c:1", "b:1", "c:1"]
    late = looked[20:]
    assert late.count("") > 3
    assert max(late.count("b:1"), late.count("c:1")) <= late.count("") + 1


def test_a_node_that_no_agent_can_send_anywhere_looks_at_its_next_place() -> None:
    member = waiting(takeover=True)
    member.hear(Ack("waiting", 0, heirs=(Heir("b", "b:1"), Heir("c", "c:1"))))
    looked = opened(member.tell(LinkDown("its process ended", ended=True)))
    looked += opened(member.tell(LinkDown("refused")))
    for _ in range(3):
        member.tell(LinkUp())
        looked += opened(member.hear(Out("", "another agent carries it")) + member.pass_time(RETRY_S_MAX))

    assert looked == ["", "b:1", "c:1", "b:1", ""]


def opened(effects: list[MemberEffect]) -> list[str]:
    return [effect.address for effect in effects if isinstance(effect, OpenLink)]
