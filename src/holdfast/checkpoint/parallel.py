"""Work on large memory that several threads share for as long as somebody waits for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

#: Memory is cut into pieces of this size, which the threads take in turn.
PIECE_BYTES = 16 << 20
THREADS_MAX = 4
#: Less than this is not worth a second thread.
PARALLEL_BYTES_MIN = 64 << 20


def for_each(items: Iterable[T], work: Callable[[T], None], nbytes: int) -> None:
    """Do the work for every item, which together mean so many bytes; raises the first error.

    The threads live only for this call: while it runs, its caller waits and cores are idle.
    """
    waiting = list(items)
    errors: list[Exception] = []
    lock = threading.Lock()

    def next_one() -> list[T]:
        with lock:
            return [waiting.pop()] if waiting and not errors else []

    def run() -> None:
        while item := next_one():
            try:
                work(item[0])
            except Exception as error:  # noqa: BLE001 - raised again by the caller
                errors.append(error)

    count = min(THREADS_MAX, len(os.sched_getaffinity(0)), len(waiting)) if nbytes >= PARALLEL_BYTES_MIN else 1
    helpers = [threading.Thread(target=run, name="holdfast copy", daemon=True) for _ in range(count - 1)]
    for helper in helpers:
        helper.start()
    run()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
