"""Classification: what kind of failure a worker's end was, from the evidence it left.

The rules, first match wins:

1. We ended it because it hung: TIMEOUT.
2. We had signalled it before it died: STOPPED, however it died. Something else was the reason to stop it.
3. SIGKILL that we did not send, while the kernel counted an out-of-memory kill: OUT_OF_MEMORY.
4. Its own words say that a peer went away: VICTIM. The words are the error file's message, or, where there
   is none, its last log lines. A true failure elsewhere then wins over it; if there is none, it is still
   reported.
5. An exception in the error file: EXCEPTION, or EXIT where the exception is SystemExit.
6. A signal: SIGNAL. Anything else: EXIT.
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
    """All that the agent knows about one worker's end.

    `oom_kills` is how many kills for want of memory the kernel counted while the worker lived.
    """

    exit_code: int
    error: ErrorData | None = None
    signalled_by_us: bool = False
    timed_out: bool = False
    oom_kills: int = 0
    log_lines: tuple[str, ...] = ()


#: What workers say when the other end of a collective or of the store has gone.
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
    | the\ round\ is\ broken
    """,
    re.IGNORECASE | re.VERBOSE,
)

#: How many of the last log lines are searched for those words.
WORDS_LINES_MAX = 20


def speaks_as_victim(text: str) -> bool:
    """Whether these words blame a peer that went away."""
    return _VICTIM_WORDS.search(text) is not None


def classify(evidence: Evidence) -> Kind:
    """Tell what kind of failure the evidence shows; `exit_code` is not 0."""
    if evidence.timed_out:
        return Kind.TIMEOUT
    if evidence.signalled_by_us:
        return Kind.STOPPED
    if evidence.exit_code == -signal.SIGKILL:
        return Kind.OUT_OF_MEMORY if evidence.oom_kills > 0 else Kind.SIGNAL
    if evidence.error is not None:
        if speaks_as_victim(evidence.error.message):
            return Kind.VICTIM
        return Kind.EXIT if evidence.error.type_name == "SystemExit" else Kind.EXCEPTION
    if speaks_as_victim("\n".join(evidence.log_lines[-WORDS_LINES_MAX:])):
        return Kind.VICTIM
    return Kind.SIGNAL if evidence.exit_code < 0 else Kind.EXIT


def explain(kind: Kind, evidence: Evidence, last_line: str = "") -> str:
    """Say in one sentence what happened, for the report's first line.

    A process that left no error of its own is explained by the last line that it wrote, where that is given.
    """
    name = signal_name(evidence.exit_code)
    ended = f"killed by {name}" if name else f"exited with code {evidence.exit_code}"
    if kind is Kind.OUT_OF_MEMORY:
        return "out of memory: killed by the kernel (SIGKILL, and the kernel counted an out-of-memory kill)"
    if kind is Kind.TIMEOUT:
        return f"hung; {ended}"
    if kind is Kind.STOPPED:
        return f"stopped by its agent; {ended}"
    if evidence.error is not None and evidence.error.exit_message:
        return f"{evidence.error.exit_message} (exit code {evidence.exit_code})"
    if evidence.error is not None and evidence.error.message:
        return evidence.error.message
    if name == "SIGKILL":
        ended = "killed by SIGKILL from outside Holdfast (often the kernel's OOM killer: see dmesg)"
    if last_line and evidence.error is None:
        return f"{ended}; its last line was: {last_line}"
    return ended if name else f"{ended} without a traceback"
