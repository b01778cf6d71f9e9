"""Terminals: what a worker gets in place of the agent's terminal if several workers share it.

A pseudo-terminal whose other end the pump reads. To the worker it is a terminal like the agent's: programs show colours
and progress bars on it. It changes no byte, and is as large as the agent's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import termios
import time
from collections.abc import Callable

#: How often the size is looked at, while something is written.
SIZE_S = 1.0


def open_terminal(fd: int) -> tuple[int, int, Callable[[int], None]]:
    """Open a terminal like the one behind `fd`; returns its ends, the worker's last, and what keeps its size.

    Raises OSError if there is none to be had.
    """
    ours, theirs = os.openpty()
    try:
        modes = termios.tcgetattr(theirs)
        modes[1] &= ~termios.OPOST  # the agent's own terminal does what is to be done with line ends
        modes[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)  # nothing is typed here
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
    except termios.error as error:
        os.close(ours)
        os.close(theirs)
        raise OSError(*error.args) from None
    follow = _Size(fd).follow
    follow(ours)
    return ours, theirs, follow


class _Size:
    """Copies the size of one terminal to another, now and then."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._looked_at = float("-inf")
        self._size = b""

    def follow(self, other: int) -> None:
        now = time.monotonic()
        if now - self._looked_at < SIZE_S:
            return
        self._looked_at = now
        with contextlib.suppress(OSError):  # it has gone away
            size = fcntl.ioctl(self._fd, termios.TIOCGWINSZ, bytes(8))
            if size != self._size:
                self._size = size
                fcntl.ioctl(other, termios.TIOCSWINSZ, size)
