"""Every scheduler of ours that runs here does what the contract says."""

import pytest

from holdfast.schedulers import Scheduler
from holdfast.schedulers.local.scheduler import LocalScheduler
from holdfast.testing.memory_scheduler import MemoryCluster, MemoryScheduler
from holdfast.testing.scheduler_contract import scheduler_cases


@pytest.fixture(params=["memory", "local"])
def make(request, tmp_path):
    """Return the function that makes one more object for the same jobs."""
    if request.param == "memory":
        cluster = MemoryCluster()
        yield lambda: MemoryScheduler("contract", cluster)
        return
    yield lambda: LocalScheduler("contract", tmp_path)
    scheduler = LocalScheduler("contract", tmp_path)
    for app in scheduler.list():
        scheduler.delete(app.app_id)


@pytest.mark.parametrize("case", scheduler_cases(), ids=lambda case: case.__name__)
def test_contract(case, make):
    case(make)


def test_each_scheduler_is_a_scheduler(make):
    assert isinstance(make(), Scheduler)
