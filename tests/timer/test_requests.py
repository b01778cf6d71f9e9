"""Requests through a pipe: what is whole arrives, whatever stands around it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.timer.requests import REQUEST_BYTES_MAX, FileTimerRequest, RequestReader, TimerRequest, parse

GOOD = FileTimerRequest(4711, "train.py#12", 1767225600.5, 9)


def line(request: FileTimerRequest = GOOD) -> bytes:
    return request.to_json().encode() + b"\n"


def changed(**fields: object) -> bytes:
    data = {**json.loads(GOOD.to_json()), **fields}
    return json.dumps({name: value for name, value in data.items() if value != "missing"}).encode()


def test_the_format_is_torchelastics() -> None:
    assert GOOD.to_json() == (
        '{"version": 1, "pid": 4711, "scope_id": "train.py#12", "expiration_time": 1767225600.5, "signal": 9}'
    )
    assert parse(line()) == GOOD


def test_requests_are_compared_by_what_they_say() -> None:
    assert FileTimerRequest(1, "a", 2.0, 9) == FileTimerRequest(1, "a", 2.0, 9) != FileTimerRequest(1, "a", 2.0, 15)
    assert TimerRequest(1, "a", 2.0) == TimerRequest(1, "a", 2.0) != TimerRequest(2, "a", 2.0)


@pytest.mark.parametrize(
    "piece",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 1}',
        changed(version=0),
        changed(version="1"),
        changed(version=True),
        changed(pid="4711"),
        changed(pid=True),
        changed(pid=0),
        changed(pid=1),
        changed(pid=-1),
        changed(pid=2**40),
        changed(pid=4711.5),
        changed(pid=None),
        changed(pid="missing"),
        changed(scope_id=7),
        changed(scope_id=None),
        changed(scope_id="missing"),
        changed(expiration_time="soon"),
        changed(expiration_time=True),
        changed(expiration_time=float("nan")),
        changed(expiration_time=float("inf")),
        changed(expiration_time=10**400),
        changed(expiration_time="missing"),
        changed(signal="SIGKILL"),
        changed(signal=65),
        changed(signal=9.0),
        changed(signal=True),
        changed(signal="missing"),
        changed(after="soon"),
        changed(after=float("inf")),
        b'{"version": ' + b"[" * 4000,
        b'{"version": ' + b"9" * 4000 + b"}",
        b'{"version": 1, "pid": \xff\xfe}',
    ],
)
def test_what_is_not_exactly_as_it_should_be_is_refused(piece: bytes) -> None:
    assert parse(piece) is None


@pytest.mark.parametrize(
    "before",
    [b"garbage", b'{"version": 1, "pid"', b"x" * 100_000, b"\0\0\0", line()[:-1], b'{"version": {"version": '],
)
def test_a_whole_request_is_read_behind_any_nonsense(before: bytes) -> None:
    reader = RequestReader()

    assert reader.feed(before + line())[-1] == GOOD


def test_what_cannot_be_read_is_counted() -> None:
    reader = RequestReader()
    reader.feed(b"garbage\n\n" + changed(pid=0) + b"\n" + line())

    assert reader.refused == 2


def test_memory_is_bounded_whatever_is_written() -> None:
    reader = RequestReader()
    for _ in range(100):
        reader.feed(b"x" * 65536)

    assert len(reader._rest) <= REQUEST_BYTES_MAX


@given(st.lists(st.binary(max_size=300)), st.lists(st.integers(1, 200)))
def test_garbage_lines_never_raise_and_never_cost_a_whole_request(garbage: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(piece + b"\n" + line() for piece in garbage)
    reader = RequestReader()
    found = []
    for size in [*cuts, len(stream)]:
        found += reader.feed(stream[:size])
        stream = stream[size:]

    assert found.count(GOOD) == len(garbage)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(), lambda x: st.lists(x), max_leaves=5
    )
)
def test_any_value_in_any_field_is_taken_or_refused_never_raised(value: object) -> None:
    for name in ("version", "pid", "scope_id", "expiration_time", "signal", "after"):
        parse(changed(**{name: value}))
