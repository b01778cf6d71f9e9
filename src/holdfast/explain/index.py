"""The index of all messages, which the package carries: finding them in its source again takes seconds.

`python tests/messages_page.py` writes it, together with docs/MESSAGES.md. It changes when a message does, and not when
a line moves; where a message is made is read from the source of that module alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.explain.collect import Found, Source, collect
from holdfast.explain.words import fault_of

PATH = Path(__file__).with_name("index.json")
#: A heading of the troubleshooting page is about a message if they share so many characters.
SHARED_MIN = 14


@dataclass(frozen=True, slots=True)
class Section:
    """A section of docs/TROUBLESHOOTING.md: its heading, its anchor, its words without the examples."""

    heading: str
    anchor: str
    words: str

    def is_about(self, text: str) -> bool:
        """Whether the heading is these words, a part of them, or has them in it."""
        wanted = text.casefold()
        pieces = [piece.strip(" .:`") for piece in self.heading.casefold().split("...")]
        return wanted in self.heading.casefold() or any(len(each) >= SHARED_MIN and each in wanted for each in pieces)


@dataclass(frozen=True, slots=True)
class Index:
    """Every message, without its line; for each kind the fault that it stands for; what the docs say of some."""

    messages: list[Found]
    faults: Mapping[str, str]
    sections: list[Section]
    #: The anchor of the section about a message, by its code.
    about: Mapping[str, str]

    @classmethod
    def of(cls, source: Source, sections: list[Section], about: Mapping[str, str]) -> Index:
        """Make the index of a source."""
        found = sorted({(one.text, one.kind, one.module) for one in collect(source)})
        messages = [Found(*each) for each in found]
        return cls(messages, {one.kind: fault_of(source, one.kind) for one in messages}, sections, about)

    @classmethod
    def read(cls) -> Index:
        """Read the index that the package carries."""
        data = json.loads(PATH.read_text())
        messages = [Found(*each) for each in data["messages"]]
        return cls(messages, data["faults"], [Section(*each) for each in data["sections"]], data["about"])

    def dump(self) -> str:
        """Write it as text, a message a line."""
        messages = [[one.text, one.kind, one.module] for one in self.messages]
        sections = [[each.heading, each.anchor, each.words] for each in self.sections]
        parts = [_mapping("faults", self.faults), _mapping("about", self.about)]
        parts += [_lines("sections", sections), _lines("messages", messages)]
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def section_of(self, code: str) -> Section | None:
        """Return what the docs say of a message, if they do."""
        return next((each for each in self.sections if each.anchor == self.about.get(code)), None)


def _mapping(name: str, part: Mapping[str, str]) -> str:
    return f'"{name}": {json.dumps(dict(sorted(part.items())))}'


def _lines(name: str, rows: list[list[str]]) -> str:
    return f'"{name}": [\n' + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]"
