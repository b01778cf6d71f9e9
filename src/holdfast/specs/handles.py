"""Handles: strings that name jobs, `scheduler://session/app_id`. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.errors import MalformedAppHandleError

AppHandle = str

_HANDLE = re.compile(r"(?P<scheduler>[^:/]+)://(?P<session>[^/]*)/(?P<app>[^/]+)")


class ParsedAppHandle(NamedTuple):
    """The parts of a handle."""

    scheduler_backend: str
    session_name: str
    app_id: str


def make_app_handle(scheduler_backend: str, session_name: str, app_id: str) -> AppHandle:
    """Make a handle from its parts."""
    return f"{scheduler_backend}://{session_name}/{app_id}"


def parse_app_handle(app_handle: AppHandle) -> ParsedAppHandle:
    """Split a handle into its parts; raises `MalformedAppHandleError`."""
    match = _HANDLE.fullmatch(app_handle)
    if match is None:
        raise MalformedAppHandleError(app_handle)
    return ParsedAppHandle(match["scheduler"], match["session"], match["app"])
