"""Docker and Podman do what every scheduler must do."""

import pytest

from holdfast.testing.scheduler_contract import Settings, scheduler_cases
from tests.schedulers.acceptance import only_in_test_clusters
from tests.schedulers.containers.engines import IMAGE


@only_in_test_clusters
@pytest.mark.parametrize("case", scheduler_cases(), ids=lambda case: case.__name__)
def test_contract(case, make, cfg):
    case(make, Settings(image=IMAGE, cfg={**cfg, "cancel_grace_s": 1.0}))
