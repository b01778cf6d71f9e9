"""Failures as data: records, classification, root cause and report. Nothing here waits or watches."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.failures.classify import Evidence, classify, explain, speaks_as_victim
from holdfast.failures.errorfile import ErrorData
from holdfast.failures.failure import Failure, Kind

if TYPE_CHECKING:
    from holdfast.failures.handler import ErrorHandler, get_error_handler, record
    from holdfast.failures.process import ChildFailedError, ProcessFailure
    from holdfast.failures.report import render
    from holdfast.failures.verdict import Verdict, root_cause

#: Each name and where it lives: who only classifies needs neither handlers nor reports, and starts sooner.
_HOMES = {
    "ErrorHandler": "handler",
    "get_error_handler": "handler",
    "record": "handler",
    "ChildFailedError": "process",
    "ProcessFailure": "process",
    "render": "report",
    "Verdict": "verdict",
    "root_cause": "verdict",
}

__all__ = [
    "ChildFailedError",
    "ErrorData",
    "ErrorHandler",
    "Evidence",
    "Failure",
    "Kind",
    "ProcessFailure",
    "Verdict",
    "classify",
    "explain",
    "get_error_handler",
    "record",
    "render",
    "root_cause",
    "speaks_as_victim",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name))


def __dir__() -> list[str]:
    return __all__
