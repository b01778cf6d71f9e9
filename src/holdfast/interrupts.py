"""Ctrl-C during imports or at exit: the process ends without a traceback."""

from __future__ import annotations

import signal


class UntilImported:
    """Lets SIGINT end the process at once for as long as it is entered.

    Nothing changes if SIGINT is ignored or has another handler. An interrupt in the middle of an import would
    otherwise end in a traceback, or be lost in the import system.
    """

    def __init__(self) -> None:
        self._changed = False

    def __enter__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Let SIGINT end the process at once."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            except ValueError:  # not the main thread, which is the one that is interrupted
                return
            self._changed = True

    def __exit__(self, *_: object) -> None:
        if self._changed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
