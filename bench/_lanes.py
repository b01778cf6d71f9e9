"""The picture of a recovery: lanes for workers, bars for rounds, crosses for kills. Pure.

Above, the whole job; below, its first fault in detail. The data are the agents' journals and the workers' steps that
`bench.timeline` kept.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench import _svg
from bench._svg import Picture, width_of

WIDTH, LEFT, RIGHT = 800, 118, 28
LANE, LANE_GAP, NODE_GAP, PHASE = 16, 3, 13, 19
#: What is shown before the first workers, and after the last step.
EDGE_S = 0.15
FAINT = 0.38
#: The one event that is no fault: the others train on while a node starts, and pause only when it is let in.
JOINS = "node joins"
Across = Callable[[float], float]
Down = Callable[[int, int], float]


@dataclass(frozen=True, slots=True)
class Bar:
    """One worker's life in one round: it was there, and for a part of that time it trained."""

    node: int
    worker: int
    round: int
    start_s: float
    first_s: float
    last_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Span:
    """A time with a name: a round, a phase, a pause."""

    what: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Story:
    """What happened, in seconds since the picture begins."""

    end_s: float
    nodes: int
    bars: list[Bar]
    rounds: list[Span]
    #: From each fault, or from the last step before a newcomer is let in, until every rank steps again.
    stalls: list[Span]
    #: Node, worker and time of each kill.
    kills: list[tuple[int, int, float]]
    #: The last node, from its start to that of its workers.
    arrival: Span
    #: What the first stall was made of.
    phases: list[Span]


# -- reading -------------------------------------------------------------------------------------------------


def read_story(data: dict[str, Any]) -> Story:
    """Return the story that the journals and steps tell."""
    entries = [json.loads(line) for line in data["journal"]]
    starts = [entry for entry in entries if entry["kind"] == "workers_started"]
    zero = min(entry["time"] for entry in starts) - EDGE_S
    steps = {int(pid): (first - zero, last - zero) for pid, (first, last) in data["steps"].items()}
    # The node that was there longest comes first, the newcomer last.
    nodes = [node for node, _ in Counter(entry["node"] for entry in starts).most_common()]
    end_s = max(last for _, last in steps.values()) + EDGE_S
    bars = [bar for entry in starts for bar in _bars(entry, entries, nodes, steps, zero)]
    faults = [(fault["what"], fault["at"] - zero, set(fault["pids"])) for fault in data["faults"]]
    places = {pid: (nodes.index(e["node"]), worker) for e in starts for worker, pid in enumerate(e["data"]["pids"])}
    came_s = min(bar.start_s for bar in bars if bar.node == len(nodes) - 1)
    stalls = [_stall(what, at, bars) for what, at, _ in faults]
    return Story(
        end_s,
        len(nodes),
        bars,
        _rounds(entries, zero, end_s),
        stalls,
        [(*places[pid], at) for _, at, pids in faults for pid in sorted(pids) if pid in places],
        Span("starts, imports torch", faults[-1][1], came_s),
        _phases(entries, zero, stalls[0]),
    )


def _bars(
    entry: dict[str, Any],
    entries: list[dict[str, Any]],
    nodes: list[str],
    steps: dict[int, tuple[float, float]],
    zero: float,
) -> list[Bar]:
    node, start_s = entry["node"], entry["time"] - zero
    stops = [e["time"] - zero for e in entries if e["kind"] == "workers_stopped" and e["node"] == node]
    died = {e["data"]["pid"]: e["time"] - zero for e in entries if e["kind"] == "worker_failed"}
    bars = []
    for worker, pid in enumerate(entry["data"]["pids"]):
        first_s, last_s = steps[pid]
        # Workers that were killed with their agent, or are still running, end with their last step.
        end = died.get(pid) or min((at for at in stops if at > start_s), default=last_s)
        bars.append(Bar(nodes.index(node), worker, entry["data"]["round"], start_s, first_s, last_s, end))
    return bars


def _rounds(entries: list[dict[str, Any]], zero: float, end_s: float) -> list[Span]:
    broken = {e["data"]["round"]: e["time"] - zero for e in entries if e["kind"] == "round_broken"}
    return [
        Span(str(e["data"]["round"]), max(0.0, e["time"] - zero), broken.get(e["data"]["round"], end_s))
        for e in entries
        if e["kind"] == "round_sealed"
    ]


def _stall(what: str, at: float, bars: list[Bar]) -> Span:
    """From a fault to the first step of the last rank; a newcomer's start is no fault, so there from the last step."""
    number = min(bar.round for bar in bars if bar.start_s > at)
    start_s = at
    if what == JOINS:
        start_s = max(bar.last_s for bar in bars if bar.round == number - 1)
    return Span(what, start_s, max(bar.first_s for bar in bars if bar.round == number))


def _phases(entries: list[dict[str, Any]], zero: float, stall: Span) -> list[Span]:
    """What the time between a worker's death and the first step was spent on."""
    last = {e["kind"]: e["time"] - zero for e in entries if stall.start_s < e["time"] - zero <= stall.end_s}
    ends = [
        ("its agent notices", last["worker_failed"]),
        ("the round is broken, all nodes are told", last["round_broken"]),
        ("the other workers are stopped", last["workers_stopped"]),
        ("the next round is agreed on", last["round_sealed"]),
        ("workers are forked from the template", last["workers_started"]),
        ("torch's process group, the first step", stall.end_s),
    ]
    spans, start = [], stall.start_s
    for what, end in ends:
        spans.append(Span(what, start, max(start, end)))
        start = max(start, end)
    return spans


