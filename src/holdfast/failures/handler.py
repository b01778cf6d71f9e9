"""`@record` and the error handler behind it, under the names that TorchElastic gave them.

Scripts that Holdfast starts need neither: the bootstrap records their uncaught exceptions. They are here for
programs that already use them, for functions, and for launchers that pass a child's error file upwards.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import logging
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from holdfast.failures import errorfile
from holdfast.failures.process import NO_ERROR_FILE, ChildFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger("holdfast.failures")


class ErrorHandler:
    """Writes this process's error file; subclass it to send errors elsewhere too."""

    def _get_error_file_path(self) -> str | None:
        return os.environ.get(errorfile.ERROR_FILE_VARIABLE) or None

    def initialize(self) -> None:
        """Prepare before user code runs: fatal signals print the Python stacks from now on."""
        try:
            faulthandler.enable(all_threads=True)
        except (OSError, ValueError, RuntimeError, AttributeError) as error:  # stderr is closed or not a file
            _log.warning("fatal signals will leave no stack: %s", error)

    def record_exception(self, e: BaseException) -> None:
        """Write the error file for `e`; never raises."""
        path = self._get_error_file_path()
        if path and not errorfile.record(e, path):
            _log.warning("the error file %s could not be written", path)

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Put `error_code` into a root cause's data, in place, if its format has a field for it."""
        message = rootcause_error.get("message")
        if isinstance(message, dict):
            message["errorCode"] = error_code
        else:
            _log.warning("%s is of the older form and cannot carry error code %d", rootcause_error_file, error_code)

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copy a child's error file to our own, so that our parent process reads the root cause."""
        mine = self._get_error_file_path()
        error = errorfile.read(rootcause_error_file)
        if error is None or not error.data:
            _log.warning("the error file %s holds no error", rootcause_error_file)
            return
        if error_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, error.data, error_code)
        if not mine:
            _log.error("child failed: %s", json.dumps(error.data))
            return
        if Path(mine).exists():
            shutil.move(mine, f"{mine}.before")
        errorfile.write(mine, error.data)


def get_error_handler() -> ErrorHandler:
    """Return the handler that `record` uses unless it is given one."""
    return ErrorHandler()


def record(fn: Callable[P, R], error_handler: ErrorHandler | None = None) -> Callable[P, R | None]:
    """Decorate a main function so that its uncaught exception ends up in the error file, and still raises.

    `SystemExit(0)` counts as a return. A `ChildFailedError` passes on the first child's error file instead
    of its own.
    """
    handler = error_handler if error_handler is not None else get_error_handler()

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | None:
        handler.initialize()
        try:
            return fn(*args, **kwargs)
        except SystemExit as ending:
            if ending.code in (0, None):
                return None
            raise
        except ChildFailedError as error:
            _, first = error.get_first_failure()
            if first.error_file != NO_ERROR_FILE:
                handler.dump_error_file(first.error_file, first.exitcode)
            else:
                handler.record_exception(error)
            raise
        except Exception as error:
            handler.record_exception(error)
            raise

    return wrapper
