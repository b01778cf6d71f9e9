"""A shuffled order is the same whether positions are asked for one by one or many at once."""

from __future__ import annotations

import pytest

from holdfast.train.shuffle import Shuffle

pytest.importorskip("numpy")


@pytest.mark.parametrize("count", [1, 2, 3, 17, 4095, 4096, 4097, 10_000])
@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (7, 3), (2**63, 1)])
def test_many_positions_at_once_are_the_same_samples(count: int, seed: int, epoch: int) -> None:
    shuffle = Shuffle(count, seed, epoch)
    alone = tuple(shuffle[position] for position in range(count))

    assert shuffle.take(0, count) == alone
    assert shuffle.take(count // 3, count // 2) == alone[count // 3 : count // 2]
    assert sorted(alone) == list(range(count))


def test_positions_behind_the_end_are_refused() -> None:
    for start in (5, 9, 5000):
        with pytest.raises(IndexError, match="of 10"):
            Shuffle(10, 0, 0).take(start, start + 6000)
