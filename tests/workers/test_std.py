"""`Std` and its maps."""

import pytest

from holdfast.errors import UsageError
from holdfast.workers import Std, to_map


@pytest.mark.parametrize(("text", "value"), [("0", Std.NONE), ("1", Std.OUT), ("2", Std.ERR), (" 3 ", Std.ALL)])
def test_one_number_is_for_all(text, value):
    assert Std.from_str(text) == value


def test_a_map_may_have_ranks_of_several_digits():
    assert Std.from_str("0:1,12:3,103:2") == {0: Std.OUT, 12: Std.ALL, 103: Std.ERR}


@pytest.mark.parametrize("text", ["4", "", "x", "0:9", "0:1:2", "-1", "0:", ":1", "a:1"])
def test_nonsense_is_the_callers_fault(text):
    with pytest.raises(UsageError, match="names no streams"):
        Std.from_str(text)


def test_to_map_fills_the_ranks_that_a_map_leaves_out():
    assert to_map(Std.OUT, 2) == {0: Std.OUT, 1: Std.OUT}
    assert to_map({1: Std.ERR}, 3) == {0: Std.NONE, 1: Std.ERR, 2: Std.NONE}
