"""Tables that fit the terminal, and data for programs. Pure but for the width of the screen."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import click

from holdfast.printable import printable
from holdfast.specs.outline import outline

__all__ = ["COLUMN_MIN", "outline", "render", "show", "show_json"]

#: No column is cut below this.
COLUMN_MIN = 8


def show(head: Sequence[str], rows: Iterable[Sequence[object]], *, keep_end: Collection[int] = ()) -> None:
    """Print a table; on a terminal it fits the screen, in a pipe nothing is cut.

    Columns of `keep_end` are cut at the front: handles differ at their end.
    """
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    click.echo(render(head, cells, _screen_width(), keep_end=keep_end))


def show_json(data: Any) -> None:
    """Print data for programs."""
    click.echo(json.dumps(data, indent=2, default=str))


def render(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None, *, keep_end: Collection[int] = ()
) -> str:
    """Lay out a table; where it is wider than `width`, the widest columns are cut."""
    lines = [list(head), *([_one_line(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > COLUMN_MIN:
        widths[widths.index(max(widths))] -= 1
    return "\n".join(
        "  ".join(
            _cut(cell, size, at_front=column in keep_end and line is not lines[0]).ljust(size)
            for column, (cell, size) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cut(cell: str, size: int, *, at_front: bool = False) -> str:
    if len(cell) <= size:
        return cell
    return "…" + cell[len(cell) - size + 1 :] if at_front else cell[: size - 1] + "…"


def _one_line(cell: str) -> str:
    return printable(" ".join(cell.split()) if "\n" in cell else cell)


def _screen_width() -> int | None:
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns
