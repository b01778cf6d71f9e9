"""`holdfast page`: runs and jobs in a browser."""

from __future__ import annotations

import sys
import webbrowser
from functools import partial
from typing import TYPE_CHECKING

import click

from holdfast.errors import UsageError
from holdfast.threads import start_thread

if TYPE_CHECKING:
    from holdfast.page.server import PageServer


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on loopback.  [default: a free one]")
@click.option("--allow-kill", is_flag=True, help="Let the page kill workers and nodes of runs, to see them survive.")
@click.option("--open", "open_", is_flag=True, help="Open the page in this machine's browser.")
@click.option(
    "--until-eof", is_flag=True, hidden=True, help="End when stdin is closed, as by the program that began it."
)
def command(port: int, allow_kill: bool, open_: bool, until_eof: bool) -> None:
    """Serve a live page of this user's runs and jobs: timelines by rank, goodput, logs, stacks, failures.

    Prints a link that works once and for one browser; a new one is printed after each use. Only this machine can reach
    the page, and it changes nothing unless --allow-kill is given. From another machine, forward the port:
    ssh -L 8266:localhost:8266 HOST. Ctrl-C ends it; runs go on. Needs pip install 'holdfast[page]'.

    \b
      holdfast page
      holdfast page --port 8266
      holdfast page --allow-kill --open
    """
    try:
        from holdfast.page.server import PageServer
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise UsageError(f"the page needs {error.name}: pip install 'holdfast[page]'") from None
    server = PageServer(port, allow_kill=allow_kill, tell=_say)
    click.echo(server.link)
    _say("the page is served until Ctrl-C; the link works once")
    sys.stdout.flush()
    if until_eof:
        start_thread(partial(_stop_at_eof, server), "holdfast page stdin")
    if open_:
        webbrowser.open(server.link)
    server.run()


def _stop_at_eof(server: PageServer) -> None:
    sys.stdin.buffer.read()
    server.stop()


def _say(sentence: str) -> None:
    click.echo(f"holdfast: {sentence}", err=True)
