"""Writes docs/MESSAGES.md, and the index that the package carries, from the messages in the source.

python tests/messages_page.py
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.explain.collect import HOLE, WARNING, Found, Source, collect
from holdfast.explain.index import PATH, SHARED_MIN, Index, Section
from holdfast.explain.reading import read_all
from holdfast.explain.words import BLAME, area_of, blame_of, by_code

DOCS = Path(__file__).parent.parent / "docs"
PAGE, TROUBLES = DOCS / "MESSAGES.md", DOCS / "TROUBLESHOOTING.md"

HEAD = """\
# Messages

Written by `tests/messages_page.py` from the source; a test says when it is out of date.

Every message that Holdfast raises, refuses a node with or warns of, by the part that says it. `…` stands for a name,
a number or the words of the system. On a terminal, the code of an error stands behind its message; `holdfast explain
CODE` or `holdfast explain "the message"` shows the same as this page. [Troubleshooting](TROUBLESHOOTING.md) goes
through the common ones with examples.
"""


def page(source: Source | None = None) -> str:
    """The whole page."""
    source = source or read_all()
    links = troubles(source)
    parts: dict[str, list[list[Found]]] = {}
    for same in by_code(collect(source)).values():
        parts.setdefault(area_of(same[0].module).title, []).append(same)
    return HEAD + "".join(_part(source, title, parts[title], links) for title in sorted(parts))


def _part(source: Source, title: str, messages: list[list[Found]], links: dict[str, str]) -> str:
    areas = dict.fromkeys(area_of(same[0].module) for same in messages)
    first = next(iter(areas))
    more = f" See [{_page_title(first.page)}]({first.page})." if first.page else ""
    lines = [f"\n## {title}\n", f"{first.first}{more}\n"]
    kinds: dict[str, list[list[Found]]] = {}
    for same in messages:
        kinds.setdefault(blame_of(source, same[0].kind), []).append(same)
    for blame in sorted(kinds, key=lambda each: list(BLAME.values()).index(each)):
        lines.append(f"**{blame}**\n")
        lines += [
            _entry(same, links) for same in sorted(kinds[blame], key=lambda same: same[0].text.lstrip(f"{HOLE} '"))
        ]
        lines.append("")
    return "\n".join(lines)


def _entry(same: list[Found], links: dict[str, str]) -> str:
    first = same[0]
    kinds = "" if first.kind == WARNING else f" *{', '.join(dict.fromkeys(one.kind for one in same))}*"
    link = links.get(first.code)
    more = f" [more](TROUBLESHOOTING.md#{link})" if link else ""
    return f'- <a id="{first.code}"></a>`{first.code}` {_escaped(first.text)}{kinds}{more}'


def _escaped(text: str) -> str:
    """Write a message so that Markdown leaves it alone."""
    return re.sub(r"([\\*_<>\[\]|#`$])", r"\\\1", " ".join(text.split()))


def _page_title(path: str) -> str:
    name = path.partition("#")[0]
    return (DOCS / name).read_text().partition("\n")[0].removeprefix("# ")


def troubles(source: Source) -> dict[str, str]:
    """Return the section of the troubleshooting page about a message, by its code."""
    found: dict[str, str] = {}
    headings = re.findall(r"^### (.+)$", TROUBLES.read_text(), re.MULTILINE)
    for one in collect(source):
        for heading in headings:
            pieces = [piece.strip(" .:`") for piece in re.split(r"\.\.\.|[;,]|1:[12]|'\w+'", heading)]
            if any(len(piece) >= SHARED_MIN and piece in one.text for piece in pieces):
                found[one.code] = anchor(heading)
    return found


def anchor(heading: str) -> str:
    """Return the anchor that renderers give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def index(source: Source) -> str:
    """The index of the package."""
    return Index.of(source, sections(), troubles(source)).dump()


def sections() -> list[Section]:
    """The sections of the troubleshooting page, without their examples."""
    found = []
    for part in re.split(r"^(?=### )", TROUBLES.read_text(), flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        body = re.split(r"^## ", re.sub(r"^```.*?^```$", "", body, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE)[
            0
        ]
        body = re.sub(r"\[([^]]*)\]\(([^)]*)\)", r"\1", body)
        words = "\n\n".join(" ".join(each.split()) for each in body.split("\n\n") if each.strip())
        title = heading.removeprefix("### ")
        found.append(Section(title, anchor(title), words))
    return found


def main() -> None:
    """Write both."""
    source = read_all()
    PAGE.write_text(page(source))
    PATH.write_text(index(source))


if __name__ == "__main__":
    main()
