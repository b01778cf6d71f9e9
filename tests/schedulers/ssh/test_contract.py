"""SSH does what every scheduler must do, on real hosts."""

import pytest

from holdfast.testing.scheduler_contract import Settings, scheduler_cases
from tests.schedulers.acceptance import only_in_test_clusters


@only_in_test_clusters
@pytest.mark.parametrize("case", scheduler_cases(), ids=lambda case: case.__name__)
def test_contract(case, make, cfg):
    case(make, Settings(image="", cfg=cfg))
