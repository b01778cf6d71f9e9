"""Redirects this process's own output to a file for a while, including that of C libraries."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from holdfast.errors import UsageError

_DESCRIPTORS = {"stdout": 1, "stderr": 2}


def get_libc() -> Any:
    """The C library of this process."""
    return ctypes.CDLL(None)


@contextmanager
def redirect(std: str, to_file: str) -> Iterator[None]:
    """Send `stdout` or `stderr` of this process to a file, by its descriptor."""
    if std not in _DESCRIPTORS:
        raise UsageError(f"unknown standard stream <{std}>, must be one of {', '.join(_DESCRIPTORS)}")
    stream, fd = getattr(sys, std), _DESCRIPTORS[std]
    kept = os.dup(fd)
    try:
        with open(to_file, "w+b") as target:  # noqa: PTH123 - a name, as the descriptor beside it
            _flush(stream)
            os.dup2(target.fileno(), fd)
        try:
            yield
        finally:
            _flush(stream)
            os.dup2(kept, fd)
    finally:
        os.close(kept)


redirect_stdout = partial(redirect, "stdout")
redirect_stderr = partial(redirect, "stderr")


def get_std_cm(std_rd: str, redirect_fn: Callable[[str], AbstractContextManager[None]]) -> AbstractContextManager[None]:
    """Redirect to a file; do nothing without one."""
    return redirect_fn(std_rd) if std_rd else nullcontext()


def _flush(stream: Any) -> None:
    """Have what was written so far go where it was meant to."""
    get_libc().fflush(None)
    stream.flush()
