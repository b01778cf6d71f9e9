"""Ray does what every scheduler must do, on a real cluster."""

import pytest

from holdfast.testing.scheduler_contract import Settings, scheduler_cases
from tests.schedulers.acceptance import only_in_test_clusters

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"
)


@only_in_test_clusters
@pytest.mark.parametrize("case", scheduler_cases(), ids=lambda case: case.__name__)
def test_contract(case, make, cfg):
    case(make, Settings(image="", cfg=cfg))
