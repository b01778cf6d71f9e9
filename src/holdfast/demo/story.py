"""The demo's story: what to kill and when, and what it cost the job. Pure.

It gets the lines of workers and agents and returns what to do next. It does not know processes, files or the
screen; `watch` does.

    GATHERING ─▶ STEADY ─▶ a worker is killed ─▶ MENDING ─▶ STEADY ─▶ a node is killed ─▶ MENDING ─▶ STEADY
                  ─▶ a new node is started ─▶ MENDING ─▶ STEADY until the model fits ─▶ ENDING ─▶ ENDED

The rules of counting, all on the side that makes us look worse:

1. A round counts as training once *every* one of its workers has finished a step in it, not when it is sealed.
2. The clock runs from the kill. A new node's own start is no loss, since the others train meanwhile; there it runs
   from the last step of the round that was ended for it.
3. Lost steps are those that any worker had finished beyond the checkpoint that the next round began with.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from holdfast.machine import Tick
from holdfast.quantities import count

#: The node that carries the coordinator, and the one that is hurt.
HOST, OTHER = "A", "B"
NODES = (HOST, OTHER)
WORKERS_PER_NODE = 2
#: A loss of which little but the noise of the points is left (0.0001), and how far off the weights may then be.
LOSS_GOAL = 0.00015
ERROR_MAX = 0.02
#: Weights that differ by more than rounding have missed a step or taken one twice.
DRIFT_MAX = 1e-9


class Stage(enum.StrEnum):
    """The stage of the story."""

    GATHERING = "gathering"
    STEADY = "steady"
    MENDING = "mending"
    ENDING = "ending"
    ENDED = "ended"


class Tone(enum.StrEnum):
    """How a line is meant, for the screen to colour."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"


# -- events --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """The demo begins."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """A worker has finished a training step."""

    node: str
    rank: int
    world: int
    round: int
    step: int
    loss: float
    pid: int


@dataclass(frozen=True, slots=True)
class Fitted:
    """Training is over: how far the weights are from the truth, and from those of an undisturbed run."""

    step: int
    error: float
    drift: float


@dataclass(frozen=True, slots=True)
class RoundBroke:
    """The coordinator has ended a round."""

    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeEnded:
    """An agent has ended."""

    node: str
    exit_code: int


Event = Begin | Stepped | Fitted | RoundBroke | NodeEnded | Tick

# -- effects -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tell:
    """Show a line."""

    sentence: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class StartNode:
    """Start an agent."""

    node: str


@dataclass(frozen=True, slots=True)
class KillWorker:
    """SIGKILL one worker."""

    pid: int


@dataclass(frozen=True, slots=True)
class KillNode:
    """SIGKILL an agent and all that it has started."""

    node: str


@dataclass(frozen=True, slots=True)
class EndTraining:
    """Tell the workers that it is enough."""


@dataclass(frozen=True, slots=True)
class End:
    """The story is over."""

    report: Report


Effect = Tell | StartNode | KillWorker | KillNode | EndTraining | End


@dataclass(frozen=True, slots=True)
class Recovery:
    """One thing that happened to the job, and what it cost."""

    what: str
    seconds: float
    steps_lost: int
    round: int
    workers: int