# -- drawing -------------------------------------------------------------------------------------------------


def draw(story: Story) -> str:
    """Return the picture of a story."""
    workers = 1 + max(bar.worker for bar in story.bars)
    node_height = workers * (LANE + LANE_GAP) + NODE_GAP
    top = 132
    bottom = top + LANE + NODE_GAP + story.nodes * node_height
    glass = bottom + 62
    picture = Picture(WIDTH, glass + 30 + len(story.phases) * PHASE, "A job loses a worker, loses a node and gains one")
    scale = (WIDTH - LEFT - RIGHT) / story.end_s

    def x(at_s: float) -> float:
        return LEFT + at_s * scale

    def lane(node: int, worker: int) -> float:
        return top + LANE + NODE_GAP + node * node_height + worker * (LANE + LANE_GAP)

    picture.text(28, 36, "One job: a worker is killed, a node is lost, a node joins", size=19, bold=True)
    said = f"{workers} workers a node train a plain torch script; solid: they train; drawn from the agents' journals"
    picture.text(28, 57, said, size=12.5, fill=_svg.QUIET)
    for tick in _svg.ticks(story.end_s, 12):
        picture.line(x(tick), top - 6, x(tick), bottom, _svg.RULE)
        picture.text(x(tick), bottom + 14, f"{tick:g} s", size=11.5, fill=_svg.QUIET, anchor="middle")
    picture.text(28, top + 12, "round", size=13, bold=True)
    for span in story.rounds:
        picture.box(x(span.start_s), top, x(span.end_s) - x(span.start_s), LANE, colour(int(span.what)), radius=3)
        middle = (x(span.start_s) + x(span.end_s)) / 2
        picture.text(middle, top + 12.5, span.what, size=12, fill="#ffffff", bold=True, anchor="middle")
    for node in range(story.nodes):
        picture.text(28, lane(node, 0) + 12, f"node {chr(ord('A') + node)}", size=13, bold=True)
        for worker in range(workers):
            picture.text(LEFT - 10, lane(node, worker) + 12, f"{worker}", size=12, fill=_svg.QUIET, anchor="end")
    for bar in story.bars:
        y = lane(bar.node, bar.worker)
        picture.box(x(bar.start_s), y, x(bar.end_s) - x(bar.start_s), LANE, colour(bar.round), radius=2, opacity=FAINT)
        picture.box(x(bar.first_s), y, x(bar.last_s) - x(bar.first_s), LANE, colour(bar.round), radius=2)
    _arrival(picture, story, x, lane, workers)
    free = 0.0
    for stall in story.stalls:
        free = _stall_mark(picture, stall, x, top, bottom, free)
    for node, worker, at in story.kills:
        picture.cross(x(at), lane(node, worker) + LANE / 2, 5)
    _glass(picture, story, glass)
    return str(picture)


def colour(number: int) -> str:
    """The colour of a round."""
    return _svg.ROUNDS[(number - 1) % len(_svg.ROUNDS)]


def _arrival(picture: Picture, story: Story, x: Across, lane: Down, workers: int) -> None:
    node, span = story.nodes - 1, story.arrival
    height = workers * (LANE + LANE_GAP) - LANE_GAP
    picture.box(x(span.start_s), lane(node, 0), x(span.end_s) - x(span.start_s), height, "url(#hatch)", radius=3)
    middle = (x(span.start_s) + x(span.end_s)) / 2
    picture.text(middle, lane(node, 0) + height / 2 + 4.5, span.what, size=12.5, anchor="middle", clear=True)


def _stall_mark(picture: Picture, stall: Span, x: Across, top: float, bottom: float, free: float) -> float:
    """A pause, with its length above it, right of what is no longer free; returns where its words end."""
    room = max(width_of(stall.what, 12.5), 60.0)
    middle = max((x(stall.start_s) + x(stall.end_s)) / 2, free + room / 2)
    picture.box(x(stall.start_s), top - 8, x(stall.end_s) - x(stall.start_s), 3, _svg.ALARM)
    picture.line(x(stall.start_s), top - 8, x(stall.start_s), bottom, _svg.ALARM, dashes="2 3")
    picture.text(middle, top - 31, stall.what, size=12.5, anchor="middle")
    picture.text(middle, top - 15, f"{stall.end_s - stall.start_s:.2f} s", size=14, bold=True, anchor="middle")
    return middle + room / 2 + 8


def _glass(picture: Picture, story: Story, y: float) -> None:
    """The first fault, phase by phase."""
    begin, end = story.phases[0].start_s, story.phases[-1].end_s
    picture.text(28, y, "From the kill to the first step of every rank", size=15, bold=True)
    left, room = 300.0, WIDTH - 300 - RIGHT - 60
    for place, span in enumerate(story.phases):
        row = y + 16 + place * PHASE
        start = left + room * (span.start_s - begin) / (end - begin)
        length = max(1.5, room * (span.end_s - span.start_s) / (end - begin))
        picture.text(left - 12, row + 11, span.what, size=12.5, anchor="end")
        fill = _svg.THEIRS if place == len(story.phases) - 1 else _svg.OURS
        picture.box(start, row, length, PHASE - 5, fill, radius=2)
        picture.text(start + length + 6, row + 11, f"{1000 * (span.end_s - span.start_s):.0f} ms", size=12)
