"""`holdfast top`: live runs, in place."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType

import click

from holdfast.cli.names import complete_runs, find_run
from holdfast.errors import UsageError
from holdfast.printable import printable
from holdfast.quantities import parse_duration
from holdfast.view.top import Seen, as_line, render
from holdfast.view.watching import Watch

#: The size of the screen that --once draws where there is no terminal.
WIDTH, HEIGHT = 80, 24
INTERVAL_S_MIN = 0.1


@click.command()
@click.argument("run", metavar="[JOB]", default="", shell_complete=complete_runs)
@click.option("--interval", default="1s", metavar="TIME", show_default=True, help="Time between two looks.")
@click.option("--once", is_flag=True, help="Look once, print that, and end.")
def command(run: str, interval: str, once: bool) -> None:
    """Watch jobs live: rounds, ranks, steps per second, time lost and to what, CPU, memory and GPUs, the last events.

    Without JOB, all runs of this user on this host, live ones first; JOB is a job's handle or id, a run's id, or an
    unambiguous beginning of either. If the output is not a terminal, each look prints a line for each live run, until
    none is left; of a JOB that is over, how it ended.

    \b
      holdfast top
      holdfast top train-x7k2m
      holdfast top --once
      holdfast top --interval 10s >> top.log
    """
    interval_s = max(parse_duration(interval), INTERVAL_S_MIN)
    watch = Watch(find_run(run))
    if once:
        watch.look()
        time.sleep(min(interval_s, 1.0))  # CPU and steps per second are differences of two looks
        for line in render(watch.look(), 0, time.time(), _clock, *_size()):
            click.echo("".join(text for text, _ in line).rstrip())
    elif sys.stdout.isatty():
        _full_screen(watch, interval_s)
    else:
        _lines(watch, interval_s, named=bool(run))


def _full_screen(watch: Watch, interval_s: float) -> None:
    from holdfast.view.terminal import FullScreen

    chosen = ""
    signal.signal(signal.SIGTERM, _leave)
    with FullScreen() as screen:
        while True:
            runs = watch.look()
            names = [seen.state.run for seen in runs]
            at = names.index(chosen) if chosen in names else 0
            width, height = screen.size
            screen.draw(render(runs, at, time.time(), _clock, width, height))
            until = time.monotonic() + interval_s
            while (left := until - time.monotonic()) > 0:
                key = screen.wait_key(left)
                if key == "quit":
                    return
                if key and names:
                    at = (at + (1 if key == "down" else -1)) % len(names)
                    chosen = names[at]
                    screen.draw(render(runs, at, time.time(), _clock, width, height))


def _lines(watch: Watch, interval_s: float, *, named: bool) -> None:
    seen = watch.look()
    if not any(each.state.is_live for each in seen):
        if not seen:
            raise UsageError(
                "no run is live on this host, and none has been; `holdfast launch` or `holdfast run` starts one"
            )
        ending = seen[0].state.ending(time.time())
        if not named:
            raise UsageError(f"no run is live on this host; {ending}")
        click.echo(printable(ending))
        return
    while True:
        now = time.time()
        live = [each for each in seen if each.state.is_live]
        ended = _ended_since(seen, now - interval_s)
        for each in [*ended, *live]:
            click.echo(as_line(each, now, _clock))
        if not live:
            return
        time.sleep(interval_s)
        seen = watch.look()


def _ended_since(runs: list[Seen], when: float) -> list[Seen]:
    return [each for each in runs if not each.state.is_live and each.state.end >= when]


def _leave(number: int, frame: FrameType | None) -> None:
    """End by an exception, so that the terminal is put back as it was."""
    del frame
    sys.exit(128 + number)


def _size() -> tuple[int, int]:
    if not sys.stdout.isatty():
        return WIDTH, HEIGHT
    import shutil

    return shutil.get_terminal_size()


def _clock(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))
