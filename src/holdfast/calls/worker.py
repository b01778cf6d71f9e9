"""One worker of a call: `python -m holdfast.calls.worker FOLDER`.

An object with a method `checkpoint`, called like the object itself, is asked by it when the worker is told to end by
SIGTERM, as submitit does: what it returns, a `Call`, takes the place of the call when the job is started again.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from holdfast.calls.folder import Call, CallFolder, outcome_now

_OURS = Path(__file__).parent


def main(arguments: Sequence[str]) -> None:
    """Call the function, and write what came of it."""
    folder = CallFolder(Path(arguments[0]))
    try:
        call = folder.load()
        _heed_preemption(folder, call)
        value = call()
    except Exception as error:
        told = "".join(traceback.format_exception(error.with_traceback(_users(error.__traceback__))))
        folder.write_outcome(outcome_now(failed=True, error=error.with_traceback(None), traceback=told))
        raise
    folder.write_outcome(outcome_now(failed=False, value=value))


def _users(raised: TracebackType | None) -> TracebackType | None:
    """Leave out the calls that are ours."""
    while raised is not None and Path(raised.tb_frame.f_code.co_filename).parent == _OURS:
        raised = raised.tb_next
    return raised


def _heed_preemption(folder: CallFolder, call: Call) -> None:
    checkpoint = getattr(call.function, "checkpoint", None)
    if not callable(checkpoint):
        return

    def save(number: int, frame: FrameType | None) -> NoReturn:
        del frame
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the first word is enough
        again = checkpoint(*call.args, **(call.kwargs or {}))
        if again is not None and os.environ["RANK"] == "0":
            folder.save(Call(again.function, tuple(again.args), dict(again.kwargs or {})))
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, save)


if __name__ == "__main__":
    main(sys.argv[1:])
