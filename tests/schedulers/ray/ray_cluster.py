"""A real Ray cluster for the tests: a head on this machine, and nodes in network namespaces of it.

It needs root, iproute2 and Ray. The head has no CPUs of its own, so replicas run on the other nodes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 180.0
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
        self.names = [f"h{n}" for n in range(count)]
        self._tag = f"hr{os.getpid() % 100_000}"
        self._net = f"10.{200 + os.getpid() % 50}.{os.getpid() // 100 % 250}"
        self._port, self._dashboard = free_port(), free_port()
        self.address = f"http://127.0.0.1:{self._dashboard}"
        self._before = {each.pid for each in psutil.process_iter()}

    def start(self) -> None:
        """Make the network, start the head and its nodes, and wait until all are there."""
        self._call("ip", "link", "add", self._tag, "type", "bridge")
        self._call("ip", "addr", "add", f"{self._net}.254/24", "dev", self._tag)
        self._call("ip", "link", "set", self._tag, "up")
        self._ray(
            [],
            *("--head", f"--node-ip-address={self._net}.254", f"--port={self._port}", "--dashboard-host=127.0.0.1"),
            *(f"--dashboard-port={self._dashboard}", "--num-cpus=0", f"--temp-dir={self.folder}/t"),
        )
        for name in self.names:
            self.make_node(name)
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

    def node_address(self, name: str) -> str:
        return f"{self._net}.{self.names.index(name) + 1}"

    def make_node(self, name: str) -> None:
        """Make a node's namespace and start it there."""
        space, wire = f"{self._tag}-{name}", f"{self._tag}{name}"
        self._call("ip", "netns", "add", space)
        self._call("ip", "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", space)
        self._call("ip", "link", "set", wire, "master", self._tag, "up")
        self._call("ip", "-n", space, "addr", "add", f"{self.node_address(name)}/24", "dev", "eth0")
        self._call("ip", "-n", space, "link", "set", "eth0", "up")
        self._call("ip", "-n", space, "link", "set", "lo", "up")
        self.start_node(name)

    def start_node(self, name: str) -> None:
        """Start Ray in a node's namespace."""
        words = ["ip", "netns", "exec", f"{self._tag}-{name}"]
        address = f"--node-ip-address={self.node_address(name)}"
        self._ray(words, f"--address={self._net}.254:{self._port}", address, "--num-cpus=4")

    def _ray(self, before: list[str], *words: str) -> None:
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
            for each in self.processes(before[-1].rpartition("-")[2]) if before else []:
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
        return next(name for name in self.names if self.node_address(name) == address)

    def processes(self, name: str) -> list[psutil.Process]:
        """Return what runs on a node."""
        done = subprocess.run(
            ["ip", "netns", "pids", f"{self._tag}-{name}"], capture_output=True, text=True, check=False
        )
        found = []
        for pid in done.stdout.split():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(pid)))
        return found

    def job_processes(self) -> list[str]:
        """Return the processes of jobs on all nodes: those that Ray did not start itself."""
        found = []
        for name in self.names:
            for each in self.processes(name):
                with contextlib.suppress(psutil.NoSuchProcess):
                    words = " ".join(each.cmdline())
                    if each.status() != psutil.STATUS_ZOMBIE and ("holdfast" in words or "sleep" in words):
                        found.append(words)
        return [each for each in found if "ray::" not in each and "raylet" not in each and "dashboard" not in each]

    def kill_node(self, address: str) -> None:
        """Take a node away the way that power does: its network first, then all that runs there."""
        name = self.name_of(address)
        self._call("ip", "link", "set", f"{self._tag}{name}", "down")
        for each in self.processes(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)

    def revive(self) -> None:
        """Start every node again that was killed."""
        for name in self.names:
            if not any("raylet" in each.name() for each in self.processes(name)):
                self._call("ip", "link", "set", f"{self._tag}{name}", "up")
                self.start_node(name)
        self._wait_nodes(len(self.names) + 1)

    def close(self) -> None:
        """End everything that Ray has started, and take the network away."""
        mark = str(self.folder)
        left = [each for name in self.names for each in self.processes(name)]
        for each in psutil.process_iter(["pid", "cmdline", "environ"]):
            ours = mark in str(each.info["cmdline"]) or mark in str(each.info["environ"])
            if each.pid not in self._before and each.pid != os.getpid() and ours:
                left.append(each)
        for each in list(left):  # agents of the head have other names, and would keep their ports
            with contextlib.suppress(psutil.NoSuchProcess):
                left += each.children(recursive=True)
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(left, timeout=20)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", f"{self._tag}-{name}"], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self._tag], check=False, capture_output=True)
        assert [each for each in alive if each.is_running()] == []

    def _call(self, *words: str) -> None:
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])
