"""Classification: the kind of a worker's failure, from the evidence it left.

The rules, first match wins:

1. We ended it because it hung: TIMEOUT.
2. We had signalled it before it died: STOPPED, however it died.
3. SIGKILL that we did not send, while the kernel counted an out-of-memory kill: OUT_OF_MEMORY.
4. Its error file says that no restart can mend it: EXCEPTION.
5. Its error file or, without one, its last log lines say that a peer went away: VICTIM. A failure of another
   worker is then the root cause; if there is none, the victim is reported.
6. An exception in the error file: EXCEPTION, or EXIT where the exception is SystemExit.
7. A signal: SIGNAL. Anything else: EXIT.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.failures.failure import Kind, signal_name

if TYPE_CHECKING:
    from holdfast.failures.errorfile import ErrorData


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the agent knows about the end of one worker.

    `oom_kills` is how many out-of-memory kills the kernel counted while the worker lived.
    """

    exit_code: int
    error: ErrorData | None = None
    signalled_by_us: bool = False
    timed_out: bool = False
    oom_kills: int = 0
    log_lines: tuple[str, ...] = ()


#: Messages of workers whose peer in a collective or in the store went away.
_VICTIM_WORDS = re.compile(
    r"""
      connection\ (?:was\ )?(?:reset|closed|aborted)\ by\ (?:remote\ )?peer
    | connection\ was\ likely\ closed
    | socket\ closed\ by\ peer | peer\ (?:closed|has\ closed)\ (?:the\ )?connection
    | failed\ to\ recv,\ got\ 0\ bytes
    | connectionreseterror | brokenpipeerror | broken\ pipe | connectionlost
    | ncclremoteerror | nccl\ (?:communicator|comm)\b.{0,40}\babort
    | remote\ process\ (?:has\ )?(?:exited|terminated)
    | watchdog\ caught\ collective\ operation\ timeout | some\ nccl\ operations\ have\ failed\ or\ timed\ out
    | timed\ out\ waiting\ \d+\s?ms\ for\ (?:recv|send)\ operation
    | application\ timeout\ caused\ pair\ closure
    | distnetworkerror | diststoreerror
    | the\ round\ is\ broken | a\ worker\ of\ the\ same\ replica\ is\ gone
    """,
    re.IGNORECASE | re.VERBOSE,
)

#: How many of the last log lines are searched for them.
WORDS_LINES_MAX = 20


def speaks_as_victim(text: str) -> bool:
    """Whether this text blames a peer that went away."""
    return _VICTIM_WORDS.search(text) is not None


def classify(evidence: Evidence) -> Kind:
    """Return the kind of failure that the evidence shows; `exit_code` is not 0."""
    if evidence.timed_out:
        return Kind.TIMEOUT
    if evidence.signalled_by_us:
        return Kind.STOPPED
    if evidence.exit_code == -signal.SIGKILL:
        return Kind.OUT_OF_MEMORY if evidence.oom_kills > 0 else Kind.SIGNAL
    if evidence.error is not None:
        if evidence.error.ends_job:
            return Kind.EXCEPTION
        if speaks_as_victim(evidence.error.message):
            return Kind.VICTIM
        return Kind.EXIT if evidence.error.type_name == "SystemExit" else Kind.EXCEPTION
    if speaks_as_victim("\n".join(evidence.log_lines[-WORDS_LINES_MAX:])):
        return Kind.VICTIM
    return Kind.SIGNAL if evidence.exit_code < 0 else Kind.EXIT


def reason(kind: Kind, evidence: Evidence) -> str:
    """Return why a process ended, beyond its exit code; empty if the exit code is all that is known."""
    if kind is Kind.OUT_OF_MEMORY:
        return "out of memory: killed by the kernel (SIGKILL, and the kernel counted an out-of-memory kill)"
    if kind is Kind.TIMEOUT:
        return "hung"
    if kind is Kind.STOPPED:
        return "stopped by its agent"
    if evidence.error is not None and (said := evidence.error.exit_message or evidence.error.message):
        return said
    if evidence.exit_code == -signal.SIGKILL:
        return "from outside Holdfast (often the kernel's OOM killer: see dmesg)"
    return ""


def describe_exit(exit_code: int | None) -> str:
    """Return what an exit code means, as a noun phrase; a shell's 128+n is a signal too."""
    if exit_code is None:
        return "no exit code is known"
    if exit_code < 0:
        return how_it_ended(exit_code)
    name = signal_name(128 - exit_code) if 128 < exit_code < 128 + signal.NSIG else ""
    return f"exit code {exit_code}, {name}" if name in signal.Signals.__members__ else f"exit code {exit_code}"


def how_it_ended(exit_code: int) -> str:
    """Return what an exit code says in words."""
    name = signal_name(exit_code)
    return f"killed by {name}" if name else f"exited with code {exit_code}"


def explain(kind: Kind, evidence: Evidence) -> str:
    """Return one sentence about what happened, for the report's first line."""
    ended, why = how_it_ended(evidence.exit_code), reason(kind, evidence)
    if not why:
        return ended if evidence.exit_code < 0 else f"{ended} without a traceback"
    if kind in (Kind.TIMEOUT, Kind.STOPPED):
        return f"{why}; {ended}"
    if evidence.error is not None and evidence.error.exit_message == why:
        return f"{why} (exit code {evidence.exit_code})"
    has_words = evidence.error is not None and bool(evidence.error.message)
    return f"{ended} {why}" if kind is Kind.SIGNAL and not has_words else why
