"""The report: a verdict as plain text. Everything appears once, and the reason comes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.failures import stacks
from holdfast.failures.failure import Failure, Kind
from holdfast.failures.verdict import Verdict, first_line, where

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHERS_MAX = 8
LOG_LINES_MAX = 30

#: Explanations of kinds whose message does not say enough.
_NOTES = {
    Kind.VICTIM: "a peer went away; the reason is unknown",
    Kind.START: "the worker could not be started",
    Kind.LOST_NODE: "the node was lost",
}


@dataclass(frozen=True, slots=True)
class Around:
    """What the reader of a report knows or needs besides the verdict.

    `exit_code` is the launcher's, where that is not the verdict's own, as after a crash loop. `over` says why the job
    was not restarted. `logs` is the run's log folder. With `shown` the worker's own output stands on the same screen,
    with `stacks_shown` the warning about its hang. `told_by` says which other report has the traceback, so that this
    one leaves it out.
    """

    exit_code: int | None = None
    over: str = ""
    logs: str = ""
    shown: bool = False
    stacks_shown: bool = False
    told_by: str = ""


def render(verdict: Verdict, around: Around = Around()) -> str:  # noqa: B008 - frozen
    """Return the report: the evidence, what happened, which worker, when, and where the logs are."""
    return "\n".join([*evidence(verdict, around), first_line(verdict.cause), *details(verdict, around)]) + "\n"


def evidence(verdict: Verdict, around: Around = Around()) -> Iterator[str]:  # noqa: B008 - frozen
    """Yield the traceback, the stacks and the last log lines, as far as they are not on the screen already."""
    cause = verdict.cause
    if around.told_by:
        return
    lines = _without_traceback(cause)
    printed = bool(cause.extra.get("printed")) or lines != cause.log_lines
    if lines and not around.shown:
        yield f"the last lines of {where(cause)}:"
        yield from (f"  | {line}" for line in lines[-LOG_LINES_MAX:])
    if cause.traceback.strip() and not (around.shown and printed):
        yield f"the traceback of {where(cause)}:"
        yield from (f"  {line}" for line in cause.traceback.rstrip().splitlines())
    if cause.stacks and not around.stacks_shown:
        yield "where each rank was, innermost call first:"
        yield from (f"  {line}" for line in stacks.render(cause.stacks).splitlines())


def details(verdict: Verdict, around: Around = Around()) -> Iterator[str]:  # noqa: B008 - frozen
    """Yield the lines below the sentence that says what happened, which is `first_line` of the cause."""
    cause = verdict.cause
    same = [each for each in verdict.others if (each.kind, each.message) == (cause.kind, cause.message)]
    yield from (f"  {line}" for line in cause.message.strip().splitlines()[1:])
    yield f"  who      {_who(cause, same)}"
    if note := _NOTES.get(cause.kind, ""):
        yield f"  note     {note}"
    if exited := _exit(verdict, around):
        yield f"  exit     {exited}"
    if when := "; ".join(filter(None, [_when(cause), around.over])):
        yield f"  when     {when}"
    yield from _others([each for each in verdict.others if each not in same])
    if around.told_by:
        yield f"  more     {around.told_by}"
    if logs := _logs(cause, around):
        yield f"  logs     {logs}"


def _who(cause: Failure, same: list[Failure]) -> str:
    """Name the rank that failed; ranks that failed with the same error are listed with it."""
    ranks = [each.rank for each in same if each.rank is not None and each.host == cause.host]
    if cause.rank is None or not ranks:
        return where(cause)
    host = f" on {cause.host}" if cause.host else ""
    first = where(cause).removesuffix(host)
    return f"{stacks.name_ranks([cause.rank, *ranks])}{host}; the first was {first}"


def _exit(verdict: Verdict, around: Around) -> str:
    code = verdict.cause.exit_code
    if code is None:
        return ""
    launcher = verdict.exit_code if around.exit_code is None else around.exit_code
    name = f" ({verdict.cause.signal_name})" if verdict.cause.signal_name else ""
    return f"{code}{name}" + (f"; the launcher exits with {launcher}" if launcher != code else "")


def _when(failure: Failure) -> str:
    parts = []
    if failure.round is not None:
        parts.append(f"round {failure.round}")
    if failure.attempt is not None:
        parts.append(f"attempt {failure.attempt}")
    return ", ".join(parts)


def _logs(failure: Failure, around: Around) -> str:
    """Name the folder of the worker's own files, or that of the run where the worker's output was not kept."""
    folders = dict.fromkeys(path.rpartition("/")[0] for path in failure.log_files)
    return ", ".join(folders) or around.logs


def _without_traceback(failure: Failure) -> tuple[str, ...]:
    """Return the last log lines, without a traceback at their end that is shown already."""
    shown = tuple(failure.traceback.rstrip().splitlines())
    lines = failure.log_lines
    return lines[: -len(shown)] if shown and lines[-len(shown) :] == shown else lines


def _others(others: list[Failure]) -> Iterator[str]:
    """Name the others that failed; workers that we stopped are left out."""
    told = [failure for failure in others if failure.kind is not Kind.STOPPED]
    lines = [f"{where(failure)}: {first_line(failure)}" for failure in told[:OTHERS_MAX]]
    if len(told) > OTHERS_MAX:
        lines.append(f"and {len(told) - OTHERS_MAX} more")
    yield from (f"  {'also' if index == 0 else '    '}     {line}" for index, line in enumerate(lines))
