"""One run's decisions: events in, effects out, at virtual times."""

from typing import Any

import msgspec
import pytest

from holdfast.coordinator.events import (
    DropRound,
    NodeDropped,
    NodeJoined,
    NodeSaid,
    Note,
    RunEffect,
    RunEvent,
    Save,
    SealAllowed,
    Tell,
    WantSeal,
)
from holdfast.coordinator.messages import (
    DROP_GRACE_S,
    Ack,
    Admit,
    Beat,
    Broken,
    Cause,
    Close,
    Closed,
    Fail,
    Finish,
    Join,
    Leave,
    Newcomers,
    NodeSpec,
    Phase,
    Place,
    Rejected,
    Resend,
    RoundId,
    RunSettings,
    Sealed,
)
from holdfast.coordinator.run import RunMachine
from holdfast.coordinator.state import RunRecord, Stage
from holdfast.machine import Tick

LEASE_S = 5.0


class Run:
    """A machine with nodes that keep their own counters and a clock that only moves when told."""

    def __init__(self, least: int = 1, most: int = 4, record: RunRecord | None = None, **settings: Any) -> None:
        self.settings = RunSettings(least, most, **{"max_restarts": 3, **settings})
        self.now = 100.0
        self.seqs: dict[str, int] = {}
        self.asks: dict[str, int] = {}
        self.held: dict[str, Place] = {}
        self.boot(record)

    def boot(self, record: RunRecord | None) -> None:
        """Start the coordinator, anew or from a record."""
        nonces = iter(f"{self.now:g}-{number}" for number in range(1000))
        self.machine = RunMachine("job", lambda: next(nonces), record, self.now)

    def tell(self, event: RunEvent) -> list[RunEffect]:
        effects = self.machine.handle(event, self.now)
        self.machine.check()
        for effect in effects:
            if isinstance(effect, Tell) and isinstance(effect.message, Sealed):
                self.held[effect.nodes[0]] = effect.message.place
        return effects

    def seq(self, node: str) -> int:
        self.seqs[node] = self.seqs.get(node, 0) + 1
        return self.seqs[node]

    def spec(self, node: str, **fields: Any) -> NodeSpec:
        return NodeSpec(
            **{
                "node": node,
                "host": f"host-{node}",
                "role": "trainer",
                "local_world_size": 1,
                "port": 1000,
                "lease_s": LEASE_S,
                **fields,
            }
        )

    def ask(self, node: str, cause: Cause | None = None, address: str = "10.0.0.9", **fields: Any) -> list[RunEffect]:
        """Let a node ask for a round, as a new ask."""
        self.asks[node] = self.asks.get(node, 0) + 1
        return self.say_join(node, Phase.WAITING, cause, address, **fields)

    def say_join(
        self, node: str, phase: Phase, cause: Cause | None = None, address: str = "10.0.0.9", **fields: Any
    ) -> list[RunEffect]:
        settings = fields.pop("settings", self.settings)
        reached_as = fields.pop("reached_as", "")
        known = fields.pop("known", 0)
        pledge = fields.pop("pledge", None)
        join = Join(
            self.seq(node),
            "job",
            self.spec(node, **fields),
            settings,
            phase,
            self.asks.get(node, 0),
            self.held.get(node),
            cause,
            known,
            pledge,
        )
        return self.tell(NodeJoined(join, address, reached_as))

    def beat(self, node: str, phase: Phase = Phase.RUNNING) -> list[RunEffect]:
        place = self.held.get(node)
        beat = Beat(self.seq(node), phase, self.asks.get(node, 0), place.round if place else None)
        return self.tell(NodeSaid(node, beat))

    def fail(self, node: str, sentence: str = "exit code 1", victim: bool = False) -> list[RunEffect]:
        return self.tell(NodeSaid(node, Fail(self.seq(node), self.held[node].round, Cause(sentence, victim))))

    def done(self, node: str) -> list[RunEffect]:
        return self.tell(NodeSaid(node, Finish(self.seq(node), self.held[node].round)))

    def pass_time(self, seconds: float, *beating: str) -> list[RunEffect]:
        """Let time pass, waking the machine when it asks for that, with some nodes beating all the while."""
        effects: list[RunEffect] = []
        end = self.now + seconds
        while self.now < end:
            wakeup = self.machine.wakeup()
            step = min(end, self.now + LEASE_S / 3) if beating else end
            self.now = min(step, max(self.now, wakeup)) if wakeup is not None else step
            effects += self.tell(Tick())
            for node in beating:
                phase = self.machine.nodes[node].phase if node in self.machine.nodes else Phase.WAITING
                effects += self.beat(node, phase)
        return effects


