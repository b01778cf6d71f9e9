"""What every metric sink must do. Give it a way to make one, and it checks the whole interface.

    @pytest.mark.parametrize("case", metric_cases(), ids=lambda case: case.__name__)
    def test_contract(case):
        case(make_my_handler, received=values_that_have_arrived)

`make()` returns a new `MetricHandler`. `received()` returns the values that its destination has got of the metric
`loss` so far, in order; leave it out where they cannot be read back. A destination that keeps only the last value of a
metric, as Prometheus does, returns that one. A case fails with an `AssertionError`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.metrics.api import MetricData, MetricHandler, MetricStream
from holdfast.testing.cases import Background, Cases

Make = Callable[[], MetricHandler]
Received = Callable[[], list[float]]
Case = Callable[..., None]

THREADS, VALUES = 4, 25

_case: Cases[Case] = Cases()


def metric_cases() -> list[Case]:
    """Return every case, in a fixed order."""
    return _case.all()


def _value(value: float, name: str = "loss", group: str = "my_app") -> MetricData:
    return MetricData(1574213883.25, group, name, value)


def _end(handler: MetricHandler) -> None:
    """Do what Holdfast does at the end of a launch."""
    for name in ("flush", "close"):
        if (method := getattr(handler, name, None)) is not None:
            method()


def _check(received: Received | None, expected: list[float]) -> None:
    if received is not None:
        found = received()
        assert found and found[-1] == expected[-1], f"expected {expected}, got {found}"  # noqa: PT018 - one sentence
        assert len(found) == 1 or found == expected, f"expected {expected}, got {found}"


@_case
def values_arrive(make: Make, received: Received | None = None) -> None:
    """Whole and broken numbers, of any sign and size, arrive in order."""
    handler = make()
    values = [0, 1, 0.25, -3.5, 1e-9, 1e12]
    for value in values:
        handler.emit(_value(value))
    _end(handler)

    _check(received, [float(value) for value in values])


@_case
def a_stream_reaches_it(make: Make, received: Received | None = None) -> None:
    """A program's values come through a stream."""
    handler = make()
    MetricStream("my_app", handler).add_value("loss", 0.5)
    _end(handler)

    _check(received, [0.5])


@_case
def odd_names_do_no_harm(make: Make, received: Received | None = None) -> None:
    """A name that the destination has no word for is changed or refused; the next value arrives."""
    handler = make()
    for name, group in (("größe", "my app"), ("a:b|c#d", "x\ny"), ("", ""), ("n" * 300, "g" * 300)):
        _emit_or_refuse(handler, _value(1, name, group))
    handler.emit(_value(0.75))
    _end(handler)

    if received is not None:
        assert received()[-1] == 0.75


@_case
def numbers_that_are_not_finite_do_no_harm(make: Make, received: Received | None = None) -> None:
    """NaN and infinities are taken or refused with an error of Holdfast's or `ValueError`; the next value arrives."""
    handler = make()
    for value in (math.nan, math.inf, -math.inf):
        _emit_or_refuse(handler, _value(value, "strange"))
    handler.emit(_value(2.0))
    _end(handler)

    if received is not None:
        assert received()[-1] == 2.0


@_case
def several_threads_may_use_it(make: Make, received: Received | None = None) -> None:
    """Values that threads add at the same time all arrive whole."""
    handler = make()
    together = threading.Barrier(THREADS)

    def emit() -> None:
        together.wait()
        for number in range(VALUES):
            handler.emit(_value(number))

    for each in [Background(emit) for _ in range(THREADS)]:
        each.result()
    handler.emit(_value(VALUES))
    _end(handler)

    if received is not None:
        found = received()
        whole = [*sorted([*range(VALUES)] * THREADS), VALUES]
        assert found == [VALUES] or sorted(found) == whole, f"of {len(whole)} values {len(found)} arrived"


@_case
def a_flush_may_come_at_any_time(make: Make, received: Received | None = None) -> None:
    """Before the first value, twice, and between values."""
    handler = make()
    flush = getattr(handler, "flush", None) or (lambda: None)
    flush()
    flush()
    handler.emit(_value(1))
    flush()
    handler.emit(_value(2))
    _end(handler)

    _check(received, [1.0, 2.0])


@_case
def nothing_runs_on_after_it_was_closed(make: Make, received: Received | None = None) -> None:
    """No thread is left behind, also where nothing was ever sent."""
    del received
    before = set(threading.enumerate())
    _end(make())
    used = make()
    used.emit(_value(1))
    _end(used)

    assert [each for each in threading.enumerate() if each not in before and not each.daemon] == []


def _emit_or_refuse(handler: MetricHandler, data: Any) -> None:
    try:
        handler.emit(data)
    except (HoldfastError, ValueError):
        pass  # it says so, which is fine
