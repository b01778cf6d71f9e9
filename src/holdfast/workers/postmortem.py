"""The post-mortem: makes a failure record from the files and output of a dead worker."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.failures import Evidence, Failure, Kind, classify, errorfile, explain
from holdfast.workers.lines import last_lines
from holdfast.workers.logs import ATTEMPT_VARIABLE, ROUND_VARIABLE
from holdfast.workers.oom import oom_kills

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.workers.plan import WorkerExited
    from holdfast.workers.wiring import Wire

FAULT_BYTES_MAX = 64 * 1024


class Postmortem:
    """Remembers the state before the gang started, and examines dead workers."""

    def __init__(self) -> None:
        self._oom_kills = oom_kills()

    def examine(
        self,
        exited: WorkerExited,
        env: Mapping[str, str],
        wires: tuple[Wire, Wire],
        *,
        error_file: str,
        fault_file: str,
        timed_out: bool,
    ) -> Failure:
        """Make the failure record of one worker's end; `wires` have been settled."""
        stdout, stderr = (wire.tail() for wire in wires)
        error = errorfile.read(error_file)
        evidence = Evidence(
            exit_code=exited.exit_code,
            error=error,
            signalled_by_us=exited.signalled_by_us,
            timed_out=timed_out,
            oom_kills=self._oom_kills_since(),
            log_lines=stderr or stdout,
        )
        kind = classify(evidence)
        traceback = error.traceback if error is not None else ""
        if not traceback and exited.exit_code < 0 and kind is not Kind.STOPPED:
            traceback = _read_fault(fault_file)
        return Failure(
            kind=kind,
            message=explain(kind, evidence),
            host=socket.gethostname(),
            node=_number(env.get("GROUP_RANK")),
            role=env.get("ROLE_NAME", ""),
            local_rank=exited.local_rank,
            rank=_number(env.get("RANK")),
            pid=exited.pid,
            exit_code=exited.exit_code,
            traceback=traceback,
            error_file=error_file if error is not None else "",
            # If the error file has the traceback already, it need not come twice.
            log_lines=stderr or stdout,
            log_files=tuple(wire.path for wire in wires if wire.path),
            round=_number(env.get(ROUND_VARIABLE)),
            attempt=_number(env.get(ATTEMPT_VARIABLE)),
            timestamp=time.time(),
            ends_job=error is not None and error.ends_job,
            extra={"printed": True} if error is not None and error.printed else {},
        )

    def _oom_kills_since(self) -> int:
        now = oom_kills()
        return 0 if now is None or self._oom_kills is None else now - self._oom_kills


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _read_fault(path: str) -> str:
    if not path:
        return ""
    try:
        with Path(path).open("rb") as file:
            return "\n".join(last_lines(file.read(FAULT_BYTES_MAX), lines_max=200))
    except OSError:
        return ""
