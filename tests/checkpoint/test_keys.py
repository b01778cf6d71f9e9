"""Keys: what a shard is called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.keys import Key, make_origin, parse_key
from holdfast.errors import UsageError


@given(st.text(min_size=1), st.integers(0, 99), st.integers(0, 10**12 - 1), st.integers(1, 10**6), st.data())
def test_a_key_is_read_back_from_its_file_name(
    run: str, number: int, step: int, world: int, data: st.DataObject
) -> None:
    key = Key(step, make_origin(run, str(number)), world, data.draw(st.integers(0, world - 1)))

    assert parse_key(key.folder, key.stem) == key


def test_runs_whose_names_only_differ_in_odd_characters_have_different_origins() -> None:
    assert make_origin("a/b", "0") != make_origin("a:b", "0")


@pytest.mark.parametrize(("step", "world", "shard"), [(-1, 1, 0), (0, 1, 1), (0, 0, 0), (10**12, 1, 0)])
def test_a_key_that_cannot_be_is_refused(step: int, world: int, shard: int) -> None:
    with pytest.raises(UsageError):
        Key(step, "run.0", world, shard)


@pytest.mark.parametrize("name", ["shard-00001-of-00001.x", "shard-x", "other.json", "shard-00000-of-00002"])
def test_what_is_not_ours_is_not_read_as_a_key(name: str) -> None:
    assert parse_key("step-000000000001", name) is None
