"""Failures as data: records, classification, root cause and report. Nothing here waits or watches."""

from __future__ import annotations

from typing import TYPE_CHECKING

# Imported at once, because a module has the same name as one of them.
from holdfast.failures.classify import Evidence as Evidence
from holdfast.failures.classify import classify as classify
from holdfast.failures.classify import explain as explain
from holdfast.failures.classify import speaks_as_victim as speaks_as_victim
from holdfast.lazy import attach

if TYPE_CHECKING:
    from holdfast.failures.errorfile import ErrorData as ErrorData
    from holdfast.failures.failure import Failure as Failure
    from holdfast.failures.failure import Kind as Kind
    from holdfast.failures.handler import ErrorHandler as ErrorHandler
    from holdfast.failures.handler import get_error_handler as get_error_handler
    from holdfast.failures.handler import record as record
    from holdfast.failures.process import ChildFailedError as ChildFailedError
    from holdfast.failures.process import ProcessFailure as ProcessFailure
    from holdfast.failures.report import render as render
    from holdfast.failures.verdict import Verdict as Verdict
    from holdfast.failures.verdict import root_cause as root_cause
else:
    # Code that only classifies failures does not import handlers and reports, and starts sooner.
    __getattr__, __dir__, __all__ = attach(
        __name__,
        classify="Evidence classify explain speaks_as_victim",
        errorfile="ErrorData",
        failure="Failure Kind",
        handler="ErrorHandler get_error_handler record",
        process="ChildFailedError ProcessFailure",
        report="render",
        verdict="Verdict root_cause",
    )
