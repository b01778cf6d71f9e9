"""Following a job: its output, its end, and Ctrl-C in between."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any, TextIO

from holdfast.cli.log_screen import LogScreen, Who, is_coloured, last_lines, replicas_of
from holdfast.errors import JobTimeoutError
from holdfast.failures.classify import describe_exit
from holdfast.printable import printable
from holdfast.runner.api import Runner
from holdfast.specs import AppDef, AppState, AppStatus, ReplicaStatus

#: Lines of the failed replica that are shown again.
LAST_LINES = 10
#: Failed replicas that are named.
NAMED_MAX = 8
#: How long a cancelled job may take to end before we leave it to its scheduler.
CANCEL_WAIT_S = 60.0
_RED, _GREEN, _YELLOW = 31, 32, 33


class Interrupted(Exception):
    """The user pressed Ctrl-C, or SIGTERM arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Interrupts:
    """Turns SIGINT and SIGTERM into `Interrupted`, but not while a job is being submitted: the job would be lost.

    The first signal waits for `let_through`; a second one raises at once.
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._kept: int | None = None
        self._open = False

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def let_through(self) -> None:
        """Raise `Interrupted` for a signal that came, and for every one from now on."""
        self._open = True
        if self._kept is not None:
            raise Interrupted(self._kept)

    def ignore(self) -> None:
        """Ignore further signals: a third Ctrl-C means the same as the second."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._open or self._kept is not None:
            raise Interrupted(number)
        self._kept = number


def follow_job(runner: Runner, handle: str, app: AppDef, interrupts: Interrupts, *, with_logs: bool) -> int:
    """Follow a job until it has ended, and return the exit code for it.

    Output and messages go to stderr: stdout has only the handle, for scripts.
    """
    with LogScreen(runner, handle, replicas_of(app) if with_logs else [], sys.stderr) as screen:
        try:
            interrupts.let_through()
            screen.start()
            _wait_logs(screen)
            status = runner.wait(handle)
        except Interrupted as first:
            return _cancel(runner, handle, screen, interrupts, first)
    return conclude(runner, handle, status, shown=with_logs)


def conclude(runner: Runner, handle: str, status: AppStatus | None, *, shown: bool = False) -> int:
    """Print how a job ended, with the replica that failed and why; return the exit code for it.

    With `shown` the replicas' output is on the screen already and is not repeated.
    """
    if status is None:
        say(f"{handle} is gone; its scheduler does not know how it ended", _RED)
        return 1
    if status.state is AppState.SUCCEEDED:
        say(f"{handle} succeeded", _GREEN)
        return 0
    failed = status.failed_replicas()
    ended = status.state.name.lower()
    if failed:
        _tell_failure(runner, handle, failed, ended, shown=shown)
    else:
        said = f": {status.msg}" if status.msg and not status.msg.endswith(ended) else ""
        say(f"{handle} {ended}{said}", _YELLOW if status.state is AppState.CANCELLED else _RED)
    say(where_logs_are(runner, handle))
    return status.exit_code


def where_logs_are(runner: Runner, handle: str) -> str:
    """Return where a job's logs are, if its scheduler knows, and which command shows them."""
    command = f"holdfast log {handle}"
    folder = runner.log_folder(handle)
    return f"logs: {folder} (`{command}` shows them)" if folder else f"logs: {command}"


def say(sentence: str, colour: int = 0, out: TextIO | None = None) -> None:
    """Print a message for the user."""
    out = out or sys.stderr
    name = f"\x1b[{colour}mholdfast:\x1b[0m" if colour and is_coloured(out) else "holdfast:"
    out.write(f"{name} {printable(sentence)}\n")
    out.flush()


def _wait_logs(screen: LogScreen, timeout_s: float | None = None) -> None:
    """Wait for the end of the output; a job whose output cannot be read goes on."""
    try:
        screen.wait_end(timeout_s)
    except Interrupted:
        raise
    except Exception as error:  # noqa: BLE001 - a scheduler of another package may raise anything
        say(f"the output cannot be followed: {error}", _YELLOW)


def _tell_failure(runner: Runner, handle: str, failed: list[ReplicaStatus], ended: str, *, shown: bool) -> None:
    first = failed[0]
    who = Who(first.role, first.id)
    traceback = first.traceback
    if not shown and (lines := traceback or last_lines(runner, handle, who, LAST_LINES)):
        say(f"the {'traceback' if traceback else 'last lines'} of {who}:")
        sys.stderr.write("".join(f"  | {line}\n" for line in lines))
    place = f"failed{' first' if len(failed) > 1 else ''} in {who}{_why(first, shown=shown)}"
    say(f"{handle} {place}" if ended == "failed" else f"{handle} {ended}; it {place}", _RED)
    others = [each for each in failed[1:] if each.cause != first.cause]
    same = [f"{each.role}/{each.id}" for each in failed[1:] if each.cause == first.cause]
    if same:
        say(f"ended for the same reason: {_some(same)}")
    if others:
        say(f"failed too: {_some([f'{each.role}/{each.id} ({describe_exit(each.exit_code)})' for each in others])}")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def _why(replica: ReplicaStatus, *, shown: bool = False) -> str:
    """Return how a replica ended and why, each once; with `shown` its last line is on the screen already."""
    if replica.exit_code is None and replica.cause:
        return f": {replica.cause}"
    reason = replica.cause if replica.reason is None else replica.reason
    if not reason and replica.last_line and not shown:
        reason = f"its last line was: {replica.last_line}"
    return f" ({describe_exit(replica.exit_code)}){f': {reason}' if reason else ''}"


def _cancel(runner: Runner, handle: str, screen: LogScreen, interrupts: Interrupts, first: Interrupted) -> int:
    """Cancel the job; kill it at a second Ctrl-C."""
    try:
        say(f"cancelling {handle}; press Ctrl-C again to kill it", _YELLOW)
        runner.cancel(handle)
        status = runner.wait(handle, timeout=CANCEL_WAIT_S)
        _wait_logs(screen, CANCEL_WAIT_S)
        say(f"{handle} is {'gone' if status is None else status.state.name.lower()}", _YELLOW)
    except Interrupted:
        interrupts.ignore()
        killed = runner.kill(handle)
        say(f"{handle} was {'killed' if killed else 'asked to end, and is left to its scheduler'}", _RED)
    except JobTimeoutError as error:
        say(str(error), _RED)
    return 128 + first.number
