"""A coordinator in a process of its own, as `holdfast serve` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

import psutil

from holdfast.wire.address import Endpoint, parse_endpoint
from holdfast.wire.secret import find_secret, user_secret_path

STOP_TIMEOUT_S = 30.0


class Served:
    """`holdfast serve` on a free port of this machine, from entering the context to leaving it.

    It has a home of its own, so that no other process has its secret, and its log is kept.
    """

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-bench-")

    def __enter__(self) -> Served:
        environ = {**os.environ, "HOLDFAST_HOME": self._folder.name}
        self.log_path = Path(self._folder.name) / "log"
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "serve", "127.0.0.1:0", *self._arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environ,
            )
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self.__exit__(None, None, None)
            raise RuntimeError("the coordinator did not start")
        self.endpoint: Endpoint = parse_endpoint(line.split()[-1])
        self.secret_file = str(user_secret_path(environ))
        self.secret = find_secret(environ=environ).key
        self._facts = psutil.Process(self._process.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._folder.cleanup()

    @property
    def is_up(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def rss_bytes(self) -> int:
        """Return how much memory it holds now."""
        return int(self._facts.memory_info().rss)

    def cpu_s(self) -> float:
        """Return the processor time that it has used so far."""
        times = self._facts.cpu_times()
        return float(times.user + times.system)

    def open_files(self) -> int:
        """Return how many files and sockets it holds open."""
        return int(self._facts.num_fds())
