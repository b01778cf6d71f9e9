"""The exception by which a signal ends a blocking call."""

from __future__ import annotations

import signal


class SignalException(Exception):
    """A signal asked this process to end; `sigval` says which."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval
