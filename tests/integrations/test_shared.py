"""How a framework's data loader becomes steps of all workers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler  # noqa: E402

from holdfast.errors import UsageError  # noqa: E402
from holdfast.integrations.shared import Plan  # noqa: E402

pytestmark = pytest.mark.torch
DATA = TensorDataset(torch.arange(45))


@pytest.mark.parametrize(("drop_last", "steps"), [(False, 6), (True, 5)])
def test_a_step_has_the_batches_of_all_workers(drop_last: bool, steps: int) -> None:
    plan = Plan(DataLoader(DATA, batch_size=2, drop_last=drop_last), 4, seed=0)

    assert (plan.micro_batch, plan.batch, plan.samples, len(plan)) == (2, 8, 45, steps)


def test_data_without_a_length_is_refused() -> None:
    class Endless(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> object:
            return iter(range(10))

    with pytest.raises(UsageError, match="needs a length"):
        Plan(DataLoader(Endless(), batch_size=2), 4, seed=0)


def test_a_sampler_that_is_not_ours_is_refused_by_name() -> None:
    loader = DataLoader(DATA, batch_size=2, sampler=WeightedRandomSampler([1.0] * 45, 45))

    with pytest.raises(UsageError, match="cannot follow WeightedRandomSampler"):
        Plan(loader, 4, seed=0)


def test_data_that_comes_without_batches_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a batch_size"):
        Plan(DataLoader(DATA, batch_size=None), 4, seed=0)
