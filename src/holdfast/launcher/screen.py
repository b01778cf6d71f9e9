"""What a person sees: facts as lines, the wait of the moment on a terminal, and a report at the end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TextIO

from holdfast.facts import WARNING, Fact, facts
from holdfast.failures.report import render
from holdfast.launcher.api import LaunchReport
from holdfast.quantities import count

#: Facts of an agent that are shown as lines; warnings are shown whatever they are.
SHOWN = frozenset({"workers_started", "workers_stopping", "agent_left", "health_started", "workers_replaced"})
#: What a coordinator inside this process notes about nodes; their agents and ours tell the same from their side. How
#: the run ended is said by `conclude`, with the report.
HIDDEN = frozenset(
    {"node_gone", "round_broken", "round_sealed", "run_closed", "run_ended", "recovered", "worker_replaced"}
)

_DIM, _RED, _GREEN, _YELLOW, _RESET = "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"


class Screen:
    """Shows a launch as it goes; use as a context manager around it.

    Everything goes to stderr: stdout belongs to the workers.
    """

    def __init__(self, *, quiet: bool = False, as_json: bool = False, out: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stderr
        self._quiet = quiet
        self._json = as_json
        self._live = self._out.isatty() and not quiet and not as_json
        self._waiting = False
        self._rounds = 0
        self._workers = 0
        self._started = time.monotonic()
        self._stop: Callable[[], None] = lambda: None

    def __enter__(self) -> Screen:
        self._stop = facts.listen(self._on_fact)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._clear()

    def conclude(self, report: LaunchReport) -> None:
        """Say how it ended: a line when it went well, the root cause when it did not."""
        elapsed = time.monotonic() - self._started
        if self._json:
            verdict = report.verdict.to_json() if report.verdict is not None else None
            self._write_json("end", report.outcome.reason, {"exit_code": report.exit_code, "verdict": verdict})
        elif report.outcome.signal:
            self._line(f"ended: {report.outcome.reason}", _YELLOW)
        elif report.result.is_failed():
            if report.verdict is not None:
                self._print(render(report.verdict, report.exit_code))
            self._line(f"failed after {elapsed:.1f} s: {report.outcome.reason}", _RED)
        elif not self._rounds and not self._quiet:
            why = f"the run was over ({report.outcome.reason}) before this node had a place in it"
            self._line(f"nothing was run here: {why}; another --rdzv-id makes another run", _YELLOW)
        elif not self._quiet:
            rounds, workers = count(self._rounds, "round"), count(self._workers, "worker")
            self._line(f"done: {rounds}, {workers} in the last, {elapsed:.1f} s", _GREEN)

    def _on_fact(self, fact: Fact) -> None:
        if fact.kind == "workers_started":
            self._rounds += 1
            self._workers = fact.data.get("world_size", 0)
        if self._json:
            self._write_json(fact.kind, fact.sentence, fact.data)
        elif self._quiet or fact.kind in HIDDEN:
            return
        elif fact.kind == "waiting":
            self._wait(fact.sentence)
        elif fact.level >= WARNING:
            self._line(fact.sentence, _YELLOW)
        elif fact.kind in SHOWN:
            self._line(fact.sentence)

    def _wait(self, sentence: str) -> None:
        """On a terminal one line is written over and over; in a file each new sentence stands once."""
        if not self._live:
            self._line(f"waiting: {_without_countdown(sentence)}") if self._is_new(sentence) else None
            return
        self._waiting = True
        self._write(f"\r\x1b[K{_DIM}holdfast: {sentence}{_RESET}")

    _last_wait = ""

    def _is_new(self, sentence: str) -> bool:
        told, self._last_wait = self._last_wait, _without_countdown(sentence)
        return told != self._last_wait

    def _line(self, text: str, colour: str = "") -> None:
        if self._live and colour:
            self._print(f"{colour}holdfast:{_RESET} {text}")
        else:
            self._print(f"holdfast: {text}")

    def _print(self, text: str) -> None:
        self._clear()
        self._write(text.rstrip("\n") + "\n")

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


def _without_countdown(sentence: str) -> str:
    """Leave out the parts that change with every second."""
    parts = [part for part in sentence.split("; ") if not part.endswith((" s", " s ago"))]
    return "; ".join(parts) or sentence
