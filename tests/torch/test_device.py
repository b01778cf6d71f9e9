"""Waiting for a device: when the host looks, and what ends the wait; the device is pretended."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from holdfast.errors import RoundOverError  # noqa: E402
from holdfast.torch import device  # noqa: E402
from holdfast.torch.device import LOOK_S_MAX, LOOK_S_MIN, Patience  # noqa: E402

pytestmark = pytest.mark.torch


class Clock:
    """Time that passes only while somebody sleeps; a look takes a microsecond."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


class Event:
    """An event that the device comes to at a given time."""

    def __init__(self, clock: Clock, after_s: float) -> None:
        self._clock, self.at = clock, clock.now + after_s

    def query(self) -> bool:
        return self._clock.now >= self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(device, "time", clock)
    return clock


def test_the_host_learns_when_to_look(clock: Clock) -> None:
    patience = Patience(lambda: None, 60.0)
    late, looks = [], []
    for _ in range(20):
        clock.sleeps.clear()
        event = Event(clock, 0.02)
        patience.wait(event)
        late.append(clock.now - event.at)
        looks.append(sum(seconds > 0 for seconds in clock.sleeps))

    assert late[0] > 100e-6
    assert max(late[1:]) < 10e-6
    assert max(looks) < 400, "it slept between looks"


def test_short_waits_are_met_though_long_ones_are_usual(clock: Clock) -> None:
    patience = Patience(lambda: None, 60.0)
    patience.wait(Event(clock, 0.1))
    event = Event(clock, 0.001)

    patience.wait(event)

    assert clock.now - event.at <= LOOK_S_MIN + 2e-6


def test_after_a_long_stall_no_processor_is_kept_busy(clock: Clock) -> None:
    patience = Patience(lambda: None, 600.0)
    patience.wait(Event(clock, 100.0))
    clock.sleeps.clear()

    patience.wait(Event(clock, 110.0))

    busy = [seconds for seconds in clock.sleeps if seconds < LOOK_S_MAX]
    assert len(busy) < 0.05 * len(clock.sleeps)


def test_a_round_that_is_over_ends_the_wait(clock: Clock) -> None:
    over_at = clock.now + 0.5
    patience = Patience(lambda: "a peer is gone" if clock.now >= over_at else None, 60.0)

    with pytest.raises(RoundOverError, match="a peer is gone"):
        patience.wait(Event(clock, 1000.0))

    assert clock.now - over_at <= LOOK_S_MAX + 2e-6


def test_a_device_that_never_ends_is_not_waited_for_for_ever(clock: Clock) -> None:
    with pytest.raises(RoundOverError, match="within 2 s"):
        Patience(lambda: None, 2.0).wait(Event(clock, 1000.0))