def sealed(effects: list[RunEffect]) -> dict[str, Place]:
    """The places that were told, by node."""
    told = [effect for effect in effects if isinstance(effect, Tell) and isinstance(effect.message, Sealed)]
    return {tell.nodes[0]: tell.message.place for tell in told}  # type: ignore[union-attr]


def told(effects: list[RunEffect], kind: type) -> dict[str, Any]:
    """The messages of one kind, by the node that they go to."""
    tells = [effect for effect in effects if isinstance(effect, Tell) and isinstance(effect.message, kind)]
    return {node: tell.message for tell in tells for node in tell.nodes}


def gathered(*nodes: str, least: int = 1, **settings: Any) -> Run:
    """A run whose first round is sealed with these nodes."""
    run = Run(least, len(nodes), **settings)
    for node in nodes:
        run.ask(node)
    assert run.machine.stage is Stage.SEALED
    return run


# -- gathering -----------------------------------------------------------------------------------------------


def test_a_full_round_is_sealed_at_once_with_one_message_per_node() -> None:
    run = Run(2, 2)
    assert sealed(run.ask("a")) == {}

    effects = run.ask("b")

    assert {node: place.group_rank for node, place in sealed(effects).items()} == {"a": 0, "b": 1}
    assert len([effect for effect in effects if isinstance(effect, Tell)]) == 2


def test_a_round_is_saved_before_anybody_hears_of_it() -> None:
    run = Run(1, 1)

    effects = run.ask("a")

    kinds = [type(effect) for effect in effects]
    assert kinds.index(Save) < kinds.index(Tell)
    [save] = [effect for effect in effects if isinstance(effect, Save)]
    assert save.record.last_number == 1


def test_with_enough_nodes_the_last_call_ends_when_no_node_has_joined_for_a_while() -> None:
    run = Run(2, 4, quiet_s=3.0, last_call_s=30.0)
    run.ask("a")
    run.ask("b")
    run.pass_time(2.0, "a", "b")
    run.ask("c")

    assert sealed(run.pass_time(2.9, "a", "b", "c")) == {}
    assert run.machine.sentence(run.now).endswith("last call in 0.1 s")
    assert sealed(run.pass_time(0.2, "a", "b", "c")).keys() == {"a", "b", "c"}


def test_a_last_call_ends_even_while_nodes_keep_coming() -> None:
    run = Run(1, 100, quiet_s=3.0, last_call_s=6.0)
    run.ask("n0")
    for number in range(1, 4):
        run.pass_time(1.9, *run.machine.nodes)
        run.ask(f"n{number}")
    assert run.machine.stage is Stage.GATHERING

    run.pass_time(0.4, *run.machine.nodes)

    assert run.machine.stage is Stage.SEALED
    assert run.machine.round is not None
    assert run.machine.round.size == 4


def test_too_few_nodes_wait_with_a_sentence_that_names_them() -> None:
    run = Run(3, 4)
    run.ask("a")
    run.ask("b")

    run.pass_time(60, "a", "b")

    assert run.machine.sentence(run.now) == "2 of at least 3 nodes (host-a and host-b); waiting for 1 more"


def test_a_live_node_that_may_still_work_holds_the_seal_up_without_wakeups() -> None:
    run = Run(1, 2)
    run.held["old"] = Place(RoundId(1, "x"), 0, 1, 0, 1, 0, 1, "10.0.0.1", 1000)
    run.machine.last_number = 1
    run.say_join("old", Phase.RUNNING)
    run.ask("a")

    assert run.machine.stage is Stage.GATHERING
    wakeup = run.machine.wakeup()
    assert wakeup is not None
    assert wakeup >= run.now + LEASE_S


# -- breaking and regrouping ---------------------------------------------------------------------------------


def test_a_failure_is_pushed_to_all_others_with_its_reason() -> None:
    run = gathered("a", "b", "c")

    effects = run.fail("b", "exit code 1")

    broken = told(effects, Broken)
    assert broken.keys() == {"a", "c"}
    assert broken["a"].reason == "host-b: exit code 1"


