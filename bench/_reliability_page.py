"""docs/RELIABILITY.md, written from the trials in bench/reliability.json."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "RELIABILITY.md"
WIDTH = 120
WAYS = ("plain", "in process", "torchrun")

HEAD = """# Reliability

What faults between hosts do to live jobs, measured by `python -m bench.reliability` (`make soak`). This page is written
by that script from `bench/reliability.json`. Three trials in process of 2026-11-18 are not in it: a link that lost
everything one way and was mended, the coordinator's agent started again, and a node that joins. In each, the node that
had to come back was not there within 60 s, and the other hosts stepped on. The limit was raised to 180 s after them;
only the second was made again, and recovered. A drain that was meant for another node is counted as one of the
coordinator's, which that node carried.

Network namespaces of one machine are the hosts, three or four of them with one worker each, in steps of 50 ms over
gloo, `--nnodes 2:3` or `2:4`. *Plain* is a script as for torchrun that saves its state every ten steps on storage that
all hosts share; *in process* is the same training in `holdfast.torch.elastic`, without checkpoints; *torchrun* runs the
plain script. Trials are kept from one version of the code to the next until they are made again with `--fresh`. Where a
job has recovered it is made whole and struck again, so the coordinator may be on any of the hosts; the cases of the
coordinator's node strike the host that it is on.

- **pause**: the longest time in which a host that was not itself struck made no step, from the fault to the end of the
  trial. Where a fault lasts and training waits for its end, that time is in it.
- **recovered**: trials in which all surviving hosts stepped again within 60 s after the fault; torchrun has 120 s, and
  where a node has to come back, all have 180 s.
- **steps lost**: steps that one host did more than once, the most of all trials.
- **samples off**: samples that the final state has seen too often or too rarely, the most of all trials.
- **split**: steps that both halves of a partition made side by side.
- **left**: processes that outlived their agents.
"""
CLOCKS = """## Not in the table

Clocks that are an hour off are not tried: the clock of this machine is that of all its hosts. No node compares the
clocks of two hosts.
"""
#: Until this day no other agent took over the coordinator, unless it was asked for.
TAKEOVER_DAY = "2026-11-17"
OLDER = (
    f"Trials from before {TAKEOVER_DAY} were made before agents on other hosts took over the coordinator by default. "
)
BUSY = (
    "That is more than the machine has cores for: other programs competed with the jobs, so **times are upper bounds** "
    "and say little about an idle machine. Whether a job recovered, and what it lost, depends on it less."
)


def write(data: dict[str, Any], cases: Sequence[tuple[str, str, Sequence[str]]]) -> None:
    """Write the page."""
    PAGE.write_text(render(data, cases))


def render(data: dict[str, Any], cases: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    """Return the page."""
    trials = data["trials"]
    parts = [HEAD, conditions(data), table(trials, cases)]
    if lost := not_recovered(trials, {name: title for name, title, _ in cases}):
        parts.append(lost)
    parts.append(CLOCKS)
    return "\n".join(parts)


def conditions(data: dict[str, Any]) -> str:
    """Say on what, and how busy it was."""
    trials = data["trials"]
    if not trials:
        return "No trial has been made yet.\n"
    loads = [each["load"] for each in trials]
    machine = data["machine"]
    cores = machine["cores"]
    busy = statistics.median(loads)
    versions = f"Python {machine['python']}, torch {machine['torch']}"
    days = dict.fromkeys(sorted(each["when"][:10] for each in trials))
    when = " and ".join(f"{sum(each['when'].startswith(day) for each in trials)} on {day}" for day in days)
    words = f"{len(trials)} trials, {when}, on {cores} cores ({machine['cpu']}), {versions}. "
    words += OLDER if min(days) < TAKEOVER_DAY else ""
    words += f"The load average was {busy:g} in the median trial and {max(loads):g} in the worst. "
    return textwrap.fill(f"{words}{BUSY if busy > cores else ''}", WIDTH) + "\n"


def table(trials: Sequence[dict[str, Any]], cases: Sequence[tuple[str, str, Sequence[str]]]) -> str:
    """Return the table."""
    lines = [
        "| case | | trials | recovered | median pause | worst pause | steps lost | samples off | split | left |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, title, ways in cases:
        shown = title
        for way in (way for way in WAYS if way in ways):
            mine = [each for each in trials if (each["case"], each["way"]) == (name, way)]
            lines.append(f"| {shown} | {way} | " + " | ".join(cells(mine)) + " |")
            shown = ""
    return "\n".join(lines) + "\n"


def cells(trials: Sequence[dict[str, Any]]) -> list[str]:
    """Return the figures of one line."""
    if not trials:
        return ["0", *["–"] * 7]
    good = [each for each in trials if each["recovered"]]
    pauses = [each["pause_s"] for each in good]
    recovered = f"{len(good)}" if len(good) == len(trials) else f"**{len(good)}**"
    return [
        str(len(trials)),
        recovered,
        f"{statistics.median(pauses):.2f} s" if pauses else "–",
        f"{max(pauses):.2f} s" if pauses else "–",
        *(_most(trials, what) for what in ("steps_lost", "samples_off", "split_steps")),
        _bold(sum(each["orphans"] for each in trials)),
    ]


def not_recovered(trials: Sequence[dict[str, Any]], titles: dict[str, str]) -> str:
    """List what was seen where a job did not recover."""
    lines = []
    for each in trials:
        if not each["recovered"]:
            line = f"- {titles[each['case']]}, {each['way']}: {each['note']}"
            if line not in lines:
                lines.append(line)
    return "## Not recovered\n\nWhat was seen when the time was over:\n\n" + "\n".join(lines) + "\n" if lines else ""


def _most(trials: Sequence[dict[str, Any]], what: str) -> str:
    return (
        _bold(max(each[what] for each in trials)) if what != "steps_lost" else str(max(each[what] for each in trials))
    )


def _bold(number: int) -> str:
    return f"**{number}**" if number else "0"
