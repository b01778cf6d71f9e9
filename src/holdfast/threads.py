"""Background threads that never die silently: an unexpected exception is reported with its traceback."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from holdfast.facts import ERROR, Fact, facts


def start_thread(
    target: Callable[[], object], name: str, on_death: Callable[[BaseException], object] | None = None
) -> threading.Thread:
    """Start a daemon thread; if `target` raises, the exception is published and handed to `on_death`, on that thread.

    In `on_death` the owner of the thread releases callers that wait for it, or starts another one.
    """

    def run() -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - a thread has no caller that could be told
            tell_unexpected(name, error)
            if on_death is not None:
                on_death(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def tell_unexpected(name: str, error: BaseException, then: str = "") -> None:
    """Publish an unexpected exception of a thread, which is a bug of ours, with its traceback."""
    trace = "".join(traceback.format_exception(error)).rstrip()
    sentence = f"unexpected error in the thread '{name}': {type(error).__name__}: {error}"
    facts.publish(
        Fact(
            "thread_trouble",
            f"{sentence}{f'; {then}' if then else ''}; please report this with the traceback:\n{trace}",
            {"thread": name, "error": f"{type(error).__name__}: {error}", "traceback": trace},
            ERROR,
        )
    )
