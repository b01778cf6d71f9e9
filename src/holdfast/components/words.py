"""How lists and dictionaries are written in one argument: separators, and quotes that protect them. Pure.

A quote counts only around a whole item, key or value: `"a,b",c` has two items, while the one in `it's` is a letter.
Within quotes a backslash protects the quote and itself.
"""

from __future__ import annotations

import re

QUOTES = "\"'"
_ESCAPED = re.compile(r"""\\([\\"'])""")


def split(text: str, separator: str, stops: str) -> list[str]:
    """Split at a separator outside quotes, quotes kept; `stops` are all characters after which a quote may open."""
    pieces = []
    start = 0
    for place in _outside(text, stops):
        if text[place] == separator:
            pieces.append(text[start:place])
            start = place + 1
    pieces.append(text[start:])
    return pieces


def cut(text: str, separator: str, stops: str) -> tuple[str, str] | None:
    """Split at the first separator outside quotes, or return None if there is none."""
    for place in _outside(text, stops):
        if text[place] == separator:
            return text[:place], text[place + 1 :]
    return None


def unquote(piece: str) -> str:
    """Return an item without the space around it and without its quotes."""
    piece = piece.strip()
    if piece and piece[0] in QUOTES and _closing(piece, 0) == len(piece) - 1:
        return _ESCAPED.sub(r"\1", piece[1:-1])
    return piece


def quote(text: str) -> str:
    """Write an item so that it is read back as it is."""
    if text and not re.search(r"[,;=\"'\\\s]", text):
        return text
    return '"' + re.sub(r'([\\"])', r"\\\1", text) + '"'


def _outside(text: str, stops: str) -> list[int]:
    """Find every stop that no quotes protect."""
    places = []
    place = 0
    opening = True  # a quote may open here: nothing but space since the last stop
    while place < len(text):
        letter = text[place]
        if letter in stops:
            places.append(place)
            opening = True
        elif opening and letter in QUOTES and (end := _closing_before(text, place, stops)) is not None:
            place = end
            opening = False
        elif not letter.isspace():
            opening = False
        place += 1
    return places


def _closing_before(text: str, opening: int, stops: str) -> int | None:
    """Find the quote that closes a whole item: after it comes a stop or the end."""
    end = _closing(text, opening)
    if end is None:
        return None
    rest = text[end + 1 :].lstrip()
    return end if not rest or rest[0] in stops else None


def _closing(text: str, opening: int) -> int | None:
    """Find the quote that closes the one at `opening`."""
    place = opening + 1
    while place < len(text):
        if text[place] == "\\":
            place += 1
        elif text[place] == text[opening]:
            return place
        place += 1
    return None
