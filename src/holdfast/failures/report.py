"""The report: a verdict as plain text for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.failures import stacks
from holdfast.failures.failure import Failure, Kind
from holdfast.failures.verdict import Verdict, first_line, where

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHERS_MAX = 8
LOG_LINES_MAX = 30

_WORDS = {
    Kind.EXCEPTION: "an uncaught exception",
    Kind.EXIT: "a non-zero exit",
    Kind.SIGNAL: "a fatal signal",
    Kind.OUT_OF_MEMORY: "out of memory",
    Kind.TIMEOUT: "a hang",
    Kind.START: "a worker that could not start",
    Kind.LOST_NODE: "a lost node",
    Kind.VICTIM: "a peer that went away (the true cause was not seen)",
    Kind.STOPPED: "a stop",
}


def render(verdict: Verdict, exit_code: int | None = None) -> str:
    """Write the verdict out: who, what, traceback, stacks, last log lines, where the logs are, and who else fell.

    `exit_code` is the launcher's, where that is not the verdict's own, as after a crash loop.
    """
    return "\n".join(_lines(verdict, verdict.exit_code if exit_code is None else exit_code)) + "\n"


def _lines(verdict: Verdict, exit_code: int) -> Iterator[str]:
    cause = verdict.cause
    yield f"The job failed: {_WORDS[cause.kind]}."
    yield f"  who      {where(cause)}"
    yield f"  what     {first_line(cause)}"
    yield from (f"           {line}" for line in cause.message.strip().splitlines()[1:])
    if cause.exit_code is not None:
        name = f" ({cause.signal_name})" if cause.signal_name else ""
        yield f"  exit     {cause.exit_code}{name}; the launcher exits with {exit_code}"
    if cause.round is not None or cause.attempt is not None:
        yield f"  when     {_when(cause)}"
    for index, path in enumerate(cause.log_files):
        yield f"  {'logs' if index == 0 else '    '}     {path}"
    if cause.traceback.strip():
        yield ""
        yield from (f"  {line}" for line in cause.traceback.rstrip().splitlines())
    if cause.stacks:
        yield ""
        yield "  where everybody was, the innermost call first:"
        yield from (f"  {line}" for line in stacks.render(cause.stacks).splitlines())
    lines = _without_traceback(cause)
    if lines:
        yield ""
        yield "  its last lines:"
        yield from (f"  | {line}" for line in lines[-LOG_LINES_MAX:])
    if verdict.others:
        yield ""
        yield from _others(verdict.others)


def _without_traceback(failure: Failure) -> tuple[str, ...]:
    """Return the last log lines, without a traceback at their end that is shown already."""
    shown = tuple(failure.traceback.rstrip().splitlines())
    lines = failure.log_lines
    return lines[: -len(shown)] if shown and lines[-len(shown) :] == shown else lines


def _when(failure: Failure) -> str:
    parts = []
    if failure.round is not None:
        parts.append(f"round {failure.round}")
    if failure.attempt is not None:
        parts.append(f"attempt {failure.attempt}")
    return ", ".join(parts)


def _others(others: tuple[Failure, ...]) -> Iterator[str]:
    shown = [failure for failure in others if failure.kind is not Kind.STOPPED][:OTHERS_MAX]
    stopped = Counter(failure.kind for failure in others)[Kind.STOPPED]
    if shown:
        yield "  others that fell:"
        yield from (f"  - {where(failure)}: {first_line(failure)}" for failure in shown)
    hidden = len(others) - len(shown) - stopped
    if hidden:
        yield f"  - and {hidden} more"
    if stopped:
        yield f"  {stopped} more {'was' if stopped == 1 else 'were'} stopped because of this."
