"""The agent's handle on the health process: start it, talk to it, replace it if it dies, end it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from holdfast.errors import UnavailableError
from holdfast.health.protocol import RECV_BYTES, FrameCutter, Limits, Policy, Settings, pack

PROGRAM = str(Path(__file__).with_name("health_process.py"))
#: All that the interpreter itself may need to start; the health process gets nothing else of our environment.
ENVIRONMENT = ("LD_LIBRARY_PATH", "PYTHONHOME")
STOP_TIMEOUT_S = 2.0
LAST_OUTPUT_BYTES = 4000


class ProcessHandle:
    """One health process at a time on one listening socket, which this handle owns and closes."""

    def __init__(self, listener: socket.socket, timeout_s: float, policy: Policy, limits: Limits) -> None:
        self._listener = listener
        self._timeout_s, self._policy, self._limits = timeout_s, policy, limits
        self._sending = threading.Lock()
        #: Held while the process is being replaced or ended, never while waiting for the socket.
        self._changing = threading.Lock()
        self._ended = False
        #: The output of an earlier process is not reported again.
        self._read_up_to = 0
        self._output = os.memfd_create("holdfast-health", os.MFD_CLOEXEC)
        try:
            self._start()
        except BaseException:
            os.close(self._output)
            raise

    @property
    def ended(self) -> bool:
        """Whether `end` was called."""
        return self._ended

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        """Send a frame; does nothing if the process is gone, which `wait_frames` notices."""
        frame = pack(head, body)
        with self._sending, contextlib.suppress(OSError):
            self._control.sendall(frame)

    def wait_frames(self, timeout_s: float) -> list[dict[str, Any]] | None:
        """Wait for frames or the timeout; return their heads, or None when the process is gone."""
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
        """Start another process if this one has died; return whether it did: not after `end`."""
        with self._changing:
            if self._ended:
                return False
            self._stop()
            with self._sending:
                self._control.close()
                self._start()
            return True

    def last_output(self) -> str:
        """Return the end of what the dead process wrote: its traceback, if there was an error."""
        size = os.fstat(self._output).st_size
        begin = max(self._read_up_to, size - LAST_OUTPUT_BYTES)
        self._read_up_to = size
        return os.pread(self._output, LAST_OUTPUT_BYTES, begin).decode(errors="replace").strip()

    def end(self) -> None:
        """End the process and close the listener; calls that wait for it or are stuck in sending return."""
        with self._changing:
            if not self._ended:
                self._ended = True
                self._stop()
                self._listener.close()

    def close(self) -> None:
        """End the process and close everything; the handle cannot be used any more."""
        self.end()
        self._control.close()
        os.close(self._output)

    def _start(self) -> None:
        self._frames = FrameCutter()
        self._control, theirs = socket.socketpair()
        settings = Settings(
            os.getpid(), theirs.fileno(), self._listener.fileno(), self._timeout_s, self._policy, self._limits
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-S", PROGRAM, settings.encode()],
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

    def _stop(self) -> None:
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
