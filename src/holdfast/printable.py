"""Text of others for the screen: what could move the cursor, change the title or hide words is taken out. Pure.

Sentences quote what other nodes and workers say: host names, run ids, failure messages. Everything of ours that a
person reads goes through here at the edge of the screen. What workers write themselves does not: it is theirs.
"""

from __future__ import annotations

import re

#: Colours say nothing here, so they go without a trace.
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
#: Control characters but tab and newline, what turns the direction of writing, and what no encoding has a place for.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return text that can only be read; a mark stands for each character that could do more."""
    return text if text.isprintable() else _CONTROL.sub("\N{REPLACEMENT CHARACTER}", _COLOUR.sub("", text))
