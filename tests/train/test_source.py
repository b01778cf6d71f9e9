"""Whose state all workers take when a round begins."""

from holdfast.train.events import Account
from holdfast.train.source import Plan, choose_source, may_be_behind


def test_the_most_advanced_whole_state_is_taken() -> None:
    torn = Account(9, False, True)

    assert choose_source([Account(7, True, True), Account(8, True, True), Account(0, True, False)]) == Plan(
        1, False, (0, 2)
    )
    assert choose_source([torn, Account(8, True, True)]) == 9, "nothing is left of step 9"
    assert choose_source([torn, Account(8, True, True, saved=9)]) == Plan(1, True, (0,), saved=9, after=8)


def test_equal_states_stay_where_they_are() -> None:
    assert choose_source([Account(5, True, True, counted_in=3)] * 3) == Plan(0, False, ())


def test_a_step_that_was_done_in_two_rounds_is_the_later_rounds() -> None:
    """It may have used other data there: equal numbers do not make equal states."""
    early, late = Account(5, True, True, counted_in=3), Account(5, True, True, counted_in=4)

    assert choose_source([early, late, late]) == Plan(1, False, (0,))


def test_a_worker_that_was_away_when_the_others_went_back_to_a_checkpoint_does_not_end_the_training() -> None:
    back, torn = Account(6, True, True, counted_in=3), Account(9, False, True, counted_in=1)

    assert choose_source([back, torn, back]) == Plan(0, False, (1,))
    assert choose_source([back, Account(9, False, True, counted_in=3)]) == 9, "it went that far with them"


def test_of_those_that_see_a_checkpoint_one_that_can_go_on_without_it_reads_it() -> None:
    new, mine = Account(0, True, False, saved=9), Account(8, True, True, saved=9)

    assert choose_source([new, mine]) == Plan(1, True, (0,), saved=9, after=8)
    assert choose_source([new, Account(8, False, True, saved=9)]) == Plan(0, True, (1,), saved=9)


def test_a_checkpoint_that_could_not_be_read_is_left_out_where_a_state_is_left() -> None:
    refused, new = Account(8, True, True, saved=9, refused=9), Account(0, True, False, saved=9)

    assert choose_source([refused, new]) == Plan(0, False, (1,))
    assert choose_source([refused, Account(0, True, False, saved=10)]) == Plan(1, True, (0,), saved=10, after=8)


def test_only_the_loss_of_the_one_that_writes_checkpoints_leaves_a_doubt() -> None:
    straight, writer = Account(8, True, True, straight=True), Account(8, True, True, straight=True, wrote=True)

    assert not may_be_behind([straight, writer])
    assert not may_be_behind([Account(8, True, True)] * 2), "all have looked"
    assert not may_be_behind([straight, Account(9, False, True, wrote=True)]), "it has looked for itself"
    assert may_be_behind([straight, Account(0, True, False)])
