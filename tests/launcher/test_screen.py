"""The lines that a launch shows: each thing once, at once or after a moment of silence."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.agent import RunResult, WorkerState
from holdfast.agent.local import screen_name
from holdfast.agent.machine import Outcome
from holdfast.coordinator.messages import Cause
from holdfast.facts import Fact, facts
from holdfast.failures import Failure, Kind, Verdict
from holdfast.launcher import screen as screens
from holdfast.launcher.api import LaunchReport
from holdfast.launcher.screen import Screen

PATIENCE_S = 240


class Out(io.StringIO):
    """A stream that can be waited for."""

    def __init__(self, terminal: bool = False) -> None:
        super().__init__()
        self._terminal = terminal
        self._grown = threading.Condition()

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        with self._grown:
            self._grown.notify_all()
            return super().write(text)

    def wait_for(self, text: str) -> None:
        with self._grown:
            assert self._grown.wait_for(lambda: text in self.getvalue(), PATIENCE_S), self.getvalue()


@pytest.fixture
def out() -> Out:
    return Out()


@pytest.fixture
def screen(out: Out, monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    """A screen whose held lines come only with the next one."""
    monkeypatch.setattr(screens, "HOLD_S", 1000.0)
    monkeypatch.delenv("HOLDFAST_JOB_ID", raising=False)
    with Screen(out=out) as shown:
        yield shown


def tell(kind: str, sentence: str = "", **data: Any) -> None:
    facts.publish(Fact(kind, sentence or f"{kind} happened", data))


def failure(**fields: Any) -> Failure:
    known = {"kind": Kind.EXCEPTION, "message": "ValueError: no", "rank": 0, "local_rank": 0, "pid": 7, "exit_code": 1}
    return Failure(**{**known, "host": "here", "traceback": "Traceback\nValueError: no", **fields})


def failed(cause: Failure, **fields: Any) -> LaunchReport:
    sentence = Verdict(cause).sentence
    outcome = Outcome(
        succeeded=False,
        reason=f"{sentence}; not restarting: --max-restarts is 0",
        cause=Cause(sentence, detail=cause.to_json()),
    )
    known = {"verdict": Verdict(cause), "logs": "/logs/run", "is_ours": True}
    return LaunchReport(RunResult(WorkerState.FAILED), outcome, **{**known, **fields})


def succeeded() -> LaunchReport:
    return LaunchReport(RunResult(WorkerState.SUCCEEDED), Outcome(succeeded=True, reason="finished"))


# -- the end ----------------------------------------------------------------------------------------------------------


def test_a_failure_is_told_once_and_the_stop_that_it_caused_not_at_all(screen: Screen, out: Out) -> None:
    cause = failure(extra={"printed": True, "shown_by": screen_name()})
    tell("workers_stopping", f"stopping workers: {Verdict(cause).sentence}", reason=Verdict(cause).sentence)
    screen.conclude(failed(cause))

    first, *rest = out.getvalue().splitlines()
    assert first.startswith("holdfast: failed after ")
    assert first.endswith(" s: ValueError: no")
    assert rest == [
        "  who      rank 0 (local rank 0, pid 7) on here",
        "  exit     1",
        "  when     not restarting: --max-restarts is 0",
        "  logs     /logs/run",
    ]


def test_a_failure_of_another_node_comes_with_its_traceback(screen: Screen, out: Out) -> None:
    cause = failure(extra={"printed": True, "shown_by": "another:1"})
    screen.conclude(failed(cause, is_ours=False))

    assert out.getvalue().splitlines()[:3] == [
        "holdfast: the traceback of rank 0 (local rank 0, pid 7) on here:",
        "  Traceback",
        "  ValueError: no",
    ]


def test_in_a_job_the_node_that_failed_tells_the_traceback_and_the_others_point_to_it(
    screen: Screen, out: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_JOB_ID", "local://holdfast/job")
    screen.conclude(failed(failure(node=3), is_ours=False))

    assert "Traceback" not in out.getvalue()
    assert "  more     the traceback is in the output of node 3 (here)\n" in out.getvalue()


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ([0], "2 workers, 0 restarts\n"),
        ([0, 1], "2 workers, 1 restart\n"),
        ([0, 0, 1], "2 workers, 1 restart, 3 rounds\n"),
    ],
)
def test_success_says_how_long_it_took_and_what_it_cost(screen: Screen, out: Out, rounds: list[int], said: str) -> None:
    for used in rounds:
        tell("workers_started", world_size=2, restarts_used=used)
    screen.conclude(succeeded())

    last = out.getvalue().splitlines(keepends=True)[-1]
    assert last.startswith("holdfast: finished in ")
    assert last.endswith(f" s: {said}")


def test_replaced_workers_count_as_restarts(screen: Screen, out: Out) -> None:
    tell("workers_started", world_size=2, restarts_used=0)
    tell("workers_replaced")
    screen.conclude(succeeded())

    assert out.getvalue().endswith(": 2 workers, 1 restart\n")


def test_workers_that_outlive_a_round_are_told_and_counted(screen: Screen, out: Out) -> None:
    tell("workers_started", world_size=3, restarts_used=0)
    tell("round_outlived", "round 1 is over: n3 was lost: silent for 5 s; the workers here keep running", round=1)
    tell("workers_moved", "round 2: node 0 of 2, rank 0 of 2; the workers kept running", world_size=2)
    screen.conclude(succeeded())

    assert "holdfast: round 1 is over: n3 was lost: silent for 5 s; the workers here keep running\n" in out.getvalue()
    assert out.getvalue().endswith(": 2 workers, 0 restarts\n")


# -- lines that wait --------------------------------------------------------------------------------------------------


def test_a_stop_is_told_before_what_comes_next(screen: Screen, out: Out) -> None:
    tell("workers_stopping", "stopping workers: rank 0: no", reason="rank 0: no")
    assert out.getvalue() == ""
    tell("workers_started", "round 2")

    assert out.getvalue() == "holdfast: stopping workers: rank 0: no\nholdfast: round 2\n"


def test_a_stop_that_takes_long_is_told_while_it_lasts(out: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "HOLD_S", 0.01)
    with Screen(out=out):
        tell("workers_stopping", "stopping workers: rank 0: no", reason="rank 0: no")
        out.wait_for("holdfast: stopping workers: rank 0: no\n")

    assert out.getvalue().count("stopping") == 1


def test_a_stop_that_a_person_asked_for_is_told_at_once(screen: Screen, out: Out) -> None:
    tell("workers_stopping", "stopping workers: received SIGINT", reason="received SIGINT")

    assert out.getvalue() == "holdfast: stopping workers: received SIGINT\n"


def test_a_line_that_waits_is_not_lost_when_the_launch_ends(out: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "HOLD_S", 1000.0)
    with Screen(out=out):
        tell("workers_stopping", "stopping workers: b joined", reason="b joined")

    assert out.getvalue() == "holdfast: stopping workers: b joined\n"


def test_imports_that_take_long_are_told_once(out: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "HOLD_S", 0.01)
    with Screen(out=out):
        tell("template_importing", "importing torch")
        out.wait_for("holdfast: importing torch\n")
        tell("template_ready")
        tell("workers_started", "round 1")

    assert out.getvalue() == "holdfast: importing torch\nholdfast: round 1\n"


def test_imports_that_take_a_moment_are_not_worth_a_line(screen: Screen, out: Out) -> None:
    tell("template_importing", "importing torch")
    tell("template_ready")
    tell("workers_started", "round 1")

    assert out.getvalue() == "holdfast: round 1\n"


def test_on_a_terminal_imports_are_told_at_once_and_written_over() -> None:
    out = Out(terminal=True)
    with Screen(out=out):
        tell("template_importing", "importing torch")
        assert out.getvalue() == "\r\x1b[K\x1b[2mholdfast: importing torch …\x1b[0m"
        tell("template_ready")

    assert out.getvalue().endswith("\r\x1b[K")


def test_a_quiet_launch_says_nothing_about_imports_and_stops(out: Out) -> None:
    with Screen(out=out, quiet=True) as shown:
        tell("template_importing", "importing torch")
        tell("workers_stopping", "stopping workers: no", reason="no")
        shown.conclude(succeeded())

    assert out.getvalue() == ""
