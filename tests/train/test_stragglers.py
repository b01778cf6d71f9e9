"""Who is slow, from the times that all ranks tell each other."""

from __future__ import annotations

from holdfast.train.stragglers import STEPS_MIN, Stragglers


def test_a_rank_that_is_slow_for_long_is_named_once() -> None:
    watch = Stragglers()
    told = [watch.observe([0.02, 0.02, 0.05]) for _ in range(100)]

    news = [slow for slow in told if slow is not None]
    assert [slow.rank for slow in news] == [2]
    assert news[0].sentence == "rank 2 keeps the others waiting: 50 ms a step, 2.5 times the median"
    assert told.index(news[0]) == STEPS_MIN - 1


def test_one_slow_step_names_no_rank() -> None:
    watch = Stragglers()
    for _ in range(50):
        watch.observe([0.02, 0.02])

    assert watch.observe([0.02, 0.1]) is None
    assert watch.slow is None


def test_the_first_steps_of_a_newcomer_do_not_name_it() -> None:
    watch = Stragglers()

    times = [[0.02, 1.5], [0.02, 0.3], *[[0.02, 0.02]] * 60]

    assert not any(watch.observe(seconds) for seconds in times)


def test_times_of_another_round_count_anew() -> None:
    watch = Stragglers()
    for _ in range(50):
        watch.observe([0.02, 0.02, 0.05])
    assert watch.slow is not None

    watch.observe([0.02, 0.02])

    assert watch.slow is None


def test_a_few_milliseconds_do_not_count() -> None:
    watch = Stragglers()

    assert not any(watch.observe([0.001, 0.004]) for _ in range(100))


def test_who_recovers_is_no_straggler_any_more_and_may_be_named_again() -> None:
    watch = Stragglers()
    slow = [0.02, 0.06]
    fine = [0.02, 0.02]

    first = [watch.observe(slow) for _ in range(60)]
    for _ in range(100):
        watch.observe(fine)
    assert watch.slow is None
    again = [watch.observe(slow) for _ in range(60)]

    assert sum(each is not None for each in first) == sum(each is not None for each in again) == 1
