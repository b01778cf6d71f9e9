"""From a run's facts to an account of its time: what was spent on steps, what was lost, and to what. Pure.

Time is counted for each rank, from the start of its node's agent to the end. Every moment of a rank is in one phase:

    waiting     for the other nodes, or for a new round after a failure
    starting    from an agreed round to the worker's first step: imports, process groups, loading a checkpoint
    stepping    steps that the run had not made before
    redone      steps that were made before and lost
    idle        from the worker's last step to the end of its round: a hang, an evaluation, a wait for the others

A worker reports its steps by `holdfast.heartbeat(step)`. Of one that reports none, the whole life counts as stepping,
and the account says that this is not measured. Goodput is the share of stepping.

The facts of an agent tell of its own ranks only, so an account covers the nodes whose journals were read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from holdfast.events.entry import Entry

#: A rank whose steps take longer than the others' by this share counts as slow.
SLOW_SHARE = 0.05
#: Steps that took less than this together say nothing about how fast a rank is.
RATED_S_MIN = 1.0
FIRST_START, GATHERING, FINISHING = "the first start", "gathering nodes", "the end, after the last step"
SINCE = "the wait since the last step"
CAME_OR_WENT, UNDONE = "nodes came or went", "steps undone with a broken round"
#: A regroup belongs to a failure that was known at most this long before or after it began.
NEAR_S = 5.0


class Phase(StrEnum):
    """What a rank does at a moment."""

    WAITING = "waiting"
    STARTING = "starting"
    STEPPING = "stepping"
    REDONE = "redone"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Span:
    """One phase of one rank; `cause` says what the time was lost to."""

    rank: int
    round: int
    phase: Phase
    begin: float
    end: float
    cause: str = ""

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Steps:
    """How far a worker got; the numbers of steps are None where it did not tell them."""

    steps: int
    first_at: float
    last_at: float
    first_step: int | None = None
    last_step: int | None = None

    @property
    def step_s(self) -> float:
        """How long a step took on average; 0 where only one was made."""
        return (self.last_at - self.first_at) / (self.steps - 1) if self.steps > 1 else 0.0

    @staticmethod
    def read(data: Any) -> Steps | None:
        """Read what a fact has; None where it is not of the right form."""
        if not isinstance(data, Mapping):
            return None
        try:
            first, last = data.get("first_step"), data.get("last_step")
            return Steps(
                int(data["steps"]),
                float(data["first_at"]),
                float(data["last_at"]),
                None if first is None else int(first),
                None if last is None else int(last),
            )
        except (KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Loss:
    """Time that was not stepping, averaged over ranks, and what it was lost to."""

    cause: str
    phase: Phase
    seconds: float


@dataclass(frozen=True, slots=True)
class Account:
    """What became of the time between `begin` and `end`. All seconds are averages over ranks."""

    begin: float
    end: float
    spans: tuple[Span, ...]
    seconds: Mapping[Phase, float]
    losses: tuple[Loss, ...]
    #: Whether workers reported steps; without, their whole life counts as stepping.
    measured: bool
    #: How many steps the run has made, as the furthest rank counts them, and how many of a rank were made again.
    steps: int
    steps_redone: int
    #: Steps per second by rank, in the latest round of each.
    rates: Mapping[int, float]

    @property
    def total_s(self) -> float:
        """The time of an average rank."""
        return sum(self.seconds.values())

    @property
    def lost_s(self) -> float:
        """The time that was not spent on new steps."""
        return self.total_s - self.seconds[Phase.STEPPING]

    @property
    def goodput(self) -> float | None:
        """The share of stepping, from 0 to 1; None before any worker has run."""
        return self.seconds[Phase.STEPPING] / self.total_s if self.spans and self.total_s > 0 else None

    @property
    def slowest(self) -> tuple[int, float] | None:
        """The slowest rank and its steps per second, if it is slower than the median by more than a little."""
        rates = sorted((rate, rank) for rank, rate in self.rates.items() if rate > 0)
        if len(rates) < 2 or rates[0][0] >= rates[len(rates) // 2][0] * (1 - SLOW_SHARE):
            return None
        return rates[0][1], rates[0][0]


@dataclass(slots=True)
class _Worker:
    """One process of a rank: when it began, what its start is charged to, and how far it got."""

    rank: int
    round: int
    begin: float
    cause: str
    end: float | None = None
    #: Why it ended before its work was done.
    lost: str = ""
    steps: Steps | None = None
    #: The last step that the worker before it in the same round had made; -1 where there was none.
    reached: int = -1
    #: When it regrouped with the others in its own process: begin and end.
    regrouped: list[tuple[float, float]] = field(default_factory=list)


@dataclass(slots=True)
class _Node:
    """One agent: the phase that it is in, and its workers by rank."""

    begin: float
    size: int
    #: How the coordinator knows it.
    name: str = ""
    phase: Phase = Phase.WAITING
    since: float = 0.0
    cause: str = GATHERING
    round: int = 0
    end: float | None = None
    workers: dict[int, _Worker] = field(default_factory=dict)
    #: Phases that no worker of a round lived through: they belong to the ranks of the next one.
    between: list[tuple[Phase, float, float, str]] = field(default_factory=list)
    #: Why the workers were lost; the next start is charged to it.
    lost: str = ""


class Accountant:
    """Takes the facts of a run in their order; `account` can be asked at any time."""

    def __init__(self) -> None:
        self._nodes: dict[object, _Node] = {}
        self._by_pid: dict[object, _Worker] = {}
        self._done: list[tuple[_Node, _Worker]] = []
        self._spans: list[Span] = []
        #: The reasons of failures, and when they were known.
        self._failures: list[tuple[float, str]] = []
        #: The last step that was made in each round.
        self._reached: dict[int, int] = {}

    def take(self, entry: Entry) -> None:
        """Take the next fact."""
        key = (entry.host, entry.pid)
        if entry.kind == "agent_started":
            size = _whole(entry.data.get("workers")) or 1
            self._nodes[key] = _Node(entry.time, size, name=entry.node or "", since=entry.time)
        elif entry.kind == "node_gone":
            self._lose_node(entry)
        elif entry.kind == "regrouped":
            self._regroup(entry)
        elif (node := self._nodes.get(key)) is not None and node.end is None:
            handle = _HANDLERS.get(entry.kind)
            if handle is not None:
                handle(self, node, entry, key)

    # -- an agent's facts ----------------------------------------------------------------------------------------------

    def _agree(self, node: _Node, entry: Entry, key: object) -> None:
        del key
        if not node.workers:  # else they outlived the round
            self._turn(node, Phase.STARTING, entry.time, node.lost or FIRST_START)

    def _start(self, node: _Node, entry: Entry, key: Any) -> None:
        # The fact comes when all of them are started; the first may be stepping by then.
        took = entry.data.get("duration_ms")
        begun = max(entry.time - took / 1000, node.since) if isinstance(took, int | float) else entry.time
        self._turn(node, Phase.STARTING, begun, node.lost or FIRST_START)
        node.round = _whole(entry.data.get("round")) or 0
        ranks = [rank for rank in entry.data.get("ranks") or () if isinstance(rank, int)]
        for rank in ranks:
            self._spans += [Span(rank, node.round, *each) for each in node.between]
        node.between.clear()
        self._add(node, ranks, entry, key[0], node.cause, begun)
        node.lost = ""

    def _add(self, node: _Node, ranks: list[int], entry: Entry, host: str | None, cause: str, begun: float) -> None:
        pids = entry.data.get("pids") or ()
        for place, rank in enumerate(ranks):
            node.workers[rank] = worker = _Worker(rank, node.round, begun, cause)
            if len(pids) == len(ranks):
                self._by_pid[host, pids[place]] = worker

    def _fail(self, node: _Node, entry: Entry, key: object) -> None:
        del key
        worker = node.workers.get(_whole(entry.data.get("rank"), -1))
        if worker is not None and worker.end is None:
            worker.end = entry.time

    def _replace(self, node: _Node, entry: Entry, key: Any) -> None:
        cause = self._fault(entry)
        ranks = [rank for rank in entry.data.get("ranks") or () if isinstance(rank, int)]
        before = {rank: node.workers[rank] for rank in ranks if rank in node.workers}
        for rank, worker in before.items():
            died = worker.end if worker.end is not None else entry.time
            worker.lost = cause
            self._finish(node, worker, died)
            self._spans.append(Span(rank, node.round, Phase.STARTING, died, entry.time, cause))
        self._add(node, ranks, entry, key[0], cause, entry.time)
        for rank, worker in before.items():
            if worker.steps is not None and worker.steps.last_step is not None:
                node.workers[rank].reached = worker.steps.last_step

    def _lose(self, node: _Node, entry: Entry, key: object) -> None:
        """Note that the round is over; how far its workers got is told a moment later."""
        del key
        node.lost = self._fault(entry)
        for worker in node.workers.values():
            worker.end, worker.lost = entry.time, node.lost
        self._turn(node, Phase.WAITING, entry.time, node.lost)

    def _note_steps(self, node: _Node, entry: Entry, key: object) -> None:
        del key
        for rank, data in (entry.data.get("ranks") or {}).items():
            worker = node.workers.get(_whole(rank, -1))
            if worker is not None:
                worker.steps = Steps.read(data)

    def _stopped(self, node: _Node, entry: Entry, key: object) -> None:
        del key
        self._finish_all(node, entry.time)

    def _end(self, node: _Node, entry: Entry, key: object) -> None:
        del key
        if node.workers:
            self._finish_all(node, entry.time)
        else:
            self._turn(node, node.phase, entry.time, node.cause)
        node.end = entry.time

    def _regroup(self, entry: Entry) -> None:
        """A worker regrouped in its own process; the first time of each is part of its start."""
        worker = self._by_pid.get((entry.host, entry.pid))
        took = entry.data.get("duration_ms")
        if worker is not None and isinstance(took, int | float) and worker.begin < entry.time:
            worker.regrouped.append((entry.time - took / 1000, entry.time))

    def _lose_node(self, entry: Entry) -> None:
        """A node is gone, and may have had no time to say so: its ranks end here."""
        for node in self._nodes.values():
            if node.end is None and node.name and node.name == entry.data.get("node"):
                for worker in node.workers.values():
                    worker.lost = worker.lost or entry.sentence
                self._end(node, entry, None)

    def _fault(self, entry: Entry) -> str:
        """Remember a failure; returns its reason."""
        reason = str(entry.data.get("reason") or "an unknown failure")
        self._failures.append((entry.time, reason))
        return reason

    # -- phases --------------------------------------------------------------------------------------------------------

    def _turn(self, node: _Node, phase: Phase, now: float, cause: str) -> None:
        """Begin the next phase of a node without workers."""
        if not node.workers and now > node.since:
            node.between.append((node.phase, node.since, now, node.cause))
        node.phase, node.since, node.cause = phase, max(now, node.since), cause

    def _finish_all(self, node: _Node, now: float) -> None:
        for worker in node.workers.values():
            self._finish(node, worker, worker.end if worker.end is not None else now)
        node.workers = {}

    def _finish(self, node: _Node, worker: _Worker, end: float) -> None:
        worker.end = end
        self._spans += self._spans_of(worker, end)
        self._done.append((node, worker))
        if worker.steps is not None and worker.steps.last_step is not None:
            self._reached[worker.round] = max(self._reached.get(worker.round, -1), worker.steps.last_step)

    def _spans_of(self, worker: _Worker, end: float) -> list[Span]:
        earlier = (step for number, step in self._reached.items() if number < worker.round)
        spans = _phases(worker, end, max(earlier, default=worker.reached))
        if worker.steps is None:
            cuts = worker.regrouped[1:]  # the first one is part of its start
        else:
            cuts = [cut for cut in worker.regrouped if cut[1] > worker.steps.first_at]
        for begin, until in cuts:
            spans = _cut(spans, begin, until, self._cause_near(begin))
        return spans

    def _cause_near(self, when: float) -> str:
        """Return the failure that made workers regroup at this time."""
        near = [(abs(known - when), reason) for known, reason in self._failures if abs(known - when) <= NEAR_S]
        return min(near)[1] if near else CAME_OR_WENT

    # -- the account ---------------------------------------------------------------------------------------------------

    def account(self, now: float, live: Mapping[int, Steps] | None = None) -> Account:
        """Return the account so far; `live` are the steps of workers that still run, by rank."""
        spans = list(self._spans)
        workers = [worker for _, worker in self._done]
        for node in self._nodes.values():
            if node.end is not None and not node.between:
                continue
            for rank, worker in node.workers.items():
                steps = (live or {}).get(rank) or worker.steps
                worker = replace(worker, steps=steps)
                spans += self._spans_of(worker, worker.end if worker.end is not None else now)
                workers.append(worker)
            until = node.end if node.end is not None else now
            ranks = sorted(node.workers) or self._last_ranks(node)
            rest = [*node.between]
            if node.end is None and until > node.since and all(each.end is not None for each in node.workers.values()):
                rest.append((node.phase, node.since, until, node.cause))
            spans += [Span(rank, node.round, *each) for rank in ranks for each in rest]
        begin = min((node.begin for node in self._nodes.values()), default=now)
        ends = [node.end if node.end is not None else now for node in self._nodes.values()]
        return _add_up(begin, max(ends, default=now), spans, workers)

    def _last_ranks(self, node: _Node) -> list[int]:
        """The ranks that a node without workers had last; before its first round those that it would have."""
        latest = [worker for other, worker in self._done if other is node and worker.round == node.round]
        return sorted({worker.rank for worker in latest}) or list(range(node.size))


_HANDLERS = {
    "rendezvous": Accountant._agree,
    "workers_started": Accountant._start,
    "workers_replaced": Accountant._replace,
    "worker_failed": Accountant._fail,
    "round_lost": Accountant._lose,
    "steps": Accountant._note_steps,
    "workers_stopped": Accountant._stopped,
    "run_ended": Accountant._end,
}


def _phases(worker: _Worker, end: float, reached: int) -> list[Span]:
    """Split the life of a worker into phases; steps up to `reached` were made before it."""
    steps = worker.steps
    if steps is None:
        parts = [(Phase.STEPPING, worker.begin, end, "")]
    else:
        # A worker beats once a step, so one step more than lies between its first and its last beat was made.
        first = max(worker.begin, min(steps.first_at - steps.step_s, end))
        last = min(max(steps.last_at, first), end)
        before, undone = _steps_again(steps, reached)
        one = (last - first) / max(steps.steps, 1)
        again, new = first + one * before, min(first + one * (before + undone), last)
        parts = [
            (Phase.STARTING, worker.begin, first, worker.cause),
            (Phase.REDONE, first, again, worker.cause),
            (Phase.REDONE, again, new, UNDONE),
            (Phase.STEPPING, new, last, ""),
            (Phase.IDLE, last, end, worker.lost or (SINCE if worker.end is None else FINISHING)),
        ]
    return [Span(worker.rank, worker.round, *part) for part in parts if part[2] > part[1]]


def _cut(spans: list[Span], begin: float, end: float, cause: str) -> list[Span]:
    """Make a part of some spans a wait."""
    found: list[Span] = []
    for span in spans:
        low, high = max(begin, span.begin), min(end, span.end)
        if low >= high:
            found.append(span)
            continue
        parts = [replace(span, end=low), Span(span.rank, span.round, Phase.WAITING, low, high, cause)]
        found += [part for part in (*parts, replace(span, begin=high)) if part.end > part.begin]
    return found


def _steps_again(steps: Steps, reached: int) -> tuple[int, int]:
    """How many of a worker's steps had been made before: by earlier workers, and by itself."""
    if steps.first_step is None or steps.last_step is None:
        return 0, 0
    before = min(max(min(reached, steps.last_step) - steps.first_step + 1, 0), steps.steps)
    by_itself = max(steps.steps - (steps.last_step - steps.first_step + 1), 0)
    return before, min(by_itself, steps.steps - before)


