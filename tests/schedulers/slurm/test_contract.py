"""Slurm does what every scheduler must do, on a real cluster."""

import pytest

from holdfast.testing.scheduler_contract import Settings, scheduler_cases


@pytest.mark.parametrize("case", scheduler_cases(), ids=lambda case: case.__name__)
def test_contract(case, make):
    case(make, Settings(image=""))