def test_survivors_are_sealed_the_moment_all_are_back() -> None:
    run = gathered("a", "b", "c")
    run.fail("b")
    assert sealed(run.ask("b")) == {}
    assert sealed(run.ask("a")) == {}

    places = sealed(run.ask("c"))

    assert {node: place.group_rank for node, place in places.items()} == {"a": 0, "b": 1, "c": 2}
    assert {place.round.number for place in places.values()} == {2}


def test_a_round_that_is_over_is_forgotten_by_the_store() -> None:
    run = gathered("a")
    first = run.held["a"].round
    run.fail("a")

    effects = run.ask("a")

    assert DropRound(first) in effects


def test_a_silent_node_is_lost_when_its_lease_runs_out() -> None:
    run = gathered("a", "b")

    effects = run.pass_time(LEASE_S + 0.1, "a")

    assert told(effects, Broken)["a"].reason == "host-b was lost: silent for 5 s"
    gone = [effect.fact for effect in effects if isinstance(effect, Note) and effect.fact.kind == "node_gone"]
    assert [fact.data["why"] for fact in gone] == ["silent"]
    assert "host-b lost" in run.machine.sentence(run.now)


def test_a_broken_connection_has_a_moment_to_come_back() -> None:
    run = gathered("a", "b")
    run.tell(NodeDropped("b", "reset by peer"))
    run.pass_time(DROP_GRACE_S / 2)
    run.say_join("b", Phase.RUNNING)

    assert told(run.pass_time(1.0, "a", "b"), Broken) == {}

    run.tell(NodeDropped("b", "reset by peer"))
    assert told(run.pass_time(DROP_GRACE_S, "a"), Broken)["a"].reason == "host-b was lost: reset by peer"


def test_connections_that_break_again_and_again_leave_nothing_behind() -> None:
    run = gathered("a")

    for _ in range(100):
        run.tell(NodeDropped("a", "reset by peer"))
        run.say_join("a", Phase.RUNNING)
        run.pass_time(DROP_GRACE_S)
    run.pass_time(2 * LEASE_S, "a")

    assert len(run.machine.roster._expiries) <= 2


def test_a_polite_leave_needs_no_lease() -> None:
    run = gathered("a", "b")

    effects = run.tell(NodeSaid("b", Leave(run.seq("b"), "preempted")))

    assert told(effects, Broken)["a"].reason == "host-b left: preempted"


def test_a_spare_takes_the_lost_place_at_once() -> None:
    run = gathered("a", "b")
    run.ask("c")
    assert run.machine.sentence(run.now, "c") == ("round 1: 2 nodes; this node standing by as spare: the round is full")
    run.tell(NodeSaid("a", Leave(run.seq("a"), "preempted")))

    places = sealed(run.ask("b"))

    assert {node: place.group_rank for node, place in places.items()} == {"c": 0, "b": 1}


def test_a_node_that_does_not_rejoin_in_time_is_counted_out() -> None:
    run = gathered("a", "b", rejoin_timeout_s=20.0)
    run.fail("a")
    run.ask("a")

    effects = run.pass_time(20.1, "a", "b")

    assert sealed(effects).keys() == {"a"}


def test_when_no_node_of_the_last_round_is_left_a_first_gathering_begins_again() -> None:
    run = gathered("a", quiet_s=3.0)
    run.settings = run.machine.settings or run.settings
    run.tell(NodeSaid("a", Leave(run.seq("a"), "preempted")))

    assert run.machine.stage is Stage.GATHERING
    assert sealed(run.ask("b"))["b"].round.number == 2


def test_who_is_expected_is_what_the_first_of_a_new_gathering_says() -> None:
    """Of two nodes one has left the run for good, the other died, and one in its place comes alone."""
    run = Run(1, 4, expected=2)
    for name in ("a", "b"):
        run.ask(name)
    run.tell(NodeSaid("b", Leave(run.seq("b"), "drained")))
    run.ask("a")
    run.tell(NodeSaid("a", Leave(run.seq("a"), "its worker ended")))

    effects = run.ask("c", settings=msgspec.structs.replace(run.settings, expected=1))

    assert sealed(effects).keys() == {"c"}


def test_a_late_coordinator_does_not_blame_its_nodes() -> None:
    run = gathered("a", "b")
    run.now += 3 * LEASE_S

    assert told(run.beat("a"), Broken) == {}
    run.now += LEASE_S / 4
    assert told(run.beat("b"), Broken) == {}
    assert run.machine.stage is Stage.SEALED


# -- words that come late, or twice -------------------------------------------------------------------------


