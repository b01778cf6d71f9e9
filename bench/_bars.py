"""Bars of ours beside theirs, drawn from results: one chart for each bench that compares us with another package.

A chart names its rows by the bench's cases. A case that was not measured is marked as such, and one that the other
package never finished is a hatched bar to the end of the scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from bench import _svg
from bench._svg import Picture, width_of
from bench.harness import Case, Results, number

WIDTH, LEFT, RIGHT, TOP = 800, 28, 28, 92
LABEL, BAR, GAP, BETWEEN, AXIS = 16, 15, 3, 20, 26
STEP = LABEL + 2 * BAR + GAP + BETWEEN
#: How the names of cases begin that say how many trials ended well.
RATES = ("... recovered", "... got in")
#: The longest bar, which leaves room for what stands behind it.
FULL = WIDTH - LEFT - RIGHT - 170


@dataclass(frozen=True, slots=True)
class Row:
    """One pair of bars: what a reader is told, the case, and the case it follows where its own name says little."""

    label: str
    case: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """What to draw of a bench."""

    title: str
    rows: tuple[Row, ...]
    #: What is said under the title.
    under: str = "medians, shorter is better"
    #: After this time a trial of the other package counted as lost.
    waited: float | None = None


CHARTS = {
    "recovery": Chart(
        "Until every rank steps again",
        (
            Row("A worker is killed", "one of 2 workers killed, warm"),
            Row("A node is lost", "a node lost, another carries the coordinator"),
            Row("The node with the coordinator is lost", "a node lost, it carried the coordinator"),
            Row(
                "A node joins: how long the others pause",
                "... pause of those that were there",
                "a node joins, its import of torch aside",
            ),
            Row(
                "A node joins: from its start, import of torch included",
                "... with it",
                "a node joins, its import of torch aside",
            ),
        ),
        under="the same plain torch script on two workers or nodes, gloo on one machine; medians, shorter is better",
        waited=60,
    ),
    "inprocess": Chart(
        "In process: one of two workers is killed",
        (
            Row(
                "The survivor stands still, torchft's defaults",
                "... beside torchft's defaults",
                "one of two killed: survivor's stall",
            ),
            Row(
                "The same, torchft tuned to 0.4 s",
                "... beside torchft tuned to 0.4 s",
                "one of two killed: survivor's stall",
            ),
            Row(
                "Both train again, torchft's defaults",
                "... beside torchft's defaults",
                "one of two killed: back to full size",
            ),
            Row(
                "The same, torchft tuned to 0.4 s",
                "... beside torchft tuned to 0.4 s",
                "one of two killed: back to full size",
            ),
        ),
    ),
    "launch": Chart(
        "Two workers, start to end of the command",
        (
            Row("Empty Python workers", "two empty Python workers, start to end"),
            Row("Programs (--no-python true)", "two programs (--no-python true), start to end"),
            Row("Workers that import torch", "two workers that import torch, start to end"),
        ),
    ),
    "rendezvous": Chart(
        "Nodes that agree on a round",
        tuple(Row(f"{nodes} nodes", f"{nodes} handlers made and gathered") for nodes in (8, 32, 64, 128, 256)),
    ),
    "store": Chart(
        "Operations of one client",
        tuple(
            Row(name, name)
            for name in ("get", "add", "set", "set, known done", "multi_get", "multi_set", "multi_set, known done")
        ),
        under="medians, longer is better; TCPStore's set and multi_set return before its server has seen anything",
    ),
    "checkpoint": Chart(
        "Checkpoints of 1 GB",
        (
            Row("A step waits: memory, beside torch.save", "step waits: memory, beside torch.save"),
            Row(
                "A step waits: memory and storage, beside torch.save", "step waits: memory + storage, beside torch.save"
            ),
            Row("The same, beside DCP async_save", "the same beside DCP async_save"),
            Row("The same, beside async_save with a cached stager", "the same beside async_save with a cached stager"),
            Row("Recovery: memory, beside torch.load", "recovery: memory, beside torch.load from disk"),
            Row("Recovery: storage, beside torch.load", "recovery: storage, beside torch.load"),
        ),
    ),
    "cli": Chart(
        "Processor time of short commands",
        tuple(Row(name, f"{name}, processor time") for name in ("--help", "builtins", "run --dryrun utils.echo")),
    ),
}


def draw(chart: Chart, results: Results) -> str:
    """Return the picture of a chart."""
    found = [(row, case, rate_of(case, results.cases)) for row in chart.rows for case in [find(row, results.cases)]]
    lengths = [value for _, case, _ in found if case for value in (case.ours, case.theirs) if value is not None]
    if chart.waited and any(gave_up(case, rate) for _, case, rate in found):
        lengths.append(chart.waited)
    end = max(lengths, default=1.0)
    bottom = TOP + len(found) * STEP
    picture = Picture(WIDTH, bottom + AXIS, f"{chart.title}: holdfast beside {results.rival}")
    picture.text(LEFT, 36, chart.title, size=19, bold=True)
    picture.text(LEFT, 57, chart.under, size=12.5, fill=_svg.QUIET)
    _legend(picture, results.rival.replace("==", " "))
    unit = next((case.unit for _, case, _ in found if case), "")
    for tick in _svg.ticks(end):
        x = LEFT + FULL * tick / end
        picture.line(x, TOP - 6, x, bottom - 8, _svg.RULE)
        picture.text(x, bottom + 8, f"{number(tick)} {unit}", size=11.5, fill=_svg.QUIET, anchor="middle")
    for place, (row, case, rate) in enumerate(found):
        _pair(picture, TOP + place * STEP, row.label, case, rate, end, chart.waited)
    return str(picture)


def find(row: Row, cases: list[Case]) -> Case | None:
    """Return the case of a row; one whose name begins with dots belongs to the last before it whose does not."""
    names = [case.name for case in cases]
    start = names.index(row.after) + 1 if row.after in names else 0 if not row.after else len(names)
    tail = cases[start:]
    if row.after:
        tail = list(takewhile(lambda case: case.name.startswith("..."), tail))
    return next((case for case in tail if case.name == row.case), None)


def rate_of(case: Case | None, cases: list[Case]) -> Case | None:
    """Return the case that says how many trials of this one ended well, where there is one."""
    if case is None:
        return None
    place = cases.index(case)
    head = max(index for index in range(place + 1) if index == 0 or not cases[index].name.startswith("..."))
    tail = takewhile(lambda each: each.name.startswith("..."), cases[head + 1 :])
    return next((each for each in tail if each.name.startswith(RATES)), None)


def gave_up(case: Case | None, rate: Case | None) -> bool:
    """Say whether the other package was tried and never came back."""
    return case is not None and case.theirs is None and rate is not None and rate.theirs == 0


def _legend(picture: Picture, rival: str) -> None:
    x = WIDTH - RIGHT - width_of(rival, 13)
    picture.text(x, 36, rival)
    picture.box(x - 20, 26, 12, 12, _svg.THEIRS, radius=2)
    x -= 20 + 18 + width_of("holdfast", 13)
    picture.text(x, 36, "holdfast", bold=True)
    picture.box(x - 20, 26, 12, 12, _svg.OURS, radius=2)


def _pair(
    picture: Picture, y: float, label: str, case: Case | None, rate: Case | None, end: float, waited: float | None
) -> None:
    picture.text(LEFT, y + 9, label, size=13.5, bold=True, clear=True)
    y += LABEL
    if case is None:
        picture.text(LEFT, y + BAR - 3, "not measured", size=12.5, fill=_svg.QUIET)
        return
    _bar(picture, y, case.ours, case.unit, end, _svg.OURS, "")
    y += BAR + GAP
    if gave_up(case, rate) and waited:
        _bar(picture, y, waited, case.unit, end, "url(#hatch)", "and not back", before="> ")
    else:
        _bar(picture, y, case.theirs, case.unit, end, _svg.THEIRS, _share(rate))


def _bar(
    picture: Picture, y: float, value: float | None, unit: str, end: float, fill: str, more: str, before: str = ""
) -> None:
    """Draw one bar and what stands behind it."""
    if value is None:
        picture.text(LEFT, y + BAR - 3, "no figure", size=12.5, fill=_svg.QUIET)
        return
    length = max(2.0, FULL * value / end)
    said = f"{before}{number(value)} {unit}"
    picture.box(LEFT, y, length, BAR, fill, radius=2)
    picture.text(LEFT + length + 8, y + BAR - 3, said, bold=fill == _svg.OURS, clear=True)
    if more:
        picture.text(LEFT + length + 14 + width_of(said), y + BAR - 3, more, size=12.5, fill=_svg.QUIET, clear=True)


def _share(rate: Case | None) -> str:
    """Say how often the other package came back, if that was not always."""
    if rate is None or rate.theirs is None or rate.theirs >= 100:
        return ""
    return f"if at all: {number(round(rate.theirs))} % came back"
