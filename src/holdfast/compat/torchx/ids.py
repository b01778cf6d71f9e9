"""Unique names for jobs: a word that a person knows, and random letters."""

from __future__ import annotations

import os

#: What an id begins with and goes on with: no vowels, so that it spells nothing, and no 8, which looks like a B.
START_CANDIDATES = "bcdfghjklmnpqrstvwxz"
END_CANDIDATES = START_CANDIDATES + "012345679"


def make_unique(name: str, string_length: int = 0) -> str:
    """Append a random id to a name, of `string_length` letters, or of 64 bits where that is 0."""
    return f"{name}-{get_len_random_id(string_length) if string_length else random_id()}"


def get_len_random_id(string_length: int) -> str:
    """Return an id of so many letters; it begins with one and goes on with letters and digits."""
    picks = [int.from_bytes(os.urandom(8), "big") for _ in range(string_length)]
    return "".join(_pick(pick, END_CANDIDATES if place else START_CANDIDATES) for place, pick in enumerate(picks))


def random_id() -> str:
    """Return 64 random bits, written as letters and digits; it begins with a letter."""
    rest, first = divmod(random_uint64(), len(START_CANDIDATES))
    letters = [START_CANDIDATES[first]]
    while rest:
        rest, place = divmod(rest, len(END_CANDIDATES))
        letters.append(END_CANDIDATES[place])
    return "".join(letters)


def random_uint64() -> int:
    """Return a number of 64 random bits."""
    return int.from_bytes(os.urandom(8), "big")


def _pick(number: int, letters: str) -> str:
    return letters[number % len(letters)]
