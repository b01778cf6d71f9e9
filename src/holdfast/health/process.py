"""The porter's process as the agent sees it: started, spoken to, replaced where it dies, ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import UnavailableError
from holdfast.health.frames import FrameCutter, pack

if TYPE_CHECKING:
    from holdfast.health.desk import Policy
    from holdfast.health.limits import Limits

PORTER = str(Path(__file__).with_name("porter.py"))
#: All that the interpreter itself may need to start; nothing else of our environment is the porter's business.
ENVIRONMENT = ("LD_LIBRARY_PATH", "PYTHONHOME")
RECV_BYTES = 4096
STOP_TIMEOUT_S = 2.0
LAST_WORDS_BYTES = 4000


class PorterProcess:
    """One porter at a time on one listening socket, which it takes over and closes in the end."""

    def __init__(self, listener: socket.socket, timeout_s: float, policy: Policy, limits: Limits) -> None:
        self._listener = listener
        self._settings = (timeout_s, sorted(policy.asked), sorted(policy.names), policy.no_metrics, limits)
        self._sending = threading.Lock()
        #: Held while the process is being replaced or ended, never while anything is waited for on the socket.
        self._changing = threading.Lock()
        self._ended = False
        #: What an earlier one wrote is not told again.
        self._read_up_to = 0
        self._output = os.memfd_create("holdfast-health", os.MFD_CLOEXEC)
        try:
            self._start()
        except BaseException:
            os.close(self._output)
            raise

    @property
    def ended(self) -> bool:
        """Whether it was sent home."""
        return self._ended

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        """Tell it something; does nothing where it is gone, which `wait_words` notices."""
        frame = pack(head, body)
        with self._sending, contextlib.suppress(OSError):
            self._control.sendall(frame)

    def wait_words(self, timeout_s: float) -> list[dict[str, Any]] | None:
        """Wait until it says something or the time is up; returns what it says, or None when it is gone."""
        poller = select.poll()
        try:
            poller.register(self._control.fileno(), select.POLLIN)
            if not poller.poll(timeout_s * 1000):
                return []
            data = self._control.recv(RECV_BYTES)
        except (OSError, ValueError):
            return None
        return [head for head, _ in self._frames.feed(data)] if data else None

    def replace(self) -> bool:
        """Start another one where this one has died; says whether it did: not after `hang_up`."""
        with self._changing:
            if self._ended:
                return False
            self._end()
            with self._sending:
                self._control.close()
                self._start()
            return True

    def last_words(self) -> str:
        """Return the end of what the dead one wrote, which is its traceback where there was an error."""
        size = os.fstat(self._output).st_size
        begin = max(self._read_up_to, size - LAST_WORDS_BYTES)
        self._read_up_to = size
        return os.pread(self._output, LAST_WORDS_BYTES, begin).decode(errors="replace").strip()

    def hang_up(self) -> None:
        """End it and listen no more; whoever waits for it or is stuck in sending returns."""
        with self._changing:
            if not self._ended:
                self._ended = True
                self._end()
                self._listener.close()

    def close(self) -> None:
        """Give back what is held; nobody may use this any more."""
        self.hang_up()
        self._control.close()
        os.close(self._output)

    def _start(self) -> None:
        self._frames = FrameCutter()
        self._control, theirs = socket.socketpair()
        settings = [os.getpid(), theirs.fileno(), self._listener.fileno(), *self._settings]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-S", PORTER, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
                cwd="/",
                start_new_session=True,
                pass_fds=(theirs.fileno(), self._listener.fileno()),
            )
        except OSError as error:
            self._control.close()
            raise UnavailableError(f"the health server's process cannot be started: {error}") from error
        finally:
            theirs.close()

    def _end(self) -> None:
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
