"""The grammar of run options written on one line, `queue=gpu,tags=a;b,labels=team:vision`. Pure.

Pairs and the items of a list are separated alike, by `,` or `;`: all text before the next `key=` belongs to the
value. The entries of a dict are `key:value`. A value or item that begins with a quote runs to the closing one, and the
text between them is taken as it is.
"""

from __future__ import annotations

import re

#: What a run option may hold.
CfgVal = str | int | float | bool | list[str] | dict[str, str] | None

TRUE = frozenset({"true", "1", "yes", "on"})
FALSE = frozenset({"false", "0", "no", "off"})

# Up to the next separator; a quote protects only where a value or item begins, so that `it's` needs none.
_PIECE = re.compile(r"""(?:(?:^|(?<=[=,;:]))\s*(?:'[^']*'|"[^"]*")|[^,;])*""")
# A colon cannot be part of a key: `b:x=1` is an entry of a dict.
_KEY = re.compile(r"""\s*([^\s=:'"]+)\s*=""")


def split_items(text: str) -> list[str]:
    """Split at the separators that no quote protects; quotes stay."""
    return [text[start:end] for start, end in _spans(text)]


def split_pairs(text: str) -> list[tuple[str, str]]:
    """Split into keys and values, quotes still in place; raises ValueError for a value without a key."""
    text = text.strip().rstrip(",; ")
    pairs: list[tuple[str, str]] = []
    key, value_start, value_end = "", 0, 0
    for start, end in _spans(text) if text else ():
        found = _KEY.match(text, start, end)
        if found is not None:
            if key:
                pairs.append((key, text[value_start:value_end].strip()))
            key, value_start = found[1], found.end()
        elif not key:
            raise ValueError(f"'{text[start:end].strip()}' is not of the form key=value")
        value_end = end
    return [*pairs, (key, text[value_start:value_end].strip())] if key else pairs


def unquote(text: str) -> str:
    """Take off white space and then the quotes around a value, if it has any."""
    text = text.strip()
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def to_list(text: str) -> list[str]:
    """Read `a,b;c`."""
    return [unquote(item) for item in split_items(text)] if text.strip() else []


def to_dict(text: str) -> dict[str, str]:
    """Read `a:1,b:2`; raises ValueError if an item is no pair."""
    found = {}
    for item in split_items(text) if text.strip() else ():
        key, colon, value = item.partition(":")
        if not colon:
            raise ValueError(f"'{item.strip()}' is not of the form key:value")
        found[unquote(key)] = unquote(value)
    return found


def to_bool(text: str) -> bool:
    """Read true, 1, yes, on or false, 0, no, off; raises ValueError on anything else."""
    word = text.lower()
    if word not in TRUE and word not in FALSE:
        raise ValueError(f"'{text}' is neither true nor false")
    return word in TRUE


def _spans(text: str) -> list[tuple[int, int]]:
    """Where each piece between separators begins and ends."""
    spans, start = [], 0
    while True:
        match = _PIECE.match(text, start)
        assert match is not None  # the pattern matches nothing, too
        spans.append((start, match.end()))
        if match.end() == len(text):
            return spans
        start = match.end() + 1
