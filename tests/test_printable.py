"""Text of others can be read on the screen, and do nothing else there."""

from __future__ import annotations

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.tables import render
from holdfast.facts import WARNING, Fact, facts
from holdfast.launcher.screen import Screen
from holdfast.printable import printable

EVIL = "host\x1b[2J\x1b]0;title\x07\x9b31m\r\u202egnp.exe"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, café, 数, 🙂\n\tindented", "plain text, café, 数, 🙂\n\tindented"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2Jcleared", "�[2Jcleared"),
        ("\x1b]0;title\x07", "�]0;title�"),
        ("over\rwritten\x08", "over�written�"),
        ("\x9b2J", "�2J"),
        ("caf\udce9.txt", "caf�.txt"),
        ("\u202egnp.exe", "�gnp.exe"),
    ],
)
def test_what_could_do_more_than_be_read_is_marked(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_nothing_that_moves_the_cursor_gets_through(text: str) -> None:
    shown = printable(text)

    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in shown)
    assert printable(shown) == shown
    shown.encode()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", ["waiting", "node_lost"])
def test_the_screen_shows_only_what_can_be_read(kind: str) -> None:
    terminal = Terminal()
    with Screen(out=terminal):
        facts.publish(Fact(kind, f"{EVIL} was lost", level=WARNING))

    ours = terminal.getvalue()
    for own in ("\r\x1b[K", "\x1b[2m", "\x1b[33m", "\x1b[0m"):
        ours = ours.replace(own, "")
    assert ours.strip() == f"holdfast: {printable(EVIL)} was lost"


def test_the_log_shows_only_what_can_be_read(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"):
        facts.warn("node_lost", f"{EVIL} was lost")

    assert caplog.messages == [f"{printable(EVIL)} was lost"]


def test_tables_show_only_what_can_be_read() -> None:
    assert render(["name"], [[EVIL]]).splitlines()[1] == printable(EVIL)