def test_a_node_that_missed_its_place_is_told_it_again() -> None:
    run = gathered("a", "b")
    place = run.held.pop("b")

    assert sealed(run.beat("b", Phase.WAITING)) == {"b": place}
    assert sealed(run.say_join("b", Phase.WAITING)) == {"b": place}


def test_an_ask_that_a_broken_round_answered_is_void() -> None:
    run = gathered("a", "b")
    del run.held["b"]
    run.fail("a")

    assert told(run.beat("b", Phase.WAITING), Resend) == {"b": Resend(void=1)}
    assert told(run.say_join("b", Phase.WAITING), Resend) == {"b": Resend(void=1)}
    assert run.machine.nodes["b"].phase is Phase.STOPPING

    run.ask("b")
    assert run.machine.nodes["b"].phase is Phase.WAITING


def test_an_old_join_of_a_node_that_is_gone_does_not_bring_it_back() -> None:
    run = gathered("a", "b")
    old = Join(1, "job", run.spec("b"), run.settings, Phase.WAITING, 1)
    run.tell(NodeSaid("b", Leave(run.seq("b"), "preempted")))

    assert run.tell(NodeJoined(old, "10.0.0.9")) == []
    assert "b" not in run.machine.nodes


def test_an_unknown_node_that_beats_is_asked_to_join() -> None:
    run = Run()

    assert told(run.beat("a"), Resend) == {"a": Resend()}


def test_a_beat_is_answered_with_where_the_run_stands() -> None:
    run = gathered("a", "b")

    assert told(run.beat("a"), Ack)["a"].sentence == "round 1: 2 nodes"


def test_a_node_of_an_older_round_is_told_that_it_is_over() -> None:
    run = gathered("a", "b")
    run.pass_time(LEASE_S + 0.1, "a")
    run.ask("a")

    assert told(run.say_join("b", Phase.RUNNING), Broken)["b"].reason == (
        "round 1 is over; round 2 went on without this node"
    )


# -- the budget ----------------------------------------------------------------------------------------------


def test_a_failure_and_its_victims_cost_one_restart() -> None:
    run = gathered("a", "b")
    run.fail("b", "lost its peer", victim=True)
    run.fail("a")
    run.ask("a", Cause("exit code 1"))

    places = sealed(run.ask("b", Cause("lost its peer", victim=True)))

    assert places["a"].restarts_used == 1


def test_the_victims_of_a_lost_node_cost_nothing() -> None:
    run = gathered("a", "b", "c")
    run.fail("a", "lost its peer", victim=True)
    run.ask("a")
    run.ask("b")

    places = sealed(run.pass_time(LEASE_S + 0.1, "a", "b"))

    assert places["a"].restarts_used == 0


def test_a_charge_is_saved_at_once() -> None:
    run = gathered("a", "b", least=2)
    run.fail("a")
    run.tell(NodeSaid("b", Leave(run.seq("b"), "preempted")))

    effects = run.ask("a")

    [save] = [effect for effect in effects if isinstance(effect, Save)]
    assert save.record.restarts_used == 1
    assert run.machine.stage is Stage.REGROUPING


def test_a_failure_beyond_the_budget_closes_the_run_with_its_root_cause() -> None:
    run = gathered("a", "b", max_restarts=0)
    run.fail("b", "lost its peer", victim=True)
    run.ask("b", Cause("lost its peer", victim=True))
    run.fail("a", "out of memory")

    effects = run.ask("a", Cause("out of memory"))

    closed = told(effects, Closed)
    assert closed.keys() == {"a", "b"}
    assert closed["a"].reason == "out of memory; not restarting: --max-restarts is 0"
    assert closed["a"].failed
    assert closed["a"].cause == Cause("out of memory")


# -- the end -------------------------------------------------------------------------------------------------


def test_a_run_is_finished_when_all_nodes_are_done() -> None:
    run = gathered("a", "b")
    assert told(run.done("a"), Closed) == {}

    closed = told(run.done("b"), Closed)

    assert closed.keys() == {"a", "b"}
    assert closed["a"].reason == "finished"
    assert not closed["a"].failed


def test_a_node_whose_work_is_done_may_go_without_breaking_the_round() -> None:
    run = gathered("a", "b")
    run.done("a")

    effects = run.tell(NodeSaid("a", Leave(run.seq("a"), "done")))

    assert told(effects, Broken) == {}
    assert told(run.done("b"), Closed)["b"].reason == "finished"


def test_closed_is_final_and_told_to_every_node_that_joins() -> None:
    run = gathered("a", "b")
    run.tell(NodeSaid("a", Close(99, "enough")))

    assert told(run.ask("c"), Closed)["c"].reason == "enough"
    assert told(run.beat("a"), Closed)["a"].reason == "enough"
    assert run.fail("a") == []
    assert run.tell(NodeSaid("b", Leave(run.seq("b"), "preempted"))) == []
    assert run.machine.stage is Stage.CLOSED
    assert run.machine.wakeup() is None


# -- newcomers -----------------------------------------------------------------------------------------------


def test_a_late_node_is_admitted_at_once_by_default() -> None:
    run = Run(1, 2, quiet_s=0.0)
    run.ask("a")
    run.pass_time(0.1)

    assert told(run.ask("b"), Broken)["a"].reason == "host-b joined"
    assert sealed(run.ask("a")).keys() == {"a", "b"}


def test_a_late_node_is_only_announced_when_it_must_wait_for_a_restart() -> None:
    run = Run(1, 2, quiet_s=0.0, admit=Admit.RESTART)
    run.ask("a")
    run.pass_time(0.1)

    effects = run.ask("b")

    assert told(effects, Newcomers) == {"a": Newcomers(1)}
    assert told(run.pass_time(60, "a", "b"), Broken) == {}
    assert run.machine.sentence(run.now, "b") == (
        "round 1: 1 node; this node waiting to be admitted at the next restart"
    )


def test_a_late_node_is_admitted_when_the_round_has_lasted_long_enough() -> None:
    run = Run(1, 2, quiet_s=0.0, admit=Admit.EVERY, admit_every_s=10.0)
    run.ask("a")
    run.pass_time(0.1)
    run.ask("b")

    assert told(run.pass_time(9.8, "a", "b"), Broken) == {}
    assert told(run.pass_time(0.2, "a", "b"), Broken).keys() == {"a"}


def test_work_that_is_being_finished_is_not_started_again_for_a_newcomer() -> None:
    run = Run(1, 3, quiet_s=1.0)
    run.ask("a")
    run.ask("b")
    run.pass_time(1.1)
    run.done("a")

    assert told(run.ask("c"), Broken) == {}
    assert run.machine.sentence(run.now).endswith("1 node waiting, but the work is being finished")


# -- who may take part ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "fields", "reason"),
    [
        (RunSettings(3, 3), {}, "asks for 3:3 nodes, but run 'job' was started with 2:2"),
        (RunSettings(2, 1), {}, "write 1 <= MIN <= MAX"),
        (None, {"local_world_size": 0}, "a node brings 1 to"),
        (None, {"lease_s": 0.001}, "the shortest is 0.05 s"),
    ],
)
def test_a_node_that_does_not_fit_is_told_why(
    settings: RunSettings | None, fields: dict[str, Any], reason: str
) -> None:
    run = Run(2, 2)
    run.ask("a")

    effects = run.ask("b", settings=settings or run.settings, **fields)

    assert reason in told(effects, Rejected)["b"].reason
    assert "b" not in run.machine.nodes


def test_a_newcomer_that_is_one_too_many_is_turned_away_but_never_a_member() -> None:
    run = gathered("a", spares=0)
    assert "is full" in told(run.ask("b"), Rejected)["b"].reason

    run.boot(run.machine.record())
    run.ask("c")
    effects = run.say_join("a", Phase.RUNNING)

    assert told(effects, Rejected) == {}
    assert run.machine.stage is Stage.SEALED


def test_a_node_beside_the_coordinator_is_reached_where_the_others_reach_it() -> None:
    run = Run(2, 2)
    run.ask("a", address="127.0.0.1", reached_as="127.0.0.1")

    places = sealed(run.ask("b", address="10.0.0.2", reached_as="10.0.0.1"))

    assert places["b"].master_addr == "10.0.0.1"
    assert places["b"].address == "10.0.0.2"


def test_a_node_may_say_itself_where_it_is_reached() -> None:
    run = Run(1, 1)
    join = Join(1, "job", run.spec("a", address="a.example"), run.settings, Phase.WAITING, 1)

    places = sealed(run.tell(NodeJoined(join, "127.0.0.1", "10.0.0.1")))

    assert places["a"].master_addr == "a.example"


# -- after a restart of the coordinator ----------------------------------------------------------------------


def test_after_a_restart_no_node_is_disturbed() -> None:
    run = gathered("a", "b")
    run.boot(run.machine.record())
    assert run.machine.sentence(run.now).startswith("the coordinator restarted; 0 of 2 nodes of round 1 are back")

    effects = run.say_join("a", Phase.RUNNING) + run.say_join("b", Phase.RUNNING)

    assert told(effects, Broken) == {}
    assert run.machine.stage is Stage.SEALED
    assert run.machine.recovery is None


def test_after_a_restart_newcomers_wait_for_the_members_of_the_round() -> None:
    run = gathered("a", "b", recovery_s=10.0)
    run.boot(run.machine.record())
    run.ask("c")
    run.ask("d")

    assert run.machine.recovery is not None
    assert run.machine.recovery.ends_at == run.now + 10.0
    assert sealed(run.pass_time(9.9, "c", "d")) == {}
    run.say_join("a", Phase.RUNNING)
    effects = run.pass_time(0.2, "a", "c", "d")
    assert told(effects, Broken)["a"].reason == "host-b did not come back after the coordinator restarted"


def test_a_round_that_was_broken_before_the_restart_is_regrouped_after_it() -> None:
    run = gathered("b", "a", "c", least=2)
    order = {node: place.group_rank for node, place in run.held.items()}
    run.fail("a")
    run.tell(NodeSaid("c", Leave(run.seq("c"), "preempted")))
    run.boot(run.machine.record())
    assert run.machine.stage is Stage.REGROUPING

    run.ask("b")
    places = sealed(run.ask("a", Cause("exit code 1")))

    assert run.machine.recovery is None
    assert sorted(places, key=lambda node: places[node].group_rank) == sorted(places, key=order.__getitem__)
    assert places["a"].round.number == 2
    assert places["a"].restarts_used == 1


def test_a_failure_that_was_charged_before_the_restart_is_not_charged_again() -> None:
    run = gathered("a", "b", least=2)
    run.fail("a")
    run.tell(NodeSaid("b", Leave(run.seq("b"), "preempted")))
    run.ask("a", Cause("exit code 1"))
    assert run.machine.restarts_used == 1
    run.boot(run.machine.record())

    run.say_join("a", Phase.WAITING, Cause("exit code 1"))
    places = sealed(run.ask("c"))

    assert places["a"].restarts_used == 1


def test_a_closed_run_stays_closed_after_a_restart() -> None:
    run = gathered("a")
    run.tell(NodeSaid("a", Close(99, "enough")))
    run.boot(run.machine.record())

    assert told(run.ask("b"), Closed)["b"].reason == "enough"


def test_a_coordinator_without_memory_learns_the_round_from_its_nodes() -> None:
    run = gathered("a", "b")
    run.fail("a")
    run.ask("a", Cause("exit code 1"))
    run.ask("b")
    run.boot(None)

    effects = run.say_join("b", Phase.RUNNING)
    [save] = [effect for effect in effects if isinstance(effect, Save)]
    assert (save.record.last_number, save.record.restarts_used) == (2, 1)
    effects = run.say_join("a", Phase.RUNNING)

    assert told(effects, Broken) == {}
    assert [effect.fact.kind for effect in effects if isinstance(effect, Note)] == ["recovered"]
    assert run.machine.record().seats[0].node == "a"
    run.fail("b")
    run.ask("b")
    assert sealed(run.ask("a"))["a"].round.number == 3


def test_a_coordinator_without_memory_does_not_use_a_number_again() -> None:
    run = gathered("a", "b", recovery_s=1.0)
    run.boot(None)
    run.say_join("b", Phase.RUNNING)
    run.pass_time(1.1, "b")

    assert sealed(run.ask("b"))["b"].round.number == 2


def test_a_record_survives_a_second_restart_while_it_is_still_being_learned() -> None:
    run = gathered("a", "b", recovery_s=10.0)
    run.boot(None)
    run.say_join("b", Phase.RUNNING)
    run.boot(run.machine.record())

    run.say_join("b", Phase.RUNNING)
    assert run.machine.recovery is not None
    run.say_join("a", Phase.RUNNING)

    assert run.machine.recovery is None
    assert [seat.node for seat in run.machine.record().seats] == ["a", "b"]


def test_a_snapshot_and_a_report_are_plain_data() -> None:
    run = gathered("a", "b")

    report = run.machine.report(run.now)

    assert report["sentence"] == "round 1: 2 nodes"
    assert [node["rank"] for node in report["nodes"]] == [0, 1]


