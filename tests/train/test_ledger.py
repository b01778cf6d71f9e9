"""The ledger: every sample once, whatever happens to the workers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.train.ledger import Ledger, Recipe
from holdfast.train.shuffle import Shuffle


@given(st.integers(1, 3000), st.integers(0, 2**64), st.integers(0, 50))
def test_a_shuffle_is_a_permutation(count: int, seed: int, epoch: int) -> None:
    order = Shuffle(count, seed, epoch)

    assert sorted(order[position] for position in range(count)) == list(range(count))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        shuffle = Shuffle(1000, seed, epoch)
        return [shuffle[position] for position in range(1000)]

    orders = [order(0, 0), order(0, 1), order(1, 0), list(range(1000))]

    assert all(one != other for number, one in enumerate(orders) for other in orders[:number])
    assert order(3, 4) == order(3, 4)


def test_the_order_of_a_seed_never_changes_between_versions() -> None:
    shuffle = Shuffle(10, 42, 0)

    assert [shuffle[position] for position in range(10)] == GOLDEN


GOLDEN = [7, 4, 5, 9, 8, 6, 3, 2, 1, 0]


@given(
    st.integers(1, 400),
    st.integers(1, 60),
    st.integers(0, 9),
    st.lists(st.tuples(st.integers(1, 7), st.booleans()), min_size=1, max_size=60),
    st.booleans(),
)
def test_each_sample_is_used_once_whatever_the_world_sizes_and_rollbacks(
    samples: int, batch: int, micro: int, history: list[tuple[int, bool]], scale: bool
) -> None:
    ledger = Ledger(Recipe(samples, batch, micro, epochs=2, seed=7, scale_batch=scale))
    used: Counter[tuple[int, int]] = Counter()
    turns = iter(history * 1000)

    for world_size, survives in turns:
        portion = ledger.next(world_size)
        if portion is None:
            break
        shares = [ledger.deal(portion, rank, world_size) for rank in range(world_size)]
        if not survives and any(alive for _, alive in history):
            ledger.restore(ledger.snapshot())
            continue
        ledger.commit(portion)
        used.update((portion.epoch, index) for share in shares for micro_ in share for index in micro_.indices)

    assert used == Counter({(epoch, index): 1 for epoch in range(2) for index in range(samples)})


@given(st.integers(1, 100), st.integers(1, 9), st.integers(1, 8), st.integers(1, 8))
def test_micro_batches_are_the_same_for_any_world_size(batch: int, micro: int, world: int, other: int) -> None:
    ledger = Ledger(Recipe(100, batch, micro))
    portion = ledger.next()
    assert portion is not None

    def dealt(size: int) -> list[object]:
        return [micro_ for rank in range(size) for micro_ in ledger.deal(portion, rank, size)]

    assert dealt(world) == dealt(other)
    assert [micro_.number for micro_ in ledger.deal(portion, 0, 1)] == list(range(-(-len(portion) // micro)))


def test_drop_last_leaves_the_remainder_out() -> None:
    ledger = Ledger(Recipe(10, 4, epochs=1, drop_last=True))
    sizes = []
    while (portion := ledger.next()) is not None:
        sizes.append(len(portion))
        ledger.commit(portion)

    assert sizes == [4, 4]


def test_a_ledger_of_another_data_set_is_refused() -> None:
    with pytest.raises(UsageError, match="another data set"):
        Ledger(Recipe(10, 2)).restore({"epoch": 0, "position": 50, "step": 3})


@pytest.mark.parametrize(
    "wrong", [{"samples": 0}, {"batch": 0}, {"micro_batch": -1}, {"epochs": -1}, {"batch": 11, "drop_last": True}]
)
def test_a_recipe_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Recipe(**{"samples": 10, "batch": 2, **wrong})


@pytest.mark.parametrize(("samples", "steps"), [(10, 1), (10, 5), (10, 6), (7, 23), (3, 0)])
def test_with_steps_exactly_so_many_are_done_over_as_many_epochs_as_they_take(samples: int, steps: int) -> None:
    ledger = Ledger(Recipe.of(samples, 2, steps=steps, epochs="auto", scale_batch=False))
    done = 0
    while (portion := ledger.next()) is not None:
        ledger.commit(portion)
        done += 1

    assert done == steps
    assert ledger.step == steps


def test_steps_count_those_that_were_done_before_a_restore() -> None:
    ledger = Ledger(Recipe.of(10, 2, steps=8, epochs="auto", scale_batch=False))
    ledger.restore({"epoch": 1, "position": 2, "step": 6})
    for _ in range(2):
        portion = ledger.next()
        assert portion is not None
        ledger.commit(portion)

    assert ledger.next() is None


def test_steps_and_epochs_end_at_the_first_of_them() -> None:
    ledger = Ledger(Recipe.of(10, 2, steps=100, epochs=1, scale_batch=False))
    while (portion := ledger.next()) is not None:
        ledger.commit(portion)

    assert ledger.step == 5


@pytest.mark.parametrize("world", [1, 3, 64])
def test_with_steps_alone_every_worker_has_a_number_of_its_own_in_each_step(world: int) -> None:
    ledger = Ledger(Recipe.of(None, None, steps=5, epochs="auto", scale_batch=False))
    seen: list[int] = []
    while (portion := ledger.next(world)) is not None:
        for rank in range(world):
            (micro,) = ledger.deal(portion, rank, world)
            seen += micro.indices
        ledger.commit(portion)

    assert len(seen) == len(set(seen)) == 5 * world


def test_a_training_without_an_end_must_be_asked_for() -> None:
    with pytest.raises(UsageError, match="say how long to train"):
        Recipe.of(None, 4, steps=None, epochs="auto", scale_batch=False)
    with pytest.raises(UsageError, match="cannot be negative"):
        Recipe.of(10, 4, steps=-1, epochs="auto", scale_batch=False)


def test_steps_that_were_done_before_are_skipped_with_their_samples() -> None:
    recipe = Recipe.of(10, 4, steps=20, epochs="auto", scale_batch=False)
    done, skipped = Ledger(recipe), Ledger(recipe)
    for _ in range(7):
        portion = done.next()
        assert portion is not None
        done.commit(portion)

    skipped.skip(7)

    assert skipped.snapshot() == done.snapshot()
    skipped.skip(100)
    assert skipped.next() is None


def test_with_a_growing_batch_no_steps_can_be_skipped() -> None:
    ledger = Ledger(Recipe.of(10, 2, steps=20, epochs="auto", scale_batch=True))
    ledger.skip(0)

    with pytest.raises(UsageError, match="scale_batch"):
        ledger.skip(1)


def test_the_rest_of_an_epoch_can_be_left_out_once() -> None:
    ledger = Ledger(Recipe.of(10, 2, steps=20, epochs="auto", scale_batch=False))
    ledger.skip(2)

    ledger.end_epoch(0)
    ledger.end_epoch(0)

    assert (ledger.epoch, ledger.position, ledger.step) == (1, 0, 2)
