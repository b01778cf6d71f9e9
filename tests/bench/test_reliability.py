"""The reliability table: what is read from steps, and the page that is made of the trials."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from bench._reliability_page import PAGE, render
from bench._steps import BATCH, Step, StepBook, are_stepping, both_stepped, longest_pause_s, steps_twice
from bench.reliability import BY_NAME, CASES, RESULTS, Book, main

from bench import _hosts

TABLE = [(case.name, case.title, case.ways) for case in CASES]
ROOT = Path(__file__).parents[2]


def steps(*times: float, first: int = 0, world: int = 2, pid: int = 1) -> list[Step]:
    return [Step(at, pid, number, world, (number + 1) * BATCH, 1) for number, at in enumerate(times, first)]


def test_the_page_is_what_the_trials_give() -> None:
    if not RESULTS.exists():
        pytest.skip("no trial has been noted yet")

    assert PAGE.read_text() == render(json.loads(RESULTS.read_text()), TABLE), (
        "run `python -m bench.reliability --report`"
    )


def test_a_pause_is_the_longest_of_all_hosts_and_begins_with_the_last_step_before_the_fault() -> None:
    made = {1: steps(0.0, 1.0, 1.1, 1.2, 1.3), 2: steps(0.9, 1.0, 3.0, 3.1)}

    assert longest_pause_s(made, [1, 2], since=1.05, until=4.0) == 2.0
    assert round(longest_pause_s(made, [1], since=1.05, until=4.0), 6) == 0.1


def test_steps_that_were_done_again_are_counted_once_and_only_after_the_fault() -> None:
    made = {1: [*steps(1.0, 1.1, 1.2, 1.3), *steps(5.0, 5.1, 5.2, first=2, pid=2)], 2: steps(1.0, 1.1)}

    assert steps_twice(made, since=2.0) == 2
    assert steps_twice(made, since=6.0) == 0


def test_two_halves_that_step_side_by_side_are_seen() -> None:
    made = {1: steps(1, 2, 3, 4), 2: steps(1, 2, 3, 4), 3: steps(1, 2), 4: steps(1)}

    assert both_stepped(made, ([1, 2], [3, 4]), 1.5, 9.0) == 1
    assert both_stepped(made, ([1, 2], [3, 4]), 2.5, 9.0) == 0


def test_samples_that_were_missed_or_used_twice_are_seen() -> None:
    assert Step(1.0, 1, 4, 2, 5 * BATCH, 1).samples_off == 0
    assert Step(1.0, 1, 4, 2, 4 * BATCH, 1).samples_off == BATCH
    assert Step(1.0, 1, 4, 2, 5 * BATCH, 3).samples_off == 2


def test_hosts_step_when_all_have_made_steps_of_the_right_size_lately(tmp_path: Path) -> None:
    book = StepBook(tmp_path)
    lines = "".join(f"{10 + n / 10:.4f} 7 {n} 2 {(n + 1) * BATCH} 1\n" for n in range(10))
    (tmp_path / "1.steps").write_text(lines + "11.0 7 1")
    book.update()

    assert len(book.steps[1]) == 10, "half a line is left for later"
    assert are_stepping(book.steps, [1], 11.0, 2)
    assert not are_stepping(book.steps, [1], 11.0, 3)
    assert not are_stepping(book.steps, [1, 2], 11.0, None)
    assert not are_stepping(book.steps, [1], 20.0, None)
    assert re.search(rf"^SAMPLES, BATCH, .* = \d+, {BATCH},", (ROOT / "bench/scripts/reliable.py").read_text(), re.M)


def trial(case: str, **more: Any) -> dict[str, Any]:
    whole = {"case": case, "way": "plain", "recovered": True, "pause_s": 1.5, "steps_lost": 3, "samples_off": 0}
    return {**whole, "split_steps": 0, "note": "", "orphans": 0, "load": 9.0, "when": "2026", **more}


MACHINE = {"cores": 2, "cpu": "a CPU", "python": "3", "torch": "2"}


def test_the_page_says_what_was_not_survived_and_how_busy_the_machine_was() -> None:
    lost = trial("coordinator-kill", recovered=False, pause_s=None, note="no host steps", samples_off=24, orphans=1)
    page = render(
        {"machine": MACHINE, "trials": [trial("worker-kill"), trial("worker-kill", pause_s=2.5), lost]}, TABLE
    )

    assert "| worker SIGKILL | plain | 2 | 2 | 2.00 s | 2.50 s | 3 | 0 | 0 | 0 |" in page
    assert "SIGKILL | plain | 1 | **0** | – | – | 3 | **24** | 0 | **1** |" in page
    assert "- node of the embedded coordinator SIGKILL, plain: no host steps" in page
    assert "times are upper bounds" in page
    assert "upper bounds" not in render({"machine": MACHINE, "trials": [trial("worker-kill", load=0.5)]}, TABLE)


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    book = Book(tmp_path / "results.json")
    book.add(BY_NAME["node-kill"], "plain", {"recovered": True})
    book.add(BY_NAME["worker-kill"], "plain", {"recovered": True})
    again = Book(tmp_path / "results.json")

    assert [each["case"] for each in again.data["trials"]] == ["worker-kill", "node-kill"]
    assert (again.count("node-kill", "plain"), again.count("node-kill", "in process")) == (1, 0)
    again.forget("node-kill", "plain")
    assert again.count("node-kill", "plain") == 0


def test_without_root_it_is_skipped_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_hosts.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["bench.reliability", "--results", str(tmp_path / "none.json")])

    assert main() == 0
    assert capsys.readouterr().out == "bench.reliability: skipped: needs root, for network namespaces\n"
    assert not (tmp_path / "none.json").exists()
