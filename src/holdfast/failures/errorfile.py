"""The error file: why a worker died, in torchrun's format.

    {"message": {"message": "<Type>: <text>", "extraInfo": {"py_callstack": "...", "timestamp": "<seconds>"}}}

with an optional "errorCode" beside "message", "exitMessage" beside "py_callstack" where a program that ended itself
has said why, and "endsJob" where the exception says of itself that no restart can mend it. The older
`{"message": "...", "timestamp": 1}` is read too.

This module imports nothing of ours, because workers load it by its path while they die. Writing never
raises, and neither does reading: a garbled error file must not hurt the agent.
"""
# A dying worker has no time to import pathlib.
# ruff: noqa: PTH103, PTH105, PTH108, PTH120, PTH123

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from dataclasses import dataclass, field
from typing import Any

#: Where a worker finds the path of its error file.
ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
#: In `extraInfo`: names the stream on which Python has printed the traceback as well. Only our writers set it.
PRINTED_KEY = "printed"
#: In `extraInfo`: the exception says that no restart can mend it.
ENDS_JOB_KEY = "endsJob"

MESSAGE_CHARS_MAX = 64 * 1024
TRACEBACK_CHARS_MAX = 256 * 1024
FILE_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ErrorData:
    """The content of an error file; `data` is the whole of it, or empty if it could not be read."""

    message: str
    traceback: str = ""
    timestamp: int | None = None
    error_code: int | None = None
    #: The message of a program that exited with a code of its own.
    exit_message: str = ""
    #: The rank of the worker, if a launcher passed on the error of one of its workers.
    rank: int | None = None
    #: Whether the worker has printed the traceback on its stderr too.
    printed: bool = False
    data: dict[str, Any] = field(default_factory=dict)
    #: Whether no restart can mend it, by the exception's own word: its attribute `ends_job`.
    ends_job: bool = False

    @property
    def type_name(self) -> str:
        """The name of the exception's type, or an empty string where the message names none."""
        head = self.message.partition(":")[0]
        return head if head.replace(".", "").replace("_", "").isalnum() else ""


def describe(error: BaseException, traceback_text: str, *, now: float, error_code: int | None = None) -> dict[str, Any]:
    """Make the content of an error file out of one exception."""
    message: dict[str, Any] = {
        "message": _cut(_clean(f"{type(error).__name__}: {error}"), MESSAGE_CHARS_MAX),
        "extraInfo": {"py_callstack": _cut(_clean(traceback_text), TRACEBACK_CHARS_MAX), "timestamp": str(int(now))},
    }
    if said := exit_message(error):
        message["extraInfo"]["exitMessage"] = _cut(said, MESSAGE_CHARS_MAX)
    if getattr(error, "ends_job", False) is True:
        message["extraInfo"][ENDS_JOB_KEY] = "true"
    if error_code is not None:
        message["errorCode"] = error_code
    return {"message": message}


def exit_message(error: BaseException) -> str:
    """Return why a program exited by itself: the message of argparse, or the error that it was handling."""
    if not isinstance(error, SystemExit) or not isinstance(error.code, int):
        return ""  # a code that is no number is the message itself
    for frame in _frames(error):
        if _is_argparse(frame) and frame.f_code.co_name in ("error", "exit"):
            said = frame.f_locals.get("message")
            return said.strip() if isinstance(said, str) else ""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return f"{type(cause).__name__}: {cause}" if isinstance(cause, Exception) else ""


def _frames(error: BaseException) -> list[Any]:
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append(trace.tb_frame)
        trace = trace.tb_next
    return found


def _is_argparse(frame: Any) -> bool:
    return bool(frame.f_globals.get("__name__") == "argparse")


def _ended_by_argparse(error: BaseException) -> bool:
    """Whether argparse refused the arguments: its message says why, and a traceback adds nothing."""
    return isinstance(error, SystemExit) and any(map(_is_argparse, _frames(error)))


