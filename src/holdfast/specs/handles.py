"""Handles: one string that finds a job again, `scheduler://session/app_id`. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.errors import UsageError

AppHandle = str

_HANDLE = re.compile(r"(?P<scheduler>[^:/]+)://(?P<session>[^/]*)/(?P<app>[^/]+)")


class MalformedAppHandleException(UsageError):
    """This is no handle; the message shows what one looks like."""

    def __init__(self, app_handle: str) -> None:
        super().__init__(
            f"'{app_handle}' is no handle of a job; one looks like local://holdfast/echo-x7k2 "
            "(`holdfast list` shows yours)"
        )


class UnknownSchedulerException(UsageError):
    """There is no scheduler of this name."""

    def __init__(self, scheduler_backend: str) -> None:
        super().__init__(f"there is no scheduler '{scheduler_backend}'; `holdfast runopts` shows those there are")


class UnknownAppException(UsageError):
    """There is no job of this handle, or there is none any more."""

    def __init__(self, app_handle: str) -> None:
        super().__init__(f"there is no job {app_handle}; `holdfast list` shows those there are")


class ParsedAppHandle(NamedTuple):
    """A handle taken apart."""

    scheduler_backend: str
    session_name: str
    app_id: str


def make_app_handle(scheduler_backend: str, session_name: str, app_id: str) -> AppHandle:
    """Put a handle together."""
    return f"{scheduler_backend}://{session_name}/{app_id}"


def parse_app_handle(app_handle: AppHandle) -> ParsedAppHandle:
    """Take a handle apart; raises `MalformedAppHandleException`."""
    match = _HANDLE.fullmatch(app_handle)
    if match is None:
        raise MalformedAppHandleException(app_handle)
    return ParsedAppHandle(match["scheduler"], match["session"], match["app"])
