"""Hosts for tests: network namespaces of this machine on one bridge, with its files. They need root and iproute2."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

import psutil


class Namespaces:
    """Hosts named h0, h1 and so on, and this machine at `gateway`; `remove` leaves nothing of them."""

    def __init__(self, prefix: str, first_byte: int, count: int) -> None:
        self.names = [f"h{n}" for n in range(count)]
        self._tag = f"{prefix}{os.getpid() % 100_000}"
        self._net = f"10.{first_byte + os.getpid() % 50}.{os.getpid() // 100 % 250}"
        self.gateway = f"{self._net}.254"

    def make(self) -> None:
        """Make the bridge and the hosts."""
        call("ip", "link", "add", self._tag, "type", "bridge")
        call("ip", "addr", "add", f"{self.gateway}/24", "dev", self._tag)
        call("ip", "link", "set", self._tag, "up")
        for name in self.names:
            space, wire = f"{self._tag}-{name}", f"{self._tag}{name}"
            call("ip", "netns", "add", space)
            call("ip", "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", space)
            call("ip", "link", "set", wire, "master", self._tag, "up")
            call("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            call("ip", "-n", space, "link", "set", "eth0", "up")
            call("ip", "-n", space, "link", "set", "lo", "up")

    def address(self, name: str) -> str:
        """Return a host's address."""
        return f"{self._net}.{self.names.index(name) + 1}"

    def words(self, name: str) -> list[str]:
        """Return the words before a command that make it run on a host."""
        return ["ip", "netns", "exec", f"{self._tag}-{name}"]

    def processes(self, name: str) -> list[psutil.Process]:
        """Return what runs on a host."""
        words = ["ip", "netns", "pids", f"{self._tag}-{name}"]
        found = []
        for pid in subprocess.run(words, capture_output=True, text=True, check=False).stdout.split():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(pid)))
        return found

    def kill(self, name: str) -> None:
        """Take a host away the way that power does: its network first, then all that runs there."""
        call("ip", "link", "set", f"{self._tag}{name}", "down")
        for each in self.processes(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)

    def connect(self, name: str) -> None:
        """Give a host that was killed its network back."""
        call("ip", "link", "set", f"{self._tag}{name}", "up")

    def remove(self) -> None:
        """Take the network away; what runs on the hosts must have ended."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", f"{self._tag}-{name}"], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self._tag], check=False, capture_output=True)


def call(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def end(processes: list[psutil.Process], timeout_s: float = 20.0) -> list[psutil.Process]:
    """Kill processes, and return those that live on."""
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGKILL)
    _, left = psutil.wait_procs(processes, timeout=timeout_s)
    return [each for each in left if each.is_running()]