def record(error: BaseException, path: str | None = None, *, printed: bool = False) -> bool:
    """Write the error file of this process for `error`; return whether that worked. Never raises.

    `printed` says that the traceback is printed on stderr as well, so that a report need not repeat it.
    """
    import traceback

    path = path or os.environ.get(ERROR_FILE_VARIABLE)
    if not path:
        return False
    try:
        lines = [] if _ended_by_argparse(error) else traceback.format_exception(error)
        content = describe(error, "".join(lines), now=time.time())
        return write(path, _marked(content) if printed else content)
    except Exception:  # noqa: BLE001 - str(error) is the user's code and may raise anything
        return write(
            path,
            {"message": {"message": type(error).__name__, "extraInfo": {"timestamp": str(int(time.time()))}}},
        )


def mark_printed(path: str) -> bool:
    """Note in an existing error file that its traceback is printed too; never raises."""
    error = read(path)
    return error is not None and isinstance(error.data.get("message"), dict) and write(path, _marked(error.data))


def _marked(content: dict[str, Any]) -> dict[str, Any]:
    message = content["message"]
    extra = message.get("extraInfo")
    marked = {**(extra if isinstance(extra, dict) else {}), PRINTED_KEY: "stderr"}
    return {**content, "message": {**message, "extraInfo": marked}}


def write(path: str, content: dict[str, Any]) -> bool:
    """Write `content` to `path`, whole or not at all; return whether that worked. Never raises."""
    if path == os.devnull:
        return False
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump(content, file)
        os.replace(temporary, path)
    except (OSError, ValueError, TypeError):
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        return False
    return True


def read(path: str | None) -> ErrorData | None:
    """Read an error file, or return None if there is none; a damaged file is described and never raises."""
    if not path or path == os.devnull:
        return None
    try:
        raw = _read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return ErrorData(f"the error file {path} cannot be read: {error}")
    if len(raw) > FILE_BYTES_MAX:
        return ErrorData(f"the error file {path} is larger than {FILE_BYTES_MAX} bytes and was not read")
    try:
        content = json.loads(raw.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        return ErrorData(f"the error file {path} is not JSON ({error}); it begins with {raw[:200]!r}")
    if not isinstance(content, dict) or "message" not in content:
        return ErrorData(f"the error file {path} has no message; it begins with {raw[:200]!r}")
    return _parse(content)


def _read_bytes(path: str) -> bytes:
    # Without O_NONBLOCK a FIFO in the file's place would hold the agent for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
        return file.read(FILE_BYTES_MAX + 1)


def _parse(content: dict[str, Any]) -> ErrorData:
    message = content["message"]
    if not isinstance(message, dict):  # the older form
        timestamp = _integer(content.get("timestamp"))
        return ErrorData(_without_bare_colon(_text(message)), timestamp=timestamp, data=content)
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    return ErrorData(
        message=_without_bare_colon(_text(message.get("message", ""))),
        traceback=_cut(_text(extra.get("py_callstack", "")), TRACEBACK_CHARS_MAX),
        timestamp=_integer(extra.get("timestamp")),
        error_code=_integer(message.get("errorCode")),
        exit_message=_text(extra.get("exitMessage", "")),
        ends_job=ENDS_JOB_KEY in extra,
        rank=_integer(extra.get("rank")),
        printed=PRINTED_KEY in extra,
        data=content,
    )


def _text(value: object) -> str:
    return _cut(_clean(value) if isinstance(value, str) else json.dumps(value), MESSAGE_CHARS_MAX)


def _clean(text: str) -> str:
    """Write lone surrogates as escapes, as `holdfast.text` does: file names that are not UTF-8 contain them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _without_bare_colon(message: str) -> str:
    """Read `MemoryError: `, which the format makes of an exception without a text, as `MemoryError`."""
    return message.rstrip().removesuffix(":")


def _integer(value: object) -> int | None:
    try:
        return int(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None


def _cut(text: str, chars_max: int) -> str:
    """Keep both ends of a text that is too long: its first line names the error, its last the place."""
    if len(text) <= chars_max:
        return text
    half = chars_max // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"
