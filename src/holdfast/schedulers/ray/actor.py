"""What runs on a node of Ray for one replica: it starts its supervisor, and gives its output to the driver."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from holdfast.launcher.slurm import port_of
from holdfast.schedulers import cluster
from holdfast.schedulers.local.capture import COMBINED
from holdfast.schedulers.local.folders import JobFolder, write_json
from holdfast.schedulers.local.logs import Reader
from holdfast.schedulers.local.record import LocalRequest
from holdfast.schedulers.local.render import DEFAULT_PATH
from holdfast.schedulers.ray.node import OVER
from holdfast.wire.secret import SECRET_FILE_VARIABLE, VARIABLES, write_secret

#: How long a question of the driver may stay open while there is nothing to say, and how often is looked.
POLL_S, LOOK_S = 2.0, 0.05
PORT_TRIES = 100
#: How long a supervisor may take to end.
CLEAN_S = 30.0


class NodeActor:
    """One replica on one node. Questions wait in a thread of their own, so that orders get through."""

    def __init__(self) -> None:
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: Reader | None = None
        self._busy = threading.Lock()

    def where(self) -> tuple[str, str]:
        """Return the node that this actor is on, and its address."""
        import ray

        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def port(self, app_id: str) -> int:
        """Return a port that is free on this node."""
        return free_port(app_id)

    def start(self, data: dict[str, Any], first: str, port: int, secret: bytes | None) -> int:
        """Start the replica; returns the id of its supervisor's process."""
        self.clean()
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-ray-"))
        (self._folder / cluster.BIN).mkdir()
        python = self._folder / cluster.BIN / "python"
        python.write_text(cluster.python_script(sys.executable))
        python.chmod(0o700)
        values = {
            f"{cluster.JOB_FOLDER}/logs": str(self._folder / "logs"),
            f"{cluster.JOB_FOLDER}/{cluster.BIN}": str(self._folder / cluster.BIN),
            cluster.JOB_FOLDER: os.getcwd(),  # noqa: PTH109 - Ray put what was shipped here
            cluster.FIRST_HOST: first,
            cluster.PORT: str(port),
            cluster.PATH: os.environ.get("PATH") or DEFAULT_PATH,
        }
        request = cluster.fill(LocalRequest.from_json(data), values)
        plan = request.replicas[0]
        if secret is not None and not plan.env.keys() & set(VARIABLES):
            write_secret(self._folder / "secret", secret)
            plan.env[SECRET_FILE_VARIABLE] = str(self._folder / "secret")
        write_json(self._folder / "job.json", request.to_json())
        self._reader = Reader(Path(plan.log_dir) / COMBINED)
        words = [sys.executable, "-P", "-m", "holdfast.schedulers.ray.node", str(self._folder)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
        return self._process.pid

    def poll(self) -> dict[str, Any]:
        """Return what is new: lines of output, and the replica's last record once it has ended."""
        assert self._process is not None
        assert self._reader is not None
        deadline = time.monotonic() + POLL_S
        with self._busy:
            while True:
                # Before the log is read: then this is all.
                over = (self._folder / OVER).exists() or self._process.poll() is not None
                lines = self._reader.read()
                if lines:
                    return {"lines": [line.decode("utf-8", "backslashreplace") for line in lines], "ended": None}
                if over:
                    rest = [line.decode("utf-8", "backslashreplace") for line in self._reader.last()]
                    return {"lines": rest, "ended": self._last_record()}
                if time.monotonic() > deadline:
                    return {"lines": [], "ended": None}
                time.sleep(LOOK_S)

    def _last_record(self) -> dict[str, Any]:
        record = JobFolder(self._folder).read_state()
        if record is None or not record.replicas:
            return {"state": "FAILED", "cause": "its supervisor did not begin"}
        found: dict[str, Any] = msgspec.to_builtins(record.replicas[0])
        return found

    def stop(self, hard: bool) -> None:
        """End the replica."""
        if self._process is not None and self._process.poll() is None:
            if hard:
                (self._folder / "kill").touch()
                (self._folder / "cancel").touch()
            self._process.send_signal(signal.SIGTERM)

    def clean(self) -> None:
        """Remove what the replica has left on this node."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()  # it then ends what is left, and removes its folder
        try:
            self._process.wait(CLEAN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)  # where it was killed
        self._process = None


def free_port(app_id: str) -> int:
    """Return a port of this machine that is free, chosen by the job's id."""
    for attempt in range(PORT_TRIES):
        port = port_of(app_id, attempt)
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"none of {PORT_TRIES} ports is free on {os.uname().nodename}")
