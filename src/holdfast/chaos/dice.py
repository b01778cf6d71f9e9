"""A worker that may die at any moment, by chance: the oldest way to try whether a training survives."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading

_log = logging.getLogger("holdfast")


def start_fault_injection_thread(fault_injection_rate: float, interval_in_sec: float) -> None:
    """From now on, kill this process with this probability every so many seconds."""
    never = threading.Event()

    def roll() -> None:
        while True:
            if random.random() < fault_injection_rate:
                _log.error("this worker kills itself, as it was asked to, with probability %s", fault_injection_rate)
                os.kill(os.getpid(), signal.SIGKILL)
            never.wait(interval_in_sec)

    threading.Thread(target=roll, name="fault injection", daemon=True).start()
