"""The story: events in, effects out."""

from __future__ import annotations

from holdfast.demo.story import (
    Begin,
    Effect,
    End,
    EndTraining,
    Fitted,
    KillNode,
    KillWorker,
    NodeEnded,
    Report,
    RoundBroke,
    Stage,
    StartNode,
    Stepped,
    StoryMachine,
    Tell,
)
from holdfast.machine import Tick

LOSS = 5.0
FITS = 0.0001


class Teller:
    """Speaks for the workers: two on node A with the low ranks, two on node B."""

    def __init__(self, steps_between: int = 2) -> None:
        self.story = StoryMachine(steps_between=steps_between, patience_s=30.0)
        self.now = 0.0
        self.effects: list[Effect] = []
        self.say(Begin())

    def say(self, *events: object) -> list[Effect]:
        effects = [effect for event in events for effect in self.story.handle(event, self.now)]  # type: ignore[arg-type]
        self.story.check()
        self.effects += effects
        return effects

    def step(
        self, number: int, round_: int, nodes: str = "AB", loss: float = LOSS, at: float | None = None
    ) -> list[Effect]:
        """Every worker of the nodes finishes a step."""
        self.now = self.now + 1 if at is None else at
        ranks = range(2 * len(nodes))
        return self.say(
            *(Stepped(nodes[rank // 2], rank, len(ranks), round_, number, loss, 100 * round_ + rank) for rank in ranks)
        )

    @property
    def report(self) -> Report:
        (end,) = (effect for effect in self.effects if isinstance(effect, End))
        return end.report


def acts(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if not isinstance(effect, Tell)]


def told(effects: list[Effect]) -> list[str]:
    return [effect.sentence for effect in effects if isinstance(effect, Tell)]


def test_it_begins_with_both_nodes() -> None:
    assert acts(Teller().effects) == [StartNode("A"), StartNode("B")]


def test_a_round_of_one_node_is_not_yet_the_beginning() -> None:
    teller = Teller()
    teller.step(1, 1, nodes="A")

    assert teller.story.stage is Stage.GATHERING
    assert told(teller.step(2, 2)) == ["round 2: 2 nodes, 4 workers, training"]


def test_a_worker_of_the_node_without_the_coordinator_is_killed_after_the_given_steps() -> None:
    teller = Teller(steps_between=2)

    assert acts(teller.step(1, 1) + teller.step(2, 1)) == []
    assert acts(teller.step(3, 1)) == [KillWorker(103)]


def test_a_round_breaks_once_however_often_it_is_told() -> None:
    teller = Teller(steps_between=1)
    teller.step(1, 1)

    assert told(teller.say(RoundBroke(1, "rank 3 died"))) == ["round 1 broke: rank 3 died"]
    assert told(teller.say(RoundBroke(1, "rank 3 died"))) == []
    assert told(teller.say(RoundBroke(2, "a node joined"), RoundBroke(1, "rank 3 died"))) == [
        "round 2 broke: a node joined"
    ]


def test_a_round_trains_only_when_its_last_worker_has_finished_a_step() -> None:
    teller = Teller(steps_between=1)
    teller.step(1, 1)
    teller.step(2, 1, at=10.0)
    teller.say(RoundBroke(1, "rank 3 died"))
    teller.now = 10.2
    teller.say(*(Stepped("AB"[rank // 2], rank, 4, 2, 3, LOSS, 200 + rank) for rank in range(3)))

    assert teller.story.recoveries == []
    teller.now = 10.5
    teller.say(Stepped("B", 3, 4, 2, 3, LOSS, 203))
    (recovery,) = teller.story.recoveries
    assert (recovery.what, round(recovery.seconds, 6), recovery.steps_lost) == ("worker rank 3", 0.5, 0)


def test_steps_beyond_the_checkpoint_are_lost_also_those_told_after_the_kill() -> None:
    teller = Teller(steps_between=1)
    teller.step(1, 1)
    teller.step(2, 1)
    teller.say(Stepped("A", 1, 4, 1, 3, LOSS, 101))  # in flight during the kill
    teller.say(Stepped("A", 0, 4, 2, 3, LOSS, 200))  # the next round does step 3 again
    teller.say(Stepped("A", 1, 4, 1, 4, LOSS, 101))  # a line that came late
    effects = teller.step(3, 2)

    assert teller.story.recoveries[0].steps_lost == 2
    assert told(effects)[0].endswith("2 steps lost")


def whole_story() -> Teller:
    teller = Teller(steps_between=1)
    teller.step(1, 1)
    assert acts(teller.step(2, 1)) == [KillWorker(103)]
    teller.step(3, 2)
    assert acts(teller.step(4, 2)) == [KillNode("B")]
    teller.say(NodeEnded("B", 137))
    teller.step(5, 3, nodes="A")
    assert acts(teller.step(6, 3, nodes="A", at=100.0)) == [StartNode("B")]
    teller.step(7, 3, nodes="A", at=110.0)
    teller.step(8, 4, at=110.5)
    assert acts(teller.step(9, 4)) == []
    assert acts(teller.step(10, 4, loss=FITS)) == [EndTraining()]
    return teller


def test_the_whole_story_ends_well_when_every_node_ends_well_and_the_model_is_right() -> None:
    teller = whole_story()
    teller.say(Fitted(11, 0.002, 0.0), NodeEnded("B", 0))
    assert teller.story.stage is Stage.ENDING
    teller.say(NodeEnded("A", 0))

    report = teller.report
    assert report.succeeded
    assert [(each.what, each.workers) for each in report.recoveries] == [
        ("worker rank 3", 4),
        ("node B: its agent and 2 workers", 2),
        ("nothing: a new node came", 4),
    ]
    assert "11 steps, loss 5.00 -> 0.0001" in report.sentence


def test_a_new_node_costs_only_the_pause_and_not_its_own_start() -> None:
    assert whole_story().story.recoveries[-1].seconds == 0.5


def test_a_model_that_is_off_or_has_drifted_is_a_failure() -> None:
    for fitted, piece in ((Fitted(11, 0.5, 0.0), "off by"), (Fitted(11, 0.002, 1e-3), "differs by"), (None, "without")):
        teller = whole_story()
        teller.say(*([fitted] if fitted else []), NodeEnded("A", 0), NodeEnded("B", 0))

        assert not teller.report.succeeded
        assert piece in teller.report.sentence


def test_an_agent_that_ends_by_itself_ends_the_story_badly() -> None:
    teller = Teller()
    teller.step(1, 1)
    teller.say(NodeEnded("A", 3))

    assert teller.report == Report(False, "the agent of node A ended with exit code 3", ())
    assert teller.story.wakeup() is None


def test_patience_ends_when_no_step_comes() -> None:
    teller = Teller()
    teller.step(1, 1, at=20.0)
    assert teller.story.wakeup() == 50.0
    teller.now = 50.0
    teller.say(Tick())

    assert teller.report.sentence == "nothing happened for 30 s while steady"


def test_the_rows_show_killed_workers_until_the_next_round() -> None:
    teller = Teller(steps_between=1)
    teller.step(1, 1)
    teller.step(2, 1)
    teller.say(RoundBroke(1, "rank 3 died"))

    states = {(row.node, row.rank): row.state for row in teller.story.rows()}
    assert states == {("A", 0): "stopped", ("A", 1): "stopped", ("B", 2): "stopped", ("B", 3): "killed"}
    teller.step(3, 2)
    assert [(row.rank, row.round, row.state) for row in teller.story.rows()] == [
        (rank, 2, "training") for rank in range(4)
    ]
