"""Unique ids."""

from __future__ import annotations

import re

from holdfast.compat.torchx import ids


def test_a_name_is_made_unique_in_letters_that_every_scheduler_takes() -> None:
    made = {ids.make_unique("train") for _ in range(200)}

    assert len(made) == 200
    assert all(re.fullmatch(r"train-[b-df-hj-np-tv-xz][b-df-hj-np-tv-xz0-79]{4,}", each) for each in made)


def test_an_id_may_have_a_length() -> None:
    made = ids.make_unique("train", 9)

    assert len(made) == len("train-") + 9
    assert made[6] in ids.START_CANDIDATES
    assert set(made[7:]) <= set(ids.END_CANDIDATES)
    assert len({ids.get_len_random_id(12) for _ in range(200)}) == 200


def test_a_number_has_64_bits() -> None:
    found = [ids.random_uint64() for _ in range(100)]

    assert max(found) < 2**64
    assert max(found) > 2**56
    assert ids.random_id()[0] in ids.START_CANDIDATES
