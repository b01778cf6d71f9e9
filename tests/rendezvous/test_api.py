"""What users program against."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import RendezvousError, UsageError
from holdfast.rendezvous import RendezvousInfo, RendezvousParameters, RendezvousStoreInfo, as_rendezvous_info
from holdfast.store import MemoryStore


def params(**config: Any) -> RendezvousParameters:
    return RendezvousParameters("b", "e", "r", 1, 2, **config)


@pytest.mark.parametrize("text", ["1", "true", "T", "Yes", "y", True, 1])
def test_get_as_bool_understands_yes(text: object) -> None:
    assert params(flag=text).get_as_bool("flag") is True


@pytest.mark.parametrize("text", ["0", "false", "F", "No", "n", False, 0])
def test_get_as_bool_understands_no(text: object) -> None:
    assert params(flag=text).get_as_bool("flag") is False


def test_get_as_bool_refuses_other_words_by_name() -> None:
    with pytest.raises(UsageError, match="'flag' must be true or false, not 'maybe'"):
        params(flag="maybe").get_as_bool("flag")


def test_get_as_int_refuses_other_words_by_name() -> None:
    assert params(n="3").get_as_int("n") == 3
    assert params().get_as_int("n", 7) == 7
    with pytest.raises(UsageError, match="'n' must be a whole number"):
        params(n="x").get_as_int("n")


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (3, 2)])
def test_impossible_numbers_of_nodes_are_refused(low: int, high: int) -> None:
    with pytest.raises(UsageError, match="number of nodes"):
        RendezvousParameters("b", "e", "r", low, high)


def test_usage_errors_are_value_errors_as_torchelastic_raises() -> None:
    with pytest.raises(ValueError):
        RendezvousParameters("", "e", "r", 1, 1)


def test_the_older_tuple_becomes_an_info() -> None:
    store = MemoryStore()

    info = as_rendezvous_info((store, 1, 2))

    assert (info.store, info.rank, info.world_size, info.bootstrap_store_info) == (store, 1, 2, None)


def test_an_info_passes_through() -> None:
    info = RendezvousInfo(MemoryStore(), 0, 1, RendezvousStoreInfo("a", 1))

    assert as_rendezvous_info(info) is info


@pytest.mark.parametrize("result", [(1, 2), None, 5])
def test_anything_else_is_refused_with_what_it_should_be(result: Any) -> None:
    with pytest.raises(RendezvousError, match="next_rendezvous returned"):
        as_rendezvous_info(result)


def test_store_info_is_agreed_through_a_store() -> None:
    store = MemoryStore()

    first = RendezvousStoreInfo.build(0, store, "10.0.0.1", 1234)

    assert first == RendezvousStoreInfo("10.0.0.1", 1234)
    assert RendezvousStoreInfo.build(1, store, "10.0.0.2") == first
