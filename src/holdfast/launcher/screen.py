"""The screen: facts as lines, the present wait on a terminal, and a report at the end."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from holdfast.agent.local import screen_name
from holdfast.events.entry import TIMED, Entry
from holdfast.facts import WARNING, Fact, facts
from holdfast.failures.failure import signal_name
from holdfast.failures.report import Around, details, evidence
from holdfast.failures.verdict import Verdict, first_line
from holdfast.launcher.api import LaunchReport
from holdfast.printable import printable
from holdfast.quantities import count, length

if TYPE_CHECKING:
    from holdfast.events.account import Account

#: Facts of an agent that are shown as lines; warnings are shown whatever they are.
SHOWN = frozenset(
    {
        "workers_started",
        "workers_stopping",
        "agent_left",
        "health_started",
        "workers_replaced",
        "workers_moved",
        "round_outlived",
        "no_heartbeats",
        "standby_ready",
    }
)
#: What a coordinator inside this process notes about nodes; their agents and ours tell the same from their side. How
#: the run ended is said by `conclude`, with the report.
HIDDEN = frozenset(
    {"node_gone", "round_broken", "round_sealed", "run_closed", "run_ended", "recovered", "worker_replaced"}
)
#: How long a line that the next one may make needless is held back.
HOLD_S = 0.7
#: Set for the replicas of a job, whose output one screen shows together.
JOB_VARIABLE = "HOLDFAST_JOB_ID"

_DIM, _RED, _GREEN, _YELLOW, _RESET = "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"


@dataclass(slots=True)
class _Held:
    """A line that waits to be shown; the next line shows it first (`keep`) or takes its place."""

    text: str
    keep: bool
    timer: threading.Timer


class Screen:
    """Shows a launch as it goes; use as a context manager around it.

    Everything goes to stderr: stdout belongs to the workers. Facts come from several threads, and so does the end of
    a wait: one lock keeps their lines apart.
    """

    def __init__(self, *, quiet: bool = False, as_json: bool = False, out: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stderr
        self._quiet = quiet
        self._json = as_json
        self._live = self._out.isatty() and not quiet and not as_json
        self._lock = threading.RLock()
        self._waiting = False
        self._held: _Held | None = None
        self._rounds = 0
        self._restarts = 0
        self._workers = 0
        #: What the account of the run's time is made of at the end.
        self._timed: list[Entry] = []
        #: Whether this node is the one that tells of the whole run, where one screen shows several.
        self._tells_run = True
        self._started = time.monotonic()
        self._stop: Callable[[], None] = lambda: None

    def __enter__(self) -> Screen:
        self._stop = facts.listen(self._on_fact)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        with self._lock:
            self._release()
            self._clear()

    # -- the end -------------------------------------------------------------------------------------------------------

    def conclude(self, report: LaunchReport) -> None:
        """Say how it ended: a line when it went well, the root cause when it did not."""
        with self._lock:
            self._conclude(report, length(time.monotonic() - self._started))

    def _conclude(self, report: LaunchReport, elapsed: str) -> None:
        outcome = report.outcome
        if self._json:
            verdict = report.verdict.to_json() if report.verdict is not None else None
            data = {"exit_code": report.exit_code, "verdict": verdict, "logs": report.logs or None}
            self._write_json("end", outcome.reason, data)
        elif outcome.signal:
            self._line(f"stopped by {signal_name(-outcome.signal)} after {elapsed}", _YELLOW)
            self._tell_account(report.logs)
        elif report.result.is_failed() and report.verdict is not None:
            self._tell_failure(report, report.verdict, elapsed)
        elif report.result.is_failed():
            self._line(f"failed after {elapsed}: {outcome.reason}", _RED)
            self._tell_account(report.logs)
        elif not self._rounds and not self._quiet:
            why = f"the run was over ({outcome.reason}) before this node had a place in it"
            self._line(f"nothing was run here: {why}; another --rdzv-id makes another run", _YELLOW)
        elif not self._quiet:
            # Every restart makes a round; there are more of them where nodes came and went.
            rounds = f", {count(self._rounds, 'round')}" if self._rounds > self._restarts + 1 else ""
            workers, restarts = count(self._workers, "worker"), count(self._restarts, "restart")
            from holdfast.events.summary import slowest_text  # at the end, so that no launch waits for the import

            slowest = slowest_text(self._account())
            self._line(
                f"finished in {elapsed}: {', '.join(filter(None, (workers, restarts + rounds, slowest)))}", _GREEN
            )
            self._tell_account(report.logs)

    def _tell_account(self, logs: str) -> None:
        """Say what became of the time and where the logs are."""
        if self._quiet or not self._tells_run:
            return
        from holdfast.events.summary import goodput_line

        account = self._account()
        if account.goodput is not None and (account.measured or logs):  # a report that names the logs has enough to say
            self._print(f"  goodput  {goodput_line(account)}")
        if logs:
            self._print(f"  logs     {logs}")

    def _account(self) -> Account:
        from holdfast.events.account import Accountant

        accountant = Accountant()
        for entry in self._timed:
            accountant.take(entry)
        return accountant.account(time.time())

    def _tell_failure(self, report: LaunchReport, verdict: Verdict, elapsed: str) -> None:
        """Report a failure once: the evidence that is not on the screen yet, the reason, then the worker and host."""
        cause = report.outcome.cause
        assert cause is not None  # it is what the verdict was made of
        self._release(unless=[cause.sentence, *(Verdict(each).sentence for each in verdict.others)])
        elsewhere = not report.is_ours and bool(os.environ.get(JOB_VARIABLE))
        node = f"node {verdict.cause.node} ({verdict.cause.host})"
        around = Around(
            exit_code=report.exit_code,
            over=report.outcome.reason.removeprefix(cause.sentence).removeprefix("; "),
            logs=report.logs,
            shown=verdict.cause.extra.get("shown_by") == screen_name(),
            stacks_shown=report.is_ours and not self._quiet,
            told_by=f"the traceback is in the output of {node}" if elsewhere and verdict.cause.traceback else "",
        )
        for line in evidence(verdict, around):
            self._print(line) if line.startswith(" ") else self._line(line)
        self._line(f"failed after {elapsed}: {first_line(verdict.cause)}", _RED)
        self._print("\n".join(details(verdict, around)))
        self._tell_account("")

    # -- while it runs -------------------------------------------------------------------------------------------------

    def _on_fact(self, fact: Fact) -> None:
        with self._lock:
            self._count(fact)
            if self._json:
                self._write_json(fact.kind, fact.sentence, fact.data)
            elif not self._quiet and fact.kind not in HIDDEN:
                self._show(fact)

    def _count(self, fact: Fact) -> None:
        if fact.number is None and fact.kind in TIMED:
            # All of them are of this process: a coordinator in it tells of other nodes by numbered facts only.
            self._timed.append(Entry(time=fact.timestamp, kind=fact.kind, data=fact.data, sentence=fact.sentence))
        if fact.kind == "workers_started":
            self._rounds += 1
            self._workers = fact.data.get("world_size", 0)
            self._tells_run = not (os.environ.get(JOB_VARIABLE) and fact.data.get("group_rank"))
            self._restarts = max(self._restarts, fact.data.get("restarts_used", 0))
        elif fact.kind == "workers_moved":
            self._workers = fact.data.get("world_size", 0)
        elif fact.kind == "workers_replaced":
            self._restarts += 1

    def _show(self, fact: Fact) -> None:
        if fact.kind == "waiting":
            self._wait(fact.sentence)
        elif fact.kind == "template_importing":
            # On a terminal at once, since it goes away again; in a file only where it takes a while.
            self._transient(f"{fact.sentence} …") if self._live else self._hold(fact.sentence, keep=False)
        elif fact.kind == "template_ready":
            self._release(drop=True)
            self._clear()
        elif fact.kind == "workers_stopping" and _may_be_the_end(fact):
            self._hold(fact.sentence, keep=True)
        elif fact.level >= WARNING:
            self._line(fact.sentence, _YELLOW)
        elif fact.kind in SHOWN:
            self._line(fact.sentence)

    def _wait(self, sentence: str) -> None:
        """On a terminal one line is written over and over; in a file each new sentence stands once."""
        if self._live:
            self._transient(sentence)
        elif self._is_new(sentence):
            self._line(f"waiting: {_without_countdown(sentence)}")

    _last_wait = ""

    def _is_new(self, sentence: str) -> bool:
        told, self._last_wait = self._last_wait, _without_countdown(sentence)
        return told != self._last_wait

    # -- lines that wait -----------------------------------------------------------------------------------------------

    def _hold(self, text: str, *, keep: bool) -> None:
        """Show a line in a moment, unless what comes before that makes it needless."""
        self._release()
        timer = threading.Timer(HOLD_S, self._on_timer, args=(text,))
        timer.daemon = True
        self._held = _Held(text, keep, timer)
        timer.start()

    def _on_timer(self, text: str) -> None:
        with self._lock:
            if self._held is not None and self._held.text == text:
                self._held = None
                self._line(text)

    def _release(self, *, drop: bool = False, unless: Sequence[str] = ()) -> None:
        """Show the line that waits, if it is one to keep, or forget it; `unless` is what the next lines say anyway."""
        held, self._held = self._held, None
        if held is None:
            return
        held.timer.cancel()
        if held.keep and not drop and not any(said in held.text for said in unless):
            self._line(held.text)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _line(self, text: str, colour: str = "") -> None:
        self._print(text, f"{colour}holdfast:{_RESET} " if self._live and colour else "holdfast: ")

    def _print(self, text: str, head: str = "") -> None:
        self._release()
        self._clear()
        self._write(head + printable(text).rstrip("\n") + "\n")

    def _transient(self, text: str) -> None:
        """Write a line that the next one writes over."""
        self._release()
        self._waiting = True
        line = printable(text).replace("\n", " ")
        self._write(f"\r\x1b[K{_DIM}holdfast: {line}{_RESET}")

    def _clear(self) -> None:
        if self._waiting:
            self._waiting = False
            self._write("\r\x1b[K")

    def _write_json(self, kind: str, sentence: str, data: object) -> None:
        line = {"time": time.time(), "kind": kind, "sentence": sentence, "data": data}
        self._write(json.dumps(line, default=str) + "\n")

    def _write(self, text: str) -> None:
        try:
            try:
                self._out.write(text)
            except UnicodeEncodeError:  # a stream that is not UTF-8 shows escapes instead
                encoding = self._out.encoding or "ascii"
                self._out.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self._out.flush()
        except OSError:
            pass  # a closed terminal or a full disk must not end the job


def _may_be_the_end(stopping: Fact) -> bool:
    """Whether the report may follow at once and say the same; not where a person has pressed Ctrl-C and waits."""
    return not str(stopping.data.get("reason", "")).startswith("received ")


def _without_countdown(sentence: str) -> str:
    """Leave out the parts that change with every second."""
    parts = [part for part in sentence.split("; ") if not part.endswith((" s", " s ago"))]
    return "; ".join(parts) or sentence