# -- a coordinator that was elected ------------------------------------------------------------------------------------


def guarded(least: int = 1, most: int = 2, **settings: Any) -> Run:
    """A run whose every seal must be allowed."""
    run = Run(least, most, **settings)
    run.machine = RunMachine("job", lambda: "nonce", now=run.now, guarded=True)
    return run


def wants_seal(effects: list[RunEffect]) -> bool:
    return any(isinstance(effect, WantSeal) for effect in effects)


def test_a_guarded_run_asks_once_and_seals_only_while_it_is_allowed() -> None:
    run = guarded()
    run.ask("a")
    effects = run.ask("b")

    assert wants_seal(effects)
    assert not sealed(effects)
    assert "waiting for etcd to confirm" in run.machine.sentence(run.now)
    # It neither asks again nor wants to be called for it: the permission is an event.
    assert run.tell(Tick()) == []
    wakeup = run.machine.wakeup()
    assert wakeup is None or wakeup > run.now

    assert list(sealed(run.tell(SealAllowed()))) == ["a", "b"]


def test_a_permission_that_comes_too_late_is_not_kept() -> None:
    run = guarded(least=2)
    run.ask("a")
    assert wants_seal(run.ask("b"))
    run.tell(NodeSaid("b", Leave(run.seq("b"), "changed its mind")))

    assert not sealed(run.tell(SealAllowed()))
    assert wants_seal(run.ask("c"))


def test_a_number_that_was_reserved_is_not_used_by_a_successor() -> None:
    run = guarded(most=1)
    [want] = [effect for effect in run.ask("a") if isinstance(effect, WantSeal)]
    assert (want.record.last_number, want.record.reserved) == (0, 1)

    run.boot(want.record)  # the one before died, and nobody knows whether it has told anybody

    assert sealed(run.ask("a"))["a"].round.number == 2


def test_a_round_of_a_reserved_number_that_a_node_speaks_of_is_taken_over() -> None:
    run = guarded(most=1)
    [want] = [effect for effect in run.ask("a") if isinstance(effect, WantSeal)]
    run.tell(SealAllowed())

    run.boot(want.record)  # the one before died before it could write what became of it
    effects = run.say_join("a", Phase.RUNNING)

    assert not any(isinstance(effect, Tell) and isinstance(effect.message, Broken) for effect in effects)
    assert run.machine.stage is Stage.SEALED
    assert run.machine.last_number == 1


def test_a_failure_that_no_restart_can_mend_closes_the_run_at_once() -> None:
    run = Run(2, 2)
    run.ask("a")
    run.ask("b")
    lost = Cause("the state is lost", ends_job=True)

    effects = run.tell(NodeSaid("a", Fail(run.seq("a"), run.held["a"].round, lost)))

    [closed] = [effect for effect in effects if isinstance(effect, Tell)]
    assert closed.nodes == ("a", "b")
    assert isinstance(closed.message, Closed)
    assert (closed.message.failed, closed.message.cause) == (True, lost)
    assert run.machine.restarts_used == 0


def test_such_a_failure_closes_the_run_where_only_the_next_ask_brings_it() -> None:
    run = Run(2, 2)
    run.ask("a")
    run.ask("b")
    run.fail("b")

    run.ask("a", Cause("the state is lost", ends_job=True))

    assert run.machine.stage is Stage.CLOSED


@pytest.mark.parametrize(("settings", "ends_job"), [({"crash_loop": 1}, False), ({}, True)])
def test_a_coordinator_that_comes_back_knows_what_a_run_failed_for(settings: dict[str, Any], ends_job: bool) -> None:
    """A node that asks later ends with the same exit code as those that heard it at once."""
    run = Run(1, 1, **settings)
    run.ask("a")
    cause = Cause("exit code 1", detail={"traceback": "long"}, ends_job=ends_job)
    run.tell(NodeSaid("a", Fail(run.seq("a"), run.held["a"].round, cause)))
    run.ask("a")
    told = run.machine.closed
    assert told is not None
    run.boot(run.machine.record())

    [again] = [effect.message for effect in run.ask("b") if isinstance(effect, Tell)]
    assert isinstance(again, Closed)
    assert (again.reason, again.crash_loop, again.cause) == (
        told.reason,
        not ends_job,
        Cause("exit code 1", ends_job=ends_job),
    )
