"""docs/BENCHMARKS.md and its pictures, written from results and nothing else.

The same results give the same files, to the byte; a test holds what is committed to that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import _bars, _lanes
from bench.harness import Case, Results, load, number, value_text

PAGE, PICTURES = "BENCHMARKS.md", "images"
#: The order of the page: what people ask about first. A bench that is not named here comes after these.
ORDER = (
    "recovery",
    "timeline",
    "inprocess",
    "checkpoint",
    "gpu",
    "nccl",
    "launch",
    "cli",
    "submit",
    "rendezvous",
    "coordinator",
    "store",
    "observe",
)

INTRO = """\
# Benchmarks

Written by `make bench` from `bench/results.json`; edit neither. `python -m bench NAME` measures one bench again, and
`python -m bench --report` only rewrites this page and its pictures. `--full` gives the other packages as many trials as
ours. Each bench is a module of that name in `bench/`; its first lines say what it measures, and how.

Both sides are measured in the same run on the same machine, in turns, and figures are medians unless a row says
otherwise. A **ratio** is how many times better ours is: below 1 we are **behind**. A **target** was set before the
measurement; **missed** targets are listed like the others. Three figures separated by slashes are the quartiles. The
load is that of the last minute, which for most benches was spent on the bench before.
"""


def write(results_path: Path, folder: Path) -> list[Path]:
    """Write the page and its pictures into a folder; returns their paths."""
    written = []
    for name, text in files(load(results_path)).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        written.append(path)
    return written


def files(results: dict[str, Results]) -> dict[str, str]:
    """Return every file that results give, by its name within the folder."""
    ordered = {name: results[name] for name in (*ORDER, *results) if name in results}
    pictures = {f"{PICTURES}/{name}.svg": text for name, each in ordered.items() if (text := picture(name, each))}
    return {PAGE: page(ordered, set(pictures)), **pictures}


def picture(name: str, results: Results) -> str:
    """Return the picture of a bench; empty where it has none."""
    if results.data:
        return _lanes.draw(_lanes.read_story(results.data))
    chart = _bars.CHARTS.get(name)
    return _bars.draw(chart, results) if chart and results.rival else ""


# -- the page ------------------------------------------------------------------------------------------------


def page(results: dict[str, Results], pictures: set[str]) -> str:
    """Return the whole page."""
    parts = [INTRO, *_machines(results), *_summary(results), *_shortfalls(results)]
    for name, each in results.items():
        parts += _section(name, each, f"{PICTURES}/{name}.svg" if f"{PICTURES}/{name}.svg" in pictures else "")
    return "\n".join(parts).rstrip("\n") + "\n"


def _machines(results: dict[str, Results]) -> list[str]:
    """What they were measured on, once for each machine and set of versions."""
    seen = dict.fromkeys(_machine(each.about) for each in results.values())
    return ["## Measured on", "", *(f"- {text}" for text in seen), ""]


def _machine(about: dict[str, Any]) -> str:
    memory = f", {about['memory_gb']} GB of memory" if "memory_gb" in about else ""
    versions = ", ".join(f"{name} {about[name]}" for name in ("holdfast", "torch", "uvloop", "msgspec"))
    return f"{about['cores']} cores of {about['cpu']}{memory}, {about['system']}; Python {about['python']}, {versions}"


def _summary(results: dict[str, Results]) -> list[str]:
    rows = [
        [
            f"[{name}](#{name})",
            each.rival.replace("==", " "),
            *(str(count) if count else "" for count in _counts(each)),
            _day(each.about),
            _load(each.about),
            f"{number(round(each.about['took_s']))} s" if "took_s" in each.about else "",
        ]
        for name, each in results.items()
    ]
    head = ["bench", "beside", "targets met", "missed", "behind", "measured", "load", "took"]
    return ["## In short", "", *table(head, rows), ""]


def _counts(results: Results) -> tuple[int, int, int]:
    """Targets met, targets missed, and cases in which the other package is better."""
    verdicts = [case.ok for case in results.cases]
    return verdicts.count(True), verdicts.count(False), sum(case.is_behind for case in results.cases)


def _shortfalls(results: dict[str, Results]) -> list[str]:
    """Missed targets, cases in which we are behind, and cases that were not measured."""
    groups = {
        "Targets that were missed": lambda case: case.ok is False,
        "Where the other package is better": lambda case: case.is_behind and case.ok is not False,
        "Not measured": lambda case: case.is_missing,
    }
    lines = []
    for title, belongs in groups.items():
        found = [
            f"- {name}: {full_name}{_said(case, each.rival)}"
            for name, each in results.items()
            for full_name, case in named(each.cases)
            if belongs(case)
        ]
        if found:
            lines += [f"**{title}**", "", *found, ""]
    return lines


def _said(case: Case, rival: str) -> str:
    figures = value_text(case.ours, case.unit)
    if case.theirs is not None:
        figures += f" beside {value_text(case.theirs, case.unit)} of {rival}"
    if case.target:
        figures += f" (target {case.target})"
    return f", {figures}" if figures else f": {case.note}"


def _section(name: str, results: Results, image: str) -> list[str]:
    """One bench: its picture, what the machine was doing, and every case."""
    lines = [f"## {name}", "", f"{results.title[:1].upper()}{results.title[1:]}.", ""]
    if image:
        lines += [f"![{results.title}]({image})", ""]
    lines += [f"Measured {_day(results.about)}; load {_load(results.about)}.", ""]
    plain = [case for case in results.cases if not case.name.startswith("  ")]
    folded = [case for case in results.cases if case.name.startswith("  ")]
    lines += [*_cases(plain, results.rival), ""]
    if folded:
        lines += ["<details><summary>and in detail</summary>", "", *_cases(folded, results.rival), "", "</details>", ""]
    return lines


def _cases(cases: list[Case], rival: str) -> list[str]:
    rows = [
        [
            f"{'&nbsp;' * 3}{case.name}" if case.name.startswith("...") else case.name.strip(),
            value_text(case.ours, case.unit),
            value_text(case.theirs, case.unit),
            "" if case.ratio is None else f"{number(case.ratio)} x",
            case.target,
            verdict(case),
            case.note,
        ]
        for case in cases
    ]
    return table(["", "holdfast", rival.replace("==", " ") or "theirs", "ratio", "target", "", "note"], rows)


def verdict(case: Case) -> str:
    """Say in a word how a case stands."""
    words = [] if case.ok is None else ["met" if case.ok else "**missed**"]
    return ", ".join([*words, *(["**behind**"] if case.is_behind else [])])


def named(cases: list[Case]) -> list[tuple[str, Case]]:
    """Return cases with names that can stand alone: one that begins with dots goes on from the last that does not."""
    found, head = [], ""
    for case in cases:
        if case.name.startswith("..."):
            found.append((f"{head}: {case.name.removeprefix('...').strip()}", case))
        else:
            head = case.name.strip()
            found.append((head, case))
    return found


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return a table without its empty columns."""
    used = [column for column in range(len(head)) if column == 0 or any(row[column] for row in rows)]
    numeric = {column for column in used if head[column] in ("holdfast", "ratio") or column == 2}
    marks = ["--:" if column in numeric else "---" for column in used]
    lines = [[head[column] for column in used], marks, *([_cell(row[column]) for column in used] for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _day(about: dict[str, Any]) -> str:
    return str(about["when"])[:16].replace("T", " ")


def _load(about: dict[str, Any]) -> str:
    if "busy_percent" not in about:
        return f"{about['load_1m']}"
    return f"{about['load_1m']} before it, processors {number(about['busy_percent'])} % busy"
