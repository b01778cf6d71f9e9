"""Failures as data: records, classification, root cause and report. Nothing here waits or watches."""

from holdfast.failures.classify import Evidence, classify, explain, speaks_as_victim
from holdfast.failures.errorfile import ErrorData
from holdfast.failures.failure import Failure, Kind
from holdfast.failures.handler import ErrorHandler, get_error_handler, record
from holdfast.failures.process import ChildFailedError, ProcessFailure
from holdfast.failures.report import render
from holdfast.failures.verdict import Verdict, root_cause

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
