"""Text from other nodes and workers, made safe for the screen: without control characters. Pure.

Sentences quote host names, run ids and failure messages, which could move the cursor, change the title or hide words.
Everything that Holdfast prints for people goes through here. The output of workers does not: it is theirs.
"""

from __future__ import annotations

import re

#: Colours are removed without a mark.
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
#: Control characters but tab and newline, what turns the direction of writing, and what no encoding has a place for.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return the text with a mark in place of each control character."""
    return text if text.isprintable() else _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _COLOUR.sub("", text))