def _add_up(begin: float, end: float, spans: list[Span], workers: list[_Worker]) -> Account:
    spans.sort(key=lambda span: (span.begin, span.rank))
    ranks = len({span.rank for span in spans}) or 1
    seconds = dict.fromkeys(Phase, 0.0)
    losses: dict[tuple[str, Phase], float] = {}
    for span in spans:
        seconds[span.phase] += span.seconds / ranks
        if span.phase is not Phase.STEPPING:
            key = (span.cause, span.phase)
            losses[key] = losses.get(key, 0.0) + span.seconds / ranks
    found = [Loss(cause, phase, lost) for (cause, phase), lost in losses.items()]
    told = [worker.steps for worker in workers if worker.steps is not None]
    numbers = [steps.last_step for steps in told if steps.last_step is not None]
    by_rank: dict[int, int] = {}
    for worker in workers:
        by_rank[worker.rank] = by_rank.get(worker.rank, 0) + (worker.steps.steps if worker.steps else 0)
    made = max(by_rank.values(), default=0)
    reached = max(numbers) - min(s.first_step for s in told if s.first_step is not None) + 1 if numbers else made
    return Account(
        begin=begin,
        end=end,
        spans=tuple(spans),
        seconds=seconds,
        losses=tuple(sorted(found, key=lambda loss: -loss.seconds)),
        measured=bool(told),
        steps=reached,
        steps_redone=max(made - reached, 0),
        rates={
            worker.rank: 1 / worker.steps.step_s
            for worker in workers
            if worker.steps is not None and worker.steps.last_at - worker.steps.first_at >= RATED_S_MIN
        },
    )


def _whole(value: Any, otherwise: int = 0) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return otherwise
