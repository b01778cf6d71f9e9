"""What every bench module shares: a measured case, a table of them, and what they were measured on.

A bench module has one function, `run(full: bool) -> Results`; `python -m bench` finds it by that. A case where we are
behind stands in the table like the others, and so does a part that failed: what was measured before it is kept.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

#: Open files that a bench may use for its connections.
FILES_WANTED = 20_000


@dataclass(frozen=True, slots=True)
class Case:
    """One thing measured. `ok` is None where nothing was promised; `ratio` is how many times better ours is."""

    name: str
    ours: float | None
    unit: str
    theirs: float | None = None
    target: str = ""
    ok: bool | None = None
    ratio: float | None = None
    note: str = ""

    @classmethod
    def seen(cls, name: str, ours: float | None, unit: str, note: str = "") -> Case:
        """Return a case without a target."""
        return cls(name, ours, unit, note=note)

    @classmethod
    def missing(cls, what: str, why: str) -> Case:
        """Return the row of a case that cannot be measured on this machine."""
        return cls(what, None, "", note=f"left out: {why}")

    @classmethod
    def broken(cls, what: str, why: str) -> Case:
        """Return the row of a part that failed, which counts as a miss."""
        return cls(what, None, "", target="finishes", ok=False, note=why)

    @classmethod
    def at_most(cls, name: str, ours: float | None, unit: str, limit: float, note: str = "") -> Case:
        """Return a case whose value must not be over a limit; no value at all is a miss."""
        ok = ours is not None and ours <= limit
        return cls(name, ours, unit, target=f"≤ {number(limit)} {unit}".rstrip(), ok=ok, note=note)

    @classmethod
    def beside(
        cls,
        name: str,
        ours: float,
        theirs: float | None,
        unit: str,
        *,
        less_is_better: bool,
        ratio_min: float | None = None,
        note: str = "",
    ) -> Case:
        """Return a case of ours beside theirs; `ratio_min` is how many times better ours must be."""
        ratio = None
        if theirs is not None:
            ratio = theirs / ours if less_is_better else ours / theirs
        return cls(
            name,
            ours,
            unit,
            theirs,
            "" if ratio_min is None else f"≥ {number(ratio_min)} x",
            None if ratio_min is None or ratio is None else ratio >= ratio_min,
            ratio,
            note,
        )

    @property
    def is_missing(self) -> bool:
        """Whether it was left out."""
        return self.ours is None and self.theirs is None and self.ok is None

    @property
    def is_behind(self) -> bool:
        """Whether theirs is better."""
        return self.ratio is not None and self.ratio < 1


@dataclass(frozen=True, slots=True)
class Results:
    """What one bench module measured."""

    title: str
    cases: list[Case]
    #: What `theirs` is, where anything is compared.
    rival: str = ""
    about: dict[str, Any] = field(default_factory=lambda: describe_machine())
    #: What a picture needs beyond the cases.
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether no target was missed."""
        return all(case.ok is not False for case in self.cases)

    def as_data(self) -> dict[str, Any]:
        """Return all of it for a JSON file."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Results:
        """Return what `as_data` was made of."""
        return cls(**{**data, "cases": [Case(**case) for case in data["cases"]]})

    def __str__(self) -> str:
        return "\n".join([self.title, *_about_lines(self.about), "", *_table(self.cases, self.rival)])


def attempt(what: str, part: Callable[[], Iterable[Case]]) -> list[Case]:
    """Return the cases of one part of a bench; if it fails, those it came to, and a row that says why it failed."""
    cases: list[Case] = []
    try:
        for case in part():
            cases.append(case)  # noqa: PERF402 - what was measured before a failure is kept
    except Exception as error:  # noqa: BLE001 - another package may fail in any way
        traceback.print_exc()
        cases.append(Case.broken(what, first_line(error)))
    return cases


def first_line(error: BaseException) -> str:
    """Say in one line what went wrong."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def median(values: Iterable[float]) -> float:
    """Return the median of what was measured."""
    return statistics.median(values)


def spread(values: Sequence[float], unit: str) -> str:
    """Say how far repeats lie apart."""
    return f"{len(values)} runs, {number(min(values))} to {number(max(values))} {unit}"


def save(path: Path, results: dict[str, Results]) -> None:
    """Write results by module; those of modules that were not run this time stay as they are."""
    known = {name: each.as_data() for name, each in {**load(path), **results}.items()}
    path.write_text(json.dumps(dict(sorted(known.items())), indent=2, ensure_ascii=False) + "\n")


def load(path: Path) -> dict[str, Results]:
    """Return the results that were saved, by module; none where there is no such file."""
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return {name: Results.from_data(data) for name, data in known.items()}


def raise_file_limit() -> int:
    """Allow this process and its children as many open files as the host lets us have; returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def describe_machine() -> dict[str, Any]:
    """Say what was measured on: the numbers mean little without it."""
    return {
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "load_1m": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("holdfast", "uvloop", "msgspec", "torch")},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _about_lines(about: dict[str, Any]) -> list[str]:
    return [
        f"  {about['cores']} cores of {about['cpu']}, load {about['load_1m']}, {about['system']}, {about['when']}",
        f"  Python {about['python']}, "
        + ", ".join(f"{name} {about[name]}" for name in ("holdfast", "uvloop", "msgspec", "torch")),
    ]


def _table(cases: list[Case], rival: str) -> list[str]:
    head = ["", "ours", rival or "theirs", "ratio", "target", "", "note"]
    rows = [
        [
            case.name,
            value_text(case.ours, case.unit),
            value_text(case.theirs, case.unit),
            "" if case.ratio is None else f"{number(case.ratio)} x",
            case.target,
            {True: "pass", False: "MISS", None: ""}[case.ok],
            case.note,
        ]
        for case in cases
    ]
    table = [head, *rows]
    # A column without a single entry says nothing.
    used = [column for column in range(len(head)) if any(row[column] for row in rows)]
    widths = {column: max(len(row[column]) for row in table) for column in used}
    lines = []
    for row in table:
        cells = [row[c].rjust(widths[c]) if 1 <= c <= 3 else row[c].ljust(widths[c]) for c in used]
        lines.append("  ".join(cells).rstrip())
    return [lines[0], "-" * max(len(line) for line in lines), *lines[1:]]


def value_text(value: float | None, unit: str) -> str:
    """Write a value with its unit; nothing where there is none."""
    return "" if value is None else f"{number(value)} {unit}".rstrip()


def number(value: float) -> str:
    """Write a number as a person would, with three digits that count."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
