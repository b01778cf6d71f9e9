"""A real Ray cluster for the tests: a head on this machine, and nodes in network namespaces of it.

It needs root, iproute2 and Ray. The head has no CPUs of its own, so replicas run on the other nodes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

from tests.schedulers.namespaces import Namespaces, end

#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 240.0
START_TRIES = 5


def why_not() -> str:
    """Say why there can be no cluster here; empty where there can."""
    if not os.environ.get("HOLDFAST_TEST_CLUSTERS"):
        return "Ray is started only in make test-clusters"
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed here"
    if shutil.which("ip") is None:
        return "iproute2 is not installed here"
    return "" if os.geteuid() == 0 else "network namespaces need root"


class RayCluster:
    """A head and nodes h0, h1 and so on; `close` leaves nothing of them."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        self.folder = folder
        self._spaces = Namespaces("hr", 200, count)
        self.names = self._spaces.names
        self._head = self._spaces.gateway
        self._port, self._dashboard = free_port(), free_port()
        self.address = f"http://127.0.0.1:{self._dashboard}"
        self._before = {each.pid for each in psutil.process_iter()}

    def start(self) -> None:
        """Make the network, start the head and its nodes, and wait until all are there."""
        self._spaces.make()
        self._ray(
            "",
            *("--head", f"--node-ip-address={self._head}", f"--port={self._port}", "--dashboard-host=127.0.0.1"),
            *(f"--dashboard-port={self._dashboard}", "--num-cpus=0", f"--temp-dir={self.folder}/t"),
        )
        for name in self.names:
            self.start_node(name)
        self._wait_nodes(len(self.names) + 1)
        self._wait_jobs()

    def _wait_jobs(self) -> None:
        """Wait until jobs can be submitted: the agent that starts them comes up after its node."""
        from ray.job_submission import JobSubmissionClient

        client = JobSubmissionClient(self.address)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                job = client.submit_job(entrypoint="true")
            except RuntimeError as error:
                if time.monotonic() > deadline:
                    raise AssertionError("no job can be submitted") from error
                time.sleep(1.0)
            else:
                break
        while not client.get_job_status(job).is_terminal():
            assert time.monotonic() < deadline
            time.sleep(0.2)
        client.delete_job(job)

    def start_node(self, name: str) -> None:
        """Start Ray in a node's namespace."""
        address = f"--node-ip-address={self._spaces.address(name)}"
        self._ray(name, f"--address={self._head}:{self._port}", address, "--num-cpus=4")

    def _ray(self, node: str, *words: str) -> None:
        """Start Ray on a node, or the head on this machine."""
        before = self._spaces.words(node) if node else []
        program = [sys.executable, "-m", "ray.scripts.scripts", "start", *words, "--disable-usage-stats"]
        program += ["--object-store-memory=80000000", "--include-log-monitor=False"]
        env = {**os.environ, "PYTHONWARNINGS": "ignore"}
        for _ in range(START_TRIES):  # on a busy machine Ray gives up on a node after 30 s
            with (self.folder / "start.log").open("ab") as log:
                done = subprocess.run(
                    [*before, *program],
                    stdout=log,
                    stderr=log,
                    env=env,
                    timeout=PATIENCE_S,
                    cwd=self.folder,
                    check=False,
                )
            if done.returncode == 0:
                return
            for each in self._spaces.processes(node) if node else []:
                each.kill()
        raise AssertionError((self.folder / "start.log").read_text()[-3000:])

    def nodes(self) -> list[str]:
        """Return the addresses of the nodes that live."""
        import json

        with urllib.request.urlopen(f"{self.address}/nodes?view=summary", timeout=30) as answer:
            found = json.load(answer)["data"]["summary"]
        return [each["ip"] for each in found if each["raylet"].get("state") == "ALIVE"]

    def _wait_nodes(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError, KeyError):
                if len(self.nodes()) == count:
                    return
            assert time.monotonic() < deadline, f"not all nodes came up: {self.nodes()}"
            time.sleep(0.5)

    def name_of(self, address: str) -> str:
        """Name the node of an address."""
        return next(name for name in self.names if self._spaces.address(name) == address)

    def job_processes(self) -> list[str]:
        """Return the processes of jobs on all nodes: those that Ray did not start itself."""
        found = []
        for name in self.names:
            for each in self._spaces.processes(name):
                with contextlib.suppress(psutil.NoSuchProcess):
                    words = " ".join(each.cmdline())
                    if each.status() != psutil.STATUS_ZOMBIE and ("holdfast" in words or "sleep" in words):
                        found.append(words)
        return [each for each in found if "ray::" not in each and "raylet" not in each and "dashboard" not in each]

    def kill_node(self, address: str) -> None:
        """Take a node away the way that power does."""
        self._spaces.kill(self.name_of(address))

    def revive(self) -> None:
        """Start every node again that was killed."""
        for name in self.names:
            if not any("raylet" in each.name() for each in self._spaces.processes(name)):
                self._spaces.connect(name)
                self.start_node(name)
        self._wait_nodes(len(self.names) + 1)

    def close(self) -> None:
        """End everything that Ray has started, and take the network away."""
        mark = str(self.folder)
        left = [each for name in self.names for each in self._spaces.processes(name)]
        for each in psutil.process_iter(["pid", "cmdline", "environ"]):
            ours = mark in str(each.info["cmdline"]) or mark in str(each.info["environ"])
            if each.pid not in self._before and each.pid != os.getpid() and ours:
                left.append(each)
        for each in list(left):  # agents of the head have other names, and would keep their ports
            with contextlib.suppress(psutil.NoSuchProcess):
                left += each.children(recursive=True)
        alive = end(left)
        self._spaces.remove()
        assert alive == []


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])
