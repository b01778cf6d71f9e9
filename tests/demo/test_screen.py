"""The demo's screens."""

from __future__ import annotations

import io

from holdfast.demo.screen import LiveScreen, PlainScreen, bar, make_screen
from holdfast.demo.story import LOSS_GOAL, Recovery, Report, Row, Tone

REPORT = Report(True, "all recovered", (Recovery("worker rank 3", 0.214, 1, 2, 4),))


def rows(step: int, state: str = "training") -> list[Row]:
    return [Row("A", rank, 70 + rank, 1, step, 0.5, state) for rank in range(2)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_carry_the_time_since_the_first() -> None:
    out = io.StringIO()
    screen = PlainScreen(out)
    screen.tell("starting", 100.0)
    screen.tell("killed worker rank 3", 102.5, Tone.BAD)

    assert out.getvalue() == "  0.0 s  starting\n  2.5 s  killed worker rank 3\n"


def test_plain_progress_is_told_every_twenty_steps() -> None:
    out = io.StringIO()
    screen = PlainScreen(out)
    for step in (0, 5, 19, 21, 22, 39, 40):
        screen.draw(rows(step), 0.0)
    screen.draw(rows(80, "stopped"), 0.0)
    screen.draw([], 0.0)

    assert [line.split("  ")[-1] for line in out.getvalue().splitlines()] == [
        "step 21, loss 0.5000",
        "step 40, loss 0.5000",
    ]


def test_the_plain_table_is_aligned() -> None:
    out = io.StringIO()
    PlainScreen(out).conclude(REPORT)

    assert out.getvalue().splitlines() == [
        "",
        "what was killed  seconds to be training again  steps lost  then",
        "---------------  ----------------------------  ----------  ------------------",
        "worker rank 3    0.21                          1           round 2, 4 workers",
        "",
        "all recovered",
    ]


def test_a_terminal_shows_every_worker_and_the_table() -> None:
    out = Terminal()
    with make_screen(out) as screen:
        assert isinstance(screen, LiveScreen)
        screen.tell("killed worker rank 3", 0.0, Tone.BAD)
        screen.draw([*rows(7), *rows(8, "killed"), *rows(9, "stopped")], 0.0)
        screen.conclude(REPORT)

    text = out.getvalue()
    for piece in ("killed worker rank 3", "training", "stopped", "█", "0.21", "all recovered"):
        assert piece in text


def test_what_is_no_terminal_gets_plain_lines() -> None:
    assert isinstance(make_screen(io.StringIO()), PlainScreen)


def test_the_bar_of_a_loss_shrinks_with_it() -> None:
    lengths = [len(bar(loss)) for loss in (100.0, 10.0, 1.0, 0.1, LOSS_GOAL, 0.0)]

    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 1
