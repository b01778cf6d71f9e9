"""The verdict: the first true failure wins over its victims."""

import json

import pytest

from holdfast.errors import PeerError
from holdfast.failures import Failure, Kind, Verdict, render, root_cause


def _failure(kind, rank=0, **more):
    return Failure(kind=kind, message=more.pop("message", kind.value), rank=rank, local_rank=rank, **more)


def test_the_first_true_failure_wins_over_victims_that_came_earlier():
    victim, cause, late = _failure(Kind.VICTIM, 0), _failure(Kind.SIGNAL, 1), _failure(Kind.EXCEPTION, 2)

    verdict = root_cause([victim, cause, late])

    assert verdict.cause is cause
    assert verdict.others == (victim, late)


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


def test_the_report_says_who_what_and_where():
    cause = Failure(
        kind=Kind.EXCEPTION,
        message="ValueError: bad\nsecond line",
        host="node7",
        local_rank=1,
        rank=3,
        pid=4711,
        exit_code=1,
        traceback="Traceback (most recent call last):\n  File train.py\nValueError: bad",
        log_lines=("epoch 1", "Traceback (most recent call last):", "  File train.py", "ValueError: bad"),
        log_files=("/logs/1/stdout.log", "/logs/1/stderr.log"),
        round=2,
        attempt=1,
    )
    others = (_failure(Kind.VICTIM, 0, host="node1"), _failure(Kind.STOPPED, 2))

    text = render(Verdict(cause, others))

    assert text == (
        "The job failed: an uncaught exception.\n"
        "  who      rank 3 (local rank 1, pid 4711) on node7\n"
        "  what     ValueError: bad\n"
        "           second line\n"
        "  exit     1; the launcher exits with 1\n"
        "  when     round 2, attempt 1\n"
        "  logs     /logs/1/stdout.log\n"
        "           /logs/1/stderr.log\n"
        "\n"
        "  Traceback (most recent call last):\n"
        "    File train.py\n"
        "  ValueError: bad\n"
        "\n"
        "  its last lines:\n"
        "  | epoch 1\n"
        "\n"
        "  others that fell:\n"
        "  - rank 0 (local rank 0) on node1: victim\n"
        "  1 more was stopped because of this.\n"
    )


def test_a_lost_node_is_reported_without_ranks():
    verdict = Verdict(Failure(kind=Kind.LOST_NODE, message="its lease ran out", host="node3"))

    assert "who      node node3" in render(verdict)
    assert verdict.sentence == "node node3: its lease ran out"


def test_signal_names_are_those_of_people():
    assert _failure(Kind.SIGNAL, exit_code=-11).signal_name == "SIGSEGV"
    assert _failure(Kind.SIGNAL, exit_code=-40).signal_name == "SIG40"
    assert _failure(Kind.EXIT, exit_code=3).signal_name == ""
