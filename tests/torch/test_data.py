"""Samplers: TorchElastic's own, and a loader that follows a ledger."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.utils.data import TensorDataset  # noqa: E402

from holdfast.errors import UsageError  # noqa: E402
from holdfast.torch import CyclingIterator, ElasticDistributedSampler, StepSampler  # noqa: E402
from holdfast.torch.data import StepLoader  # noqa: E402
from holdfast.train.ledger import Ledger, Recipe  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("size", "start", "replicas"), [(20, 0, 4), (20, 7, 3), (5, 4, 3), (100, 33, 1)])
def test_the_rest_of_a_data_set_is_dealt_out_evenly(size: int, start: int, replicas: int) -> None:
    shares = [list(ElasticDistributedSampler(range(size), replicas, rank, start)) for rank in range(replicas)]

    assert len({len(share) for share in shares}) == 1
    assert {index for share in shares for index in share} == set(range(start, size))
    assert sum(map(len, shares)) - (size - start) < replicas, "as few as can be come twice"


def test_every_epoch_has_an_order_of_its_own_and_all_replicas_know_it() -> None:
    samplers = [ElasticDistributedSampler(range(50), 2, rank, 10) for rank in range(2)]

    def orders() -> list[list[int]]:
        return [list(sampler) for sampler in samplers]

    first = orders()
    assert orders() == first
    for sampler in samplers:
        sampler.set_epoch(1)
    assert orders() != first
    assert len(samplers[0]) == 20


def test_a_start_outside_of_the_data_set_is_refused() -> None:
    with pytest.raises(ValueError, match="start_index 5"):
        ElasticDistributedSampler(range(5), 1, 0, start_index=5)


def test_a_cycling_iterator_goes_through_every_epoch() -> None:
    assert list(CyclingIterator(3, lambda epoch: [epoch, 10 * epoch])) == [0, 0, 1, 10, 2, 20]
    assert list(CyclingIterator(3, lambda epoch: iter([epoch]), start_epoch=1)) == [1, 2]
    assert list(CyclingIterator(4, lambda epoch: [epoch] if epoch == 3 else [])) == [3]


class Step:
    """What a loader knows of a step."""

    def __init__(self, ledger: Ledger, rank: int, world_size: int) -> None:
        self.portion = ledger.next(world_size)
        self.micro_batches = ledger.deal(self.portion, rank, world_size)


def load(loader: StepLoader, ledger: Ledger, rank: int = 0, world_size: int = 1) -> tuple[Any, Any]:
    step = Step(ledger, rank, world_size)
    return step.portion, loader.load(step, ledger, rank, world_size)  # type: ignore[arg-type]


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_ahead_and_starts_anew_where_the_run_is_elsewhere(workers: int) -> None:
    loader = StepLoader(numbers(40), {"num_workers": workers})
    ledger = Ledger(Recipe(40, 8, shuffle=False))
    seen: list[int] = []
    worlds = [(0, 1), (1, 2), (1, 2), (0, 1), (0, 1)]
    for number, (rank, world) in enumerate(worlds):
        if number == 3:
            load(loader, ledger, rank, world)  # a step that fails, and is done again
        portion, (batch,) = load(loader, ledger, rank, world)
        share = range(portion.start, portion.stop) if world == 1 else range(portion.start + 4, portion.stop)
        assert batch.tolist() == list(share)
        seen += range(portion.start, portion.stop)
        ledger.commit(portion)

    assert seen == list(range(40))
    assert ledger.next() is None


def test_a_worker_without_a_sample_gets_no_data() -> None:
    loader = StepLoader(numbers(9), {})
    ledger = Ledger(Recipe(9, 4, shuffle=False))
    shares = []
    while ledger.next(2) is not None:
        portion, data = load(loader, ledger, 0, 2)
        shares.append(None if data is None else data[0].tolist())
        ledger.commit(portion)

    assert shares == [[0, 1], [4, 5], None]


def test_micro_batches_come_as_a_list() -> None:
    loader = StepLoader(numbers(12), {})
    ledger = Ledger(Recipe(12, 12, micro_batch=5, shuffle=False))

    _, data = load(loader, ledger)

    assert [batch[0].tolist() for batch in data] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]


def test_what_the_run_decides_cannot_be_set() -> None:
    with pytest.raises(UsageError, match="batch_size, shuffle"):
        StepLoader(numbers(3), {"batch_size": 2, "shuffle": True})
    with pytest.raises(UsageError, match="works only in the loader"):
        iter(StepSampler()).__next__()
