"""The launcher's own error file: the root cause of a failed job, in the form that workers use.

A scheduler that reads the error files of its replicas then knows the exception that ended the job, and not only that
`holdfast launch` exited with 1. Every node writes the same, wherever the cause was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from holdfast.failures import errorfile
from holdfast.failures.failure import Failure
from holdfast.launcher.api import LaunchReport


def write(report: LaunchReport, environ: Mapping[str, str] = os.environ) -> bool:
    """Write the root cause of a failed job to our own error file, if there is one; return whether it was written."""
    path = environ.get(errorfile.ERROR_FILE_VARIABLE)
    if not path or report.outcome.signal or not report.result.is_failed():
        return False
    cause = report.verdict.cause if report.verdict is not None else None
    return errorfile.write(path, describe(cause, report.outcome.reason, report.exit_code, time.time()))


def write_sentence(sentence: str, exit_code: int, environ: Mapping[str, str] = os.environ) -> bool:
    """Write why nothing could be run to our own error file, if there is one; return whether it was written."""
    path = environ.get(errorfile.ERROR_FILE_VARIABLE)
    return bool(path) and errorfile.write(str(path), describe(None, sentence, exit_code, time.time()))


def describe(cause: Failure | None, reason: str, exit_code: int, now: float) -> dict[str, Any]:
    """Return the content of the error file; without a known failure it holds the reason."""
    if cause is None:
        message, extra = reason, {"py_callstack": "", "timestamp": str(int(now))}
    else:
        who = {"rank": cause.rank, "local_rank": cause.local_rank, "host": cause.host, "kind": cause.kind.value}
        message = cause.message or reason
        extra = {
            "py_callstack": cause.traceback,
            "timestamp": str(int(cause.timestamp or now)),
            **{key: str(value) for key, value in who.items() if value not in (None, "")},
        }
    return {"message": {"message": message, "extraInfo": extra, "errorCode": exit_code}}
