"""The verdict: the first true failure wins over its victims."""

import json

import pytest

from holdfast.errors import PeerError
from holdfast.failures import Failure, Kind, Verdict, render, root_cause
from holdfast.failures.report import Around


def _failure(kind, rank=0, **more):
    return Failure(kind=kind, message=more.pop("message", kind.value), rank=rank, local_rank=rank, **more)


def test_the_first_true_failure_wins_over_victims_that_came_earlier():
    victim, cause, late = _failure(Kind.VICTIM, 0), _failure(Kind.SIGNAL, 1), _failure(Kind.EXCEPTION, 2)

    verdict = root_cause([victim, cause, late])

    assert verdict.cause is cause
    assert verdict.others == (victim, late)


def test_a_failure_that_ends_the_job_is_why_there_is_no_restart():
    crash, lost = _failure(Kind.SIGNAL, 0), _failure(Kind.EXCEPTION, 1, ends_job=True)

    assert root_cause([crash, lost]).cause is lost
    assert Failure.from_json(lost.to_json()).ends_job


def test_without_a_true_failure_a_victim_wins_over_the_stopped():
    stopped, victim = _failure(Kind.STOPPED, 0), _failure(Kind.VICTIM, 1)

    assert root_cause([stopped, victim]).cause is victim
    assert root_cause([stopped]).cause is stopped


def test_order_is_that_of_arrival_not_of_clocks():
    first = _failure(Kind.EXCEPTION, 0, timestamp=2000.0)
    second = _failure(Kind.EXCEPTION, 1, timestamp=1000.0)

    assert root_cause([first, second]).cause is first


@pytest.mark.parametrize(("code", "expected"), [(7, 7), (1, 1), (-9, 137), (-15, 143), (None, 1), (0, 1)])
def test_the_launcher_exits_with_the_causes_code(code, expected):
    assert Verdict(_failure(Kind.EXIT, exit_code=code)).exit_code == expected


def test_a_verdict_survives_json():
    verdict = root_cause(
        [
            _failure(Kind.VICTIM, 3, log_lines=("a", "b")),
            _failure(Kind.OUT_OF_MEMORY, 1, exit_code=-9, extra={"limit": 1}, log_files=("/x",)),
        ]
    )

    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


@pytest.mark.parametrize(
    "data",
    [{}, {"version": 99, "kind": "exit"}, {"version": 1, "kind": "nonsense", "message": ""}, {"version": 1}],
)
def test_what_is_no_failure_record_is_refused(data):
    with pytest.raises(PeerError):
        Failure.from_json(data)


def test_fields_of_a_later_minor_layout_are_left_out():
    data = {**_failure(Kind.EXIT).to_json(), "mood": "gloomy"}

    assert Failure.from_json(data) == _failure(Kind.EXIT)


TRACEBACK = "Traceback (most recent call last):\n  File train.py\nValueError: bad"


def _value_error(**fields):
    known = {
        "kind": Kind.EXCEPTION,
        "message": "ValueError: bad\nsecond line",
        "host": "node7",
        "local_rank": 1,
        "rank": 3,
        "pid": 4711,
        "exit_code": 1,
        "traceback": TRACEBACK,
        "round": 2,
        "attempt": 1,
    }
    return Failure(**{**known, **fields})


def test_the_report_gives_the_evidence_then_the_reason_then_worker_time_and_place():
    cause = _value_error(
        log_lines=("epoch 1", *TRACEBACK.splitlines()), log_files=("/logs/1/stdout.log", "/logs/1/stderr.log")
    )
    others = (_failure(Kind.VICTIM, 0, host="node1"), _failure(Kind.STOPPED, 2))

    text = render(Verdict(cause, others), Around(over="not restarting: --max-restarts is 0", logs="/logs"))

    assert text == (
        "the last lines of rank 3 (local rank 1, pid 4711) on node7:\n"
        "  | epoch 1\n"
        "the traceback of rank 3 (local rank 1, pid 4711) on node7:\n"
        "  Traceback (most recent call last):\n"
        "    File train.py\n"
        "  ValueError: bad\n"
        "ValueError: bad\n"
        "  second line\n"
        "  who      rank 3 (local rank 1, pid 4711) on node7\n"
        "  exit     1\n"
        "  when     round 2, attempt 1; not restarting: --max-restarts is 0\n"
        "  also     rank 0 (local rank 0) on node1: victim\n"
        "  logs     /logs/1\n"
    )


@pytest.mark.parametrize(
    ("fields", "repeated"),
    [
        ({"extra": {"printed": True}}, False),  # the worker says that Python printed it
        ({"log_lines": ("epoch 1", *TRACEBACK.splitlines())}, False),  # it is seen in what the worker wrote
        ({"log_lines": ("epoch 1",)}, True),  # written to a file of the program's own, or by a hook of its own
        ({}, True),
    ],
)
def test_a_traceback_that_is_on_the_screen_is_not_repeated(fields, repeated):
    verdict = Verdict(_value_error(**fields))

    assert ("Traceback" in render(verdict, Around(shown=True))) is repeated
    assert "Traceback" in render(verdict, Around(shown=False))
    assert "epoch 1" not in render(verdict, Around(shown=True))


def test_ranks_that_failed_with_the_same_error_stand_together():
    others = (_value_error(rank=2, local_rank=0, pid=4710), _failure(Kind.EXIT, 5, host="node7"))

    text = render(Verdict(_value_error(), others), Around(shown=True))

    assert "  who      ranks 2-3 on node7; the first was rank 3 (local rank 1, pid 4711)\n" in text
    assert "  also     rank 5 (local rank 5) on node7: exit\n" in text
    assert text.count("rank 2") == 0


def test_a_traceback_that_another_report_has_is_named_and_not_repeated():
    text = render(Verdict(_value_error()), Around(told_by="the traceback is in the output of node 0 (node7)"))

    assert "Traceback" not in text
    assert "  more     the traceback is in the output of node 0 (node7)\n" in text


def test_many_others_are_counted():
    others = tuple(_failure(Kind.EXIT, rank, host="node1") for rank in range(20, 40))

    text = render(Verdict(_value_error(), others))

    assert text.count(" on node1") == 8
    assert "           and 12 more\n" in text


def test_a_lost_node_is_reported_without_ranks():
    verdict = Verdict(Failure(kind=Kind.LOST_NODE, message="its lease ran out", host="node3"))

    assert "who      node node3" in render(verdict)
    assert verdict.sentence == "node node3: its lease ran out"


def test_signal_names_are_those_of_people():
    assert _failure(Kind.SIGNAL, exit_code=-11).signal_name == "SIGSEGV"
    assert _failure(Kind.SIGNAL, exit_code=-40).signal_name == "SIG40"
    assert _failure(Kind.EXIT, exit_code=3).signal_name == ""