@dataclass(frozen=True, slots=True)
class Report:
    """How the demo went; `sentence` says it in a line."""

    succeeded: bool
    sentence: str
    recoveries: tuple[Recovery, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One worker as the screen shows it."""

    node: str
    rank: int
    pid: int
    round: int
    step: int
    loss: float
    state: str


@dataclass(slots=True)
class _Round:
    """What is known of one round."""

    world: int
    #: The step that it began from: that of the checkpoint.
    began: int
    #: The highest step that a worker finished in it, and when a step was last finished.
    done: int = 0
    stepped_at: float = 0.0
    ranks: dict[int, Stepped] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        return len(self.ranks) == self.world


class StoryMachine:
    """Decides what happens next; see the module's opening."""

    def __init__(self, *, steps_between: int, patience_s: float) -> None:
        self.stage = Stage.GATHERING
        self.recoveries: list[Recovery] = []
        self._steps_between = steps_between
        self._patience_s = patience_s
        self._rounds: dict[int, _Round] = {}
        #: The latest round that a worker has spoken of; 0 before the first.
        self._round = 0
        #: The latest round that is known to be over.
        self._broken = 0
        self._alive: set[str] = set()
        self._rows: dict[tuple[str, int], Row] = {}
        self._acts = [self._kill_worker, self._kill_node, self._replace_node]
        #: While mending: what happened, when, in which round, and how many workers must train for it to be over.
        self._hurt = ""
        self._hurt_at: float | None = None
        self._hurt_round = 0
        self._world_wanted = WORKERS_PER_NODE * len(NODES)
        #: The step at which the present stage began.
        self._since = 0
        self._first_loss: float | None = None
        self._fitted: Fitted | None = None
        self._deadline = float("inf")
        self._out: list[Effect] = []

    # -- the contract ----------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Decide what one event means."""
        if self.stage is not Stage.ENDED:
            match event:
                case Begin():
                    self._begin(now)
                case Stepped():
                    self._on_step(event, now)
                case Fitted():
                    self._fitted = event
                case RoundBroke():
                    self._on_broken(event)
                case NodeEnded():
                    self._on_node_ended(event)
                case Tick():
                    if now >= self._deadline:
                        self._fail(f"nothing happened for {self._patience_s:g} s while {self.stage.value}")
        effects, self._out = self._out, []
        return effects

    def wakeup(self) -> float | None:
        """Say when patience ends."""
        return None if self._deadline == float("inf") else self._deadline

    def check(self) -> None:
        """Assert every invariant."""
        assert all(round_.done >= round_.began for round_ in self._rounds.values())
        assert not self._rounds or self._round == max(self._rounds)
        assert len(self.recoveries) <= 3

    def snapshot(self) -> dict[str, Any]:
        """Describe the story as plain data."""
        return {"stage": self.stage.value, "round": self._round, "recoveries": len(self.recoveries)}

    def rows(self) -> list[Row]:
        """Return the workers as the screen shows them, by node and rank."""
        return [self._rows[key] for key in sorted(self._rows)]

    # -- events ----------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        self._deadline = now + self._patience_s
        self._out.append(Tell(f"starting {len(NODES)} nodes of {WORKERS_PER_NODE} workers"))
        for node in NODES:
            self._start(node)

    def _on_step(self, event: Stepped, now: float) -> None:
        round_ = self._rounds.get(event.round)
        if round_ is None:
            round_ = self._rounds[event.round] = _Round(event.world, event.step - 1)
        is_news = event.step > round_.done
        round_.done = max(round_.done, event.step)
        round_.stepped_at = now
        round_.ranks[event.rank] = event
        if event.round < self._round:
            return  # a last line that came late; it still counts as a finished step
        if event.round > self._round:
            self._round = event.round
            self._rows = {key: row for key, row in self._rows.items() if row.node not in self._alive}
        self._show(event)
        if self._first_loss is None:
            self._first_loss = event.loss
        if is_news:
            self._deadline = now + self._patience_s
        self._go_on(event, round_, now)

    def _go_on(self, event: Stepped, round_: _Round, now: float) -> None:
        if self.stage in (Stage.GATHERING, Stage.MENDING):
            if round_.trains and round_.world == self._world_wanted and self._round > self._hurt_round:
                self._on_training(round_, now)
        elif self.stage is Stage.STEADY and round_.done >= self._since + self._steps_between:
            if self._acts:
                self._acts.pop(0)(now)
            elif event.loss <= LOSS_GOAL:
                self.stage = Stage.ENDING  # STEADY -> ENDING
                self._out += [Tell(f"the model fits (loss {event.loss:.4f}): enough"), EndTraining()]

    def _on_training(self, round_: _Round, now: float) -> None:
        """Every worker of the round has finished a step in it."""
        nodes = round_.world // WORKERS_PER_NODE
        text = f"round {self._round}: {count(nodes, 'node')}, {count(round_.world, 'worker')}"
        if self.stage is Stage.GATHERING:
            self._out.append(Tell(f"{text}, training", Tone.GOOD))
        else:
            before = self._rounds[self._hurt_round]
            began_at = before.stepped_at if self._hurt_at is None else self._hurt_at
            # A worker may be stopped between saving a step and telling of it, so the difference may also be -1.
            steps_lost = max(before.done - round_.began, 0)
            cost = Recovery(self._hurt, now - began_at, steps_lost, self._round, round_.world)
            self.recoveries.append(cost)
            lost = count(cost.steps_lost, "step") if cost.steps_lost else "no step"
            self._out.append(Tell(f"{text}, training again after {cost.seconds:.2f} s, {lost} lost", Tone.GOOD))
        self.stage = Stage.STEADY  # GATHERING, MENDING -> STEADY
        self._since = round_.done

    def _on_broken(self, event: RoundBroke) -> None:
        if event.round <= self._broken:
            return  # every node tells it, and one that comes later hears of it, too
        self._broken = event.round
        self._out.append(Tell(f"round {event.round} broke: {event.reason}"))
        for key, row in self._rows.items():
            if row.state == "training":
                self._rows[key] = _with_state(row, "stopped")

    def _on_node_ended(self, event: NodeEnded) -> None:
        if event.node not in self._alive:
            return  # we killed it
        self._alive.discard(event.node)
        if event.node == OTHER and event.exit_code and self.stage is Stage.STEADY:
            self._out.append(Tell(f"node {OTHER} was killed from outside; starting a new one"))
            self._start(OTHER)
        elif self.stage is not Stage.ENDING or event.exit_code != 0:
            self._fail(f"the agent of node {event.node} ended with exit code {event.exit_code}")
        elif not self._alive:
            self._conclude()

    # -- acts ------------------------------------------------------------------------------------------------

    def _kill_worker(self, now: float) -> None:
        """Kill the highest rank; it is on the node that does not carry the coordinator."""
        victim = max((row for row in self._rows.values() if row.node == OTHER), key=lambda row: row.rank)
        self._rows[victim.node, victim.rank] = _with_state(victim, "killed")
        self._hurt_begins(f"worker rank {victim.rank}", now, len(self._alive))
        self._out += [
            KillWorker(victim.pid),
            Tell(f"killed worker rank {victim.rank} on node {OTHER} (SIGKILL to pid {victim.pid})", Tone.BAD),
        ]

    def _kill_node(self, now: float) -> None:
        for key, row in self._rows.items():
            if row.node == OTHER:
                self._rows[key] = _with_state(row, "killed")
        self._alive.discard(OTHER)
        self._hurt_begins(f"node {OTHER}: its agent and {WORKERS_PER_NODE} workers", now, len(self._alive))
        self._out += [
            KillNode(OTHER),
            Tell(f"killed node {OTHER}: its agent and {WORKERS_PER_NODE} workers (SIGKILL to all)", Tone.BAD),
        ]

    def _replace_node(self, now: float) -> None:
        self._start(OTHER)
        self._hurt_begins("nothing: a new node came", now, len(self._alive))
        self._hurt_at = None
        self._out.append(Tell(f"starting a new node {OTHER}; node {HOST} trains on meanwhile"))

    def _hurt_begins(self, what: str, now: float, nodes: int) -> None:
        self.stage = Stage.MENDING  # STEADY -> MENDING
        self._hurt, self._hurt_at, self._hurt_round = what, now, self._round
        self._world_wanted = nodes * WORKERS_PER_NODE
        self._deadline = now + self._patience_s

    # -- the end ---------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        fitted = self._fitted
        if fitted is None:
            self._fail("the workers ended without a word on the model")
        elif fitted.error > ERROR_MAX:
            self._fail(f"the model is off by {fitted.error:.1e} after {fitted.step} steps")
        elif fitted.drift > DRIFT_MAX:
            self._fail(f"the model differs by {fitted.drift:.1e} from that of an undisturbed run")
        else:
            last = self._rounds[self._round].ranks[0].loss
            same = "exactly" if fitted.drift == 0 else f"to {fitted.drift:.0e}"
            self._end(
                succeeded=True,
                sentence=f"all recovered: {fitted.step} steps, loss {self._first_loss:.2f} -> {last:.4f}; "
                f"the model is right (within {fitted.error:.4f}) and the same as without any failure ({same})",
            )

    def _fail(self, sentence: str) -> None:
        self._end(succeeded=False, sentence=sentence)

    def _end(self, *, succeeded: bool, sentence: str) -> None:
        self.stage = Stage.ENDED
        self._deadline = float("inf")
        self._out.append(End(Report(succeeded, sentence, tuple(self.recoveries))))

    # -- small things ----------------------------------------------------------------------------------------

    def _start(self, node: str) -> None:
        self._alive.add(node)
        self._out.append(StartNode(node))

    def _show(self, event: Stepped) -> None:
        key = (event.node, event.rank)
        if key in self._rows and self._rows[key].pid == event.pid and self._rows[key].state == "killed":
            return  # a last line of one that is dead by now
        self._rows[key] = Row(event.node, event.rank, event.pid, event.round, event.step, event.loss, "training")


def _with_state(row: Row, state: str) -> Row:
    return Row(row.node, row.rank, row.pid, row.round, row.step, row.loss, state)
