"""Writes docs/VARIABLES.md from the table of variables: python tests/variables_page.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from holdfast.variables import FOUND, INTERNAL, SCHEDULERS, SETTABLE, TORCHRUNS, Variable

PAGE = Path(__file__).parent.parent / "docs" / "VARIABLES.md"
WIDTH = 140


def quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def table(head: str, rows: Sequence[Variable]) -> str:
    return "\n".join(
        [f"| variable | {head} |", "|---|---|", *(f"| {quoted(row.names)} | {row.text} |" for row in rows)]
    )


def wrapped(text: str) -> str:
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def page() -> str:
    theirs = ", ".join(f"`{name}`{f' ({remark})' if remark else ''}" for name, remark in TORCHRUNS.items())
    between = f"{INTERNAL.text}; do not set or read them: {quoted(INTERNAL.names)}. {SCHEDULERS.text}: "
    return "\n\n".join(
        [
            "# Environment variables",
            "## What you may set",
            table("what it does", SETTABLE),
            "## What a worker finds",
            wrapped(f"torchrun's: {theirs}, and these of ours:"),
            table("what it says", FOUND),
            "## Between Holdfast's own processes",
            wrapped(f"{between}{quoted(SCHEDULERS.names)}.") + "\n",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page())
