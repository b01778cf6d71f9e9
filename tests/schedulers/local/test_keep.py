"""Which finished jobs are dropped."""

import pytest

from holdfast.errors import UsageError
from holdfast.schedulers.local.keep import Finished, Policy, choose, policy_from

DAY = 86400.0
NOW = 1000 * DAY


def jobs(*ages_and_sizes):
    return [Finished(f"job{n}", NOW - age * DAY, size) for n, (age, size) in enumerate(ages_and_sizes)]


def test_beyond_the_number_the_oldest_go_first():
    assert choose(jobs((1, 0), (3, 0), (2, 0)), NOW, Policy(jobs=1)) == ["job1", "job2"]


def test_beyond_the_days_they_go():
    assert choose(jobs((1, 0), (31, 0)), NOW, Policy(days=30)) == ["job1"]


def test_beyond_the_size_the_oldest_go_until_the_rest_fits():
    assert choose(jobs((1, 60), (2, 30), (3, 30)), NOW, Policy(bytes=100)) == ["job2"]


def test_what_has_just_ended_stays():
    assert choose(jobs((0, 10), (0.001, 10)), NOW, Policy(jobs=0, bytes=0)) == []


def test_the_environment_sets_the_limits():
    found = policy_from({"HOLDFAST_KEEP_JOBS": "3", "HOLDFAST_KEEP_DAYS": "0.5", "HOLDFAST_KEEP_BYTES": "1e9"})

    assert (found.jobs, found.days, found.bytes) == (3, 0.5, 10**9)
    assert policy_from({}) == Policy()


@pytest.mark.parametrize("text", ["many", "-1", "nan"])
def test_a_limit_that_is_no_number_is_refused(text):
    with pytest.raises(UsageError, match="HOLDFAST_KEEP_JOBS"):
        policy_from({"HOLDFAST_KEEP_JOBS": text})
