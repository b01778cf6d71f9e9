"""`holdfast explain`: what a message means, and what to do."""

from __future__ import annotations

from textwrap import fill

import click

from holdfast.errors import UsageError
from holdfast.explain.collect import PREFIX, Found, matches
from holdfast.explain.index import Index, Section
from holdfast.explain.reading import line_of
from holdfast.explain.words import BLAME, area_of, by_code
from holdfast.printable import printable

#: So many messages are shown for words that many contain.
SHOWN_MAX = 5
WIDTH = 100


@click.command()
@click.argument("message", metavar="CODE | MESSAGE...", nargs=-1, required=True)
def command(message: tuple[str, ...]) -> None:
    """Explain a message: whose fault it is, what to look at first, and where to read more.

    CODE stands behind a message on the terminal. Without one, give the message itself, or a part of it in quotes.
    docs/MESSAGES.md lists all of them.

    \b
      holdfast explain hf-2rbqh
      holdfast explain "there is no job train-x7k2m; \\`holdfast list\\` lists the ones that exist"
      holdfast explain "Address already in use"
    """
    text = " ".join(message).strip().removeprefix("holdfast:").strip()
    index = Index.read()
    found = list(by_code(_find(index.messages, text)).values())
    sections = [] if found else [each for each in index.sections if each.is_about(text)]
    if sections:  # the system's words, or a line that is no error
        click.echo(printable("\n\n".join(f"{each.heading}\n{_told(each)}" for each in sections[:SHOWN_MAX])))
        return
    if not found:
        raise UsageError(f"no message of Holdfast is '{text}': give its code, like {PREFIX}2rbqh, or its words")
    click.echo(printable("\n\n".join(_explain(index, same) for same in found[:SHOWN_MAX])))
    if len(found) > SHOWN_MAX:
        click.echo(f"\n{len(found) - SHOWN_MAX} more have these words; give more of the message")


def _find(messages: list[Found], text: str) -> list[Found]:
    """Return the messages that a code or a text names: those that it is, else those that it is a part of."""
    code = text.strip("[]").lower()
    if named := [one for one in messages if one.code in (code, f"{PREFIX}{code}")]:
        return named
    exact = [one for one in messages if matches(one.text, text)]
    # A template that is little more than holes fits almost anything; the one with the most words is meant.
    if exact:
        meant = max(exact, key=lambda one: len(one.text)).code
        return [one for one in exact if one.code == meant]
    return [one for one in messages if text.casefold() in one.text.casefold()]


def _explain(index: Index, same: list[Found]) -> str:
    first = same[0]
    area = area_of(first.module)
    section = index.section_of(first.code)
    pages = [f"docs/MESSAGES.md#{first.code}", *([f"docs/{area.page}"] if area.page else [])]
    lines = [
        f"{first.code}  {first.text}",
        f"  kind     {first.kind}: {BLAME[index.faults[first.kind]]}",
        f"  part     {area.title}: {area.first}",
        f"  more     {', '.join(pages)}",
        f"  source   {', '.join(_place(one) for one in same)}",
    ]
    return "\n".join([*lines, *([_told(section)] if section else [])])


def _told(section: Section) -> str:
    """Return what the docs say, a paragraph after the other, and where."""
    paragraphs = [*section.words.split("\n\n"), f"docs/TROUBLESHOOTING.md#{section.anchor}"]
    return "\n".join(fill(each, WIDTH, initial_indent="  ", subsequent_indent="  ") for each in paragraphs)


def _place(one: Found) -> str:
    line = line_of(one.module, one.code)
    return f"holdfast/{one.module}:{line}" if line else f"holdfast/{one.module}"
