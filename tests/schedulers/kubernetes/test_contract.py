"""Kubernetes does what every scheduler must do, on a real cluster."""

import pytest

from holdfast.testing.scheduler_contract import Settings, scheduler_cases
from tests.schedulers.kubernetes import image


@pytest.mark.parametrize("case", scheduler_cases(), ids=lambda case: case.__name__)
def test_contract(case, make):
    if case.__name__ == "streams_are_told_apart":
        pytest.skip("cannot: Kubernetes keeps what a pod prints in one log")
    case(make, Settings(image=image.APP, tells_streams=False))
