"""Refusals: the first are reported in full, the rest in few words, whatever arrives and from wherever."""

import random

import pytest

from holdfast.wire.refusals import (
    ADDRESSES_MAX,
    QUIET_S,
    REASONS_MAX,
    SINGLES_MAX,
    SINGLES_PER_ADDRESS,
    SUMMARY_FIRST_S,
    SUMMARY_LAST_S,
    Refusals,
)


class Told:
    """Drives the machine as a listener does and keeps every report."""

    def __init__(self):
        self.refusals = Refusals()
        self.singles, self.summaries = [], []

    def refuse(self, address, now, reason="the shared secret is wrong"):
        self.checksum(now)
        if self.refusals.note(address, reason, now):
            self.singles.append((address, now))

    def checksum(self, now):
        when = self.refusals.wakeup()
        if when is not None and when <= now:
            self.summaries.append(self.refusals.take_summary(when))

    @property
    def lines(self):
        return len(self.singles) + len(self.summaries)

    @property
    def count(self):
        return len(self.singles) + sum(summary.count for summary in self.summaries)


def test_the_first_refusals_of_an_address_are_reported_and_the_rest_summed_up():
    told = Told()
    for number in range(4214):
        told.refuse("10.0.0.7", 1000 + 0.01 * number)
    assert len(told.singles) == SINGLES_PER_ADDRESS
    told.checksum(1000 + SUMMARY_FIRST_S + 1)

    [summary] = told.summaries
    assert summary.sentence == (
        "refused 4,211 more connections from 10.0.0.7 in the last 60 s; most often: the shared secret is wrong"
    )
    assert told.refusals.wakeup() is None


def test_many_addresses_are_summed_up_in_one_line():
    told = Told()
    for number in range(1000):
        told.refuse("10.0.0.7" if number % 2 else f"10.0.1.{number % 100}", 50.0)
    told.checksum(50 + SUMMARY_FIRST_S)

    [summary] = told.summaries
    assert len(told.singles) == SINGLES_MAX
    assert told.count == 1000
    assert ", most (497) from 10.0.0.7; most often: " in summary.sentence


@pytest.mark.parametrize("per_s", [0.5, 10, 20_000])
@pytest.mark.parametrize("addresses", [1, 250, 100_000])
def test_a_hundred_thousand_refusals_leave_fewer_than_two_hundred_lines(per_s, addresses):
    chance = random.Random(1)
    told = Told()
    for number in range(100_000):
        told.refuse(str(chance.randrange(addresses)), 1e6 + number / per_s, f"a frame of {number} bytes")
    told.checksum(1e6 + 100_000 / per_s + SUMMARY_LAST_S)

    assert told.lines < 200
    assert told.count == 100_000
    assert len(told.refusals._told) <= ADDRESSES_MAX


def test_what_is_remembered_between_two_summaries_is_bounded():
    told = Told()
    for number in range(10_000):
        told.refuse(str(number), 1.0, f"reason {number}")

    assert len(told.refusals._held) <= ADDRESSES_MAX + 1
    assert len(told.refusals._reasons) <= REASONS_MAX + 1


def test_an_address_that_was_quiet_for_long_is_reported_again():
    told = Told()
    for now in (0, 1, 2, 3, 3 + QUIET_S + 1):
        told.refuse("10.0.0.7", float(now))

    assert [now for _, now in told.singles] == [0, 1, 2, 4 + QUIET_S]


def test_summaries_come_ever_more_rarely_while_refusals_go_on():
    told = Told()
    for second in range(40_000):
        told.refuse("10.0.0.7", float(second))

    gaps = [summary.seconds for summary in told.summaries]
    assert gaps[:4] == [60, 120, 240, 480]
    assert max(gaps) == SUMMARY_LAST_S


def test_one_refusal_alone_is_summed_up_in_the_singular():
    told = Told()
    for _ in range(SINGLES_PER_ADDRESS + 1):
        told.refuse("10.0.0.7", 5.0)
    told.checksum(5 + SUMMARY_FIRST_S)

    assert told.summaries[0].sentence.startswith("refused 1 more connection from 10.0.0.7")
    assert told.refusals.take_summary(1e9) is None
