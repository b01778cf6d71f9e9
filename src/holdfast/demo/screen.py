"""What the demo shows: one living line per worker on a terminal, plain lines anywhere else, and a table at the end."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TextIO

from holdfast.demo.story import LOSS_GOAL, Recovery, Report, Row, Tone

if TYPE_CHECKING:
    from rich.table import Table

#: Plain output tells of progress this often.
PROGRESS_STEPS = 20
BAR_WIDTH = 24
HEADINGS = ("what was killed", "seconds to be training again", "steps lost", "then")


class Screen(ABC):
    """Shows the demo as it goes; use as a context manager around it."""

    def __init__(self) -> None:
        self._began: float | None = None

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - a plain screen has nothing to close
        """Leave the terminal as it was found."""

    @abstractmethod
    def tell(self, sentence: str, now: float, tone: Tone = Tone.PLAIN) -> None:
        """Show a line about something that happened now."""

    @abstractmethod
    def draw(self, rows: list[Row], now: float) -> None:
        """Show how the workers are now."""

    @abstractmethod
    def conclude(self, report: Report) -> None:
        """Show what it all cost."""

    def _stamp(self, now: float) -> str:
        if self._began is None:
            self._began = now
        return f"{now - self._began:5.1f} s"


class PlainScreen(Screen):
    """Lines for a file or a pipe."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out
        self._told = 0

    def tell(self, sentence: str, now: float, tone: Tone = Tone.PLAIN) -> None:
        del tone
        self._line(f"{self._stamp(now)}  {sentence}")

    def draw(self, rows: list[Row], now: float) -> None:
        """Write a line every so many steps."""
        training = [row for row in rows if row.state == "training"]
        if not training:
            return
        latest = max(training, key=lambda row: row.step)
        if latest.step >= self._told + PROGRESS_STEPS:
            self._told = latest.step - latest.step % PROGRESS_STEPS
            self.tell(f"step {latest.step}, loss {latest.loss:.4f}", now)

    def conclude(self, report: Report) -> None:
        """Write the table with aligned columns, and the last line."""
        if report.recoveries:
            lines = [HEADINGS, *(cells(recovery) for recovery in report.recoveries)]
            widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
            self._line("")
            for index, line in enumerate(lines):
                self._line("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
                if index == 0:
                    self._line("  ".join("-" * width for width in widths))
        self._line("")
        self._line(report.sentence if report.succeeded else f"failed: {report.sentence}")

    def _line(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


class LiveScreen(Screen):
    """A terminal: events scroll by above the workers' lines, which are drawn over and over."""

    def __init__(self, out: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self._console = Console(file=out, highlight=False)
        # No thread of its own: the demo's loop says when to draw.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def close(self) -> None:
        """Take the workers' lines off the terminal."""
        self._live.stop()

    def tell(self, sentence: str, now: float, tone: Tone = Tone.PLAIN) -> None:
        from rich.text import Text

        style = {Tone.GOOD: "green", Tone.BAD: "bold red", Tone.PLAIN: ""}[tone]
        self._console.print(Text.assemble((f"{self._stamp(now)}  ", "dim"), (sentence, style)))

    def draw(self, rows: list[Row], now: float) -> None:
        del now
        self._live.update(_workers(rows), refresh=True)

    def conclude(self, report: Report) -> None:
        """Print the table and the last line below everything."""
        from rich.table import Table
        from rich.text import Text

        self.close()
        if report.recoveries:
            table = Table(*HEADINGS, title_justify="left")
            for recovery in report.recoveries:
                table.add_row(*cells(recovery))
            self._console.print(table)
        sentence, style = (report.sentence, "green") if report.succeeded else (f"failed: {report.sentence}", "bold red")
        self._console.print(Text(sentence, style))


def make_screen(out: TextIO | None = None) -> Screen:
    """Return a living screen for a terminal and a plain one for anything else."""
    out = sys.stdout if out is None else out
    return LiveScreen(out) if out.isatty() else PlainScreen(out)


def cells(recovery: Recovery) -> tuple[str, ...]:
    """Return a recovery as a line of the table."""
    return (
        recovery.what,
        f"{recovery.seconds:.2f}",
        str(recovery.steps_lost),
        f"round {recovery.round}, {recovery.workers} workers",
    )


def _workers(rows: list[Row]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("node", "rank", "pid", "round", "step", "loss", "", "", box=None, header_style="dim", pad_edge=False)
    for row in rows:
        style = {"training": "", "killed": "red", "stopped": "yellow"}[row.state]
        told = (row.node, row.rank, row.pid, row.round, row.step, f"{row.loss:.4f}")
        table.add_row(
            *(Text(str(each), style) for each in told),
            Text(bar(row.loss) if row.state == "training" else "", "cyan"),
            Text(row.state, style or "green"),
        )
    return table


def bar(loss: float) -> str:
    """Draw a loss by its order of magnitude: full at 10, empty if only noise is left."""
    low, high = math.log(LOSS_GOAL), math.log(10.0)
    share = (math.log(max(loss, LOSS_GOAL)) - low) / (high - low)
    return "█" * max(1, round(BAR_WIDTH * min(share, 1.0)))
