"""Choosing a checkpoint out of what all tiers hold together, and what may go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.choose import choose, group_up, oldest_kept
from holdfast.checkpoint.keys import Entry, Key


def entry(step: int, shard: int = 0, world: int = 1, tier: str = "storage", origin: str = "run.0") -> Entry:
    return Entry(Key(step, origin, world, shard), 10, tier)


def test_the_newest_complete_one_is_chosen_over_a_newer_incomplete_one() -> None:
    choice = choose([entry(1, 0, 2), entry(1, 1, 2), entry(2, 1, 2)])

    assert choice.group is not None
    assert choice.group.step == 1
    assert choice.data["passed_over"] == ["step 2 lacks shard 0 of 2"]
    assert choice.sentence == (
        "step 1 is the newest complete checkpoint (2 of 2 shards in storage); passed over: step 2 lacks shard 0 of 2"
    )


def test_shards_of_one_checkpoint_may_lie_in_different_tiers() -> None:
    choice = choose([entry(3, 0, 2, "memory"), entry(3, 1, 2, "neighbour"), entry(2, 0, 2), entry(2, 1, 2)])

    assert choice.group is not None
    assert choice.group.step == 3
    assert choice.data["tiers"] == {"memory": 1, "neighbour": 1}


def test_shards_of_different_origins_are_never_put_together() -> None:
    choice = choose([entry(3, 0, 2, origin="run.0"), entry(3, 1, 2, origin="run.1")])

    assert choice.group is None
    assert "is complete" in choice.sentence


def test_of_one_step_the_later_round_is_chosen() -> None:
    choice = choose([entry(3, origin="run.9"), entry(3, origin="run.10")])

    assert choice.group is not None
    assert choice.group.origin == "run.10"


def test_the_nearest_copy_comes_first() -> None:
    (group,) = group_up([entry(1, tier="storage"), entry(1, tier="memory"), entry(1, tier="neighbour")])

    assert [holder.tier for holder in group.holders[0]] == ["memory", "neighbour", "storage"]


def test_what_was_refused_is_passed_over_with_its_reason() -> None:
    entries = [entry(1), entry(2)]

    choice = choose(entries, refused={(2, "run.0", 1): "a block is damaged"})

    assert choice.group is not None
    assert choice.group.step == 1
    assert "step 2 cannot be read (a block is damaged)" in choice.sentence


def test_a_step_can_be_asked_for() -> None:
    assert choose([entry(1), entry(2)], step=1).group is not None
    assert choose([entry(1), entry(2)], step=3).sentence == "no checkpoint of step 3 was found"


def test_nothing_is_no_checkpoint() -> None:
    assert choose([]).sentence == "no checkpoint was found"


keys = st.builds(
    lambda step, world, shard, number: Key(step, f"run.{number}", world, shard % world),
    st.integers(0, 6),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(0, 1),
)


@given(st.sets(keys, max_size=30), st.integers(1, 4))
def test_the_newest_complete_checkpoints_are_never_let_go(keys: set[Key], keep: int) -> None:
    complete = sorted(
        {group.step for group in group_up(Entry(key, 0, "storage") for key in keys) if group.is_complete}, reverse=True
    )

    oldest = oldest_kept(keys, keep)

    if len(complete) < keep:
        assert oldest is None
    else:
        assert oldest == complete[keep - 1]


@given(st.sets(keys, max_size=30))
def test_everybody_chooses_the_same_whatever_the_order(keys: set[Key]) -> None:
    entries = [Entry(key, 0, "storage") for key in keys]

    one, other = choose(entries), choose(list(reversed(entries)))

    assert (one.group.name if one.group else None) == (other.group.name if other.group else None)
    assert one.sentence == other.sentence
