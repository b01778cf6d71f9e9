"""`holdfast events`: the story of a run, from its journals."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime

import click

from holdfast.cli.names import complete_runs, find_run, job_without_journal
from holdfast.errors import UnknownRunError, UsageError
from holdfast.events.finding import Story, find_story
from holdfast.events.index import live_run, recent_runs
from holdfast.events.story import Columns, Filters, Told, after_start
from holdfast.events.times import parse_time
from holdfast.facts import LEVELS

#: How often a followed file is read.
LOOK_S = 0.2
#: How long a run to follow may take to appear: a launch that was typed a moment ago is still importing.
APPEAR_S = 10.0

_COLOURS = {"debug": "bright_black", "warning": "yellow", "error": "red"}


@click.command()
@click.argument("run_or_file", metavar="[RUN]", required=False, default="", shell_complete=complete_runs)
@click.option("--kind", "-k", "kinds", multiple=True, help="Only this kind of fact, as in 'round_*'; may be repeated.")
@click.option("--level", type=click.Choice(list(LEVELS)), default="debug", help="Only facts of this level and above.")
@click.option("--node", "nodes", multiple=True, help="Only what concerns this host or node; may be repeated.")
@click.option("--round", "-r", "rounds", type=int, multiple=True, help="Only what happened in this round.")
@click.option("--since", help="Only later facts: 10m (ago), 14:05, or 2026-01-31T14:05.")
@click.option("--until", help="Only earlier facts; written as for --since.")
@click.option("--grep", "-g", "--regex", help="Only sentences that match this regular expression, in any case.")
@click.option("--tail", "-n", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends; without RUN, the newest live one.")
@click.option("--all", "everything", is_flag=True, help="Earlier runs that had the same id too.")
@click.option("--clock", is_flag=True, help="Tell times by the clock instead of from the start.")
@click.option("--json", "as_json", is_flag=True, help="Print the journals' lines as they stand.")
def command(
    run_or_file: str,
    kinds: tuple[str, ...],
    level: str,
    nodes: tuple[str, ...],
    rounds: tuple[int, ...],
    since: str | None,
    until: str | None,
    grep: str | None,
    tail: int | None,
    follow: bool,
    everything: bool,
    clock: bool,
    as_json: bool,
) -> None:
    """Show a run's event log: which nodes joined, what failed and why, how long things took.

    RUN is a run's id, a job's handle or id, or an unambiguous beginning of either; a journal or a log folder
    also works. Without it, the latest run on this host. A line has the time since the start, a mark for
    warnings, the round, and if there are several, the node. The name of the run goes to stderr.

    \b
      holdfast events --follow                     the newest live run
      holdfast events job7 --level warning
      holdfast events local://holdfast/train-x7k2m --tail 20
      holdfast events logs/job7_x2k1/journal.jsonl --round 2 --json
    """
    try:
        story = _wait_story(run_or_file, everything) if follow else _find(run_or_file, everything)
    except KeyboardInterrupt:
        sys.exit(130)
    told = story.read()
    click.echo(f"holdfast: {story.title()}", err=True)
    filters = Filters(
        kinds=kinds,
        level=level,
        nodes=nodes,
        rounds=frozenset(rounds),
        since=_time(since, story),
        until=_time(until, story),
        grep=_pattern(grep),
    )
    shown = [line for line in told if filters.let_through(line)]
    if tail is not None:
        shown = shown[max(len(shown) - tail, 0) :]
    _show(story, shown, filters if follow else None, _raw if as_json else _columns(story, clock, shown))
    for note in story.notes():
        click.echo(f"holdfast: {note}", err=True)


def _show(story: Story, shown: list[Told], follow: Filters | None, tell: Callable[[Told], None]) -> None:
    """Print lines, and with `follow` those that come and pass it, until the run ends or the reader has enough."""
    try:
        for line in shown:
            tell(line)
        if follow is not None:
            _follow(story, follow, tell)
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()  # the reader closed the pipe
    except KeyboardInterrupt:
        sys.exit(130)


def _find(text: str, everything: bool) -> Story:
    """Find the run that the user means; an unknown one is explained."""
    try:
        return find_story(find_run(text), everything=everything)
    except UnknownRunError:
        if text and (sentence := job_without_journal(text)):
            raise UsageError(sentence) from None
        raise


def _wait_story(text: str, everything: bool) -> Story:
    """Find the run to follow: the newest live one if none is named. Waits for one that is just starting."""
    until, told = time.monotonic() + APPEAR_S, False
    while True:
        run = text or live_run() or ""
        try:
            if run:
                return find_story(find_run(run), everything=everything)
        except UnknownRunError:
            if time.monotonic() >= until:
                return _find(text, everything)
        if time.monotonic() >= until:
            raise UsageError(_none_live())
        if not told:
            what, which = (f"there is no run '{text}' yet", "it") if text else ("no run is live on this host", "one")
            click.echo(f"holdfast: {what}; waiting {APPEAR_S:g} s for {which} to start", err=True)
            told = True
        time.sleep(LOOK_S)


def _none_live() -> str:
    newest = recent_runs(1)
    shown = f"; `holdfast events {newest[0]}` shows the newest one, which has ended" if newest else ""
    return f"no run has started within {APPEAR_S:g} s{shown}"


def _follow(story: Story, filters: Filters, tell: Callable[[Told], None]) -> None:
    while True:
        over = story.is_over()  # asked before reading: what was written before the end is then read
        for line in story.read():
            if filters.let_through(line):
                tell(line)
        sys.stdout.flush()
        if over:
            return
        time.sleep(LOOK_S)


def _columns(story: Story, clock: bool, shown: list[Told]) -> Callable[[Told], None]:
    # A followed journal may still be empty, so the start is looked up for each line.
    columns = Columns(_clock if clock else lambda when: after_start(story.start)(when), story.label)
    columns.make_room(shown)
    color = False if os.environ.get("NO_COLOR") else None

    def tell(line: Told) -> None:
        colour = _COLOURS.get(line.entry.level)
        text = columns.tell(line)
        click.echo(click.style(text, fg=colour) if colour else text, color=color)

    return tell


def _raw(line: Told) -> None:
    click.echo(line.text)


def _clock(when: float) -> str:
    return datetime.fromtimestamp(when).astimezone().strftime("%H:%M:%S.%f")[:-5]


def _time(text: str | None, story: Story) -> float | None:
    now = time.time()
    return parse_time(text, now, story.latest or now) if text else None


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return re.compile(text, re.IGNORECASE) if text else None
    except re.error as error:
        raise UsageError(f"'{text}' is not a regular expression: {error}") from None


def _forget_stdout() -> None:
    """Keep Python's last flush from complaining about a closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
