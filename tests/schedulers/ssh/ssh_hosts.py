"""Real hosts to log in to: an OpenSSH server in each of several network namespaces of this machine.

The namespaces share this machine's files, so each host gets a state folder of its own. It needs root, iproute2 and
Debian's package openssh-server.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

PROGRAMS = ("sshd", "ssh", "ssh-keygen", "ip")
#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 60.0
#: Where sshd wants an empty folder.
EMPTY = Path("/run/sshd")

SERVER = """
Port 22
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/sshd.{name}.pid
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
SetEnv HOLDFAST_HOME={folder}/home.{name} TEST_HOST={name}
MaxSessions 50
MaxStartups 100
"""
CLIENT = """
Host {name}
  HostName {address}
  User root
  IdentityFile {folder}/key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
"""


def why_not() -> str:
    """Say why there can be no hosts here; empty where there can."""
    search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=search) is None]
    if missing:
        return f"an OpenSSH server is not installed here ({', '.join(missing)})"
    return "" if os.geteuid() == 0 else "network namespaces need root"


class SshHosts:
    """Hosts named h0, h1 and so on; `close` leaves nothing of them."""

    def __init__(self, folder: Path, count: int = 4) -> None:
        self.folder = folder
        self.names = [f"h{n}" for n in range(count)]
        self.config = folder / "ssh_config"
        self._tag = f"hf{os.getpid() % 100_000}"
        self._net = f"10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
        self._made_empty = not EMPTY.exists()

    def start(self) -> None:
        """Make the network and start the servers."""
        for name in ("key", "host_key"):
            self._call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name))
        EMPTY.mkdir(mode=0o755, exist_ok=True)
        self._call("ip", "link", "add", self._tag, "type", "bridge")
        self._call("ip", "addr", "add", f"{self._net}.254/24", "dev", self._tag)
        self._call("ip", "link", "set", self._tag, "up")
        self.config.write_text("".join(self._client_settings(name) for name in self.names))
        for name in self.names:
            self._make_host(name)
        for name in self.names:
            self._wait_open(name)

    def address(self, name: str) -> str:
        """Return a host's address."""
        return f"{self._net}.{self.names.index(name) + 1}"

    def _make_host(self, name: str) -> None:
        space, wire = f"{self._tag}-{name}", f"{self._tag}{name}"
        self._call("ip", "netns", "add", space)
        self._call("ip", "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", space)
        self._call("ip", "link", "set", wire, "master", self._tag, "up")
        self._call("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        self._call("ip", "-n", space, "link", "set", "eth0", "up")
        self._call("ip", "-n", space, "link", "set", "lo", "up")
        self.start_server(name)

    def start_server(self, name: str) -> None:
        """Start a host's server."""
        settings = self.folder / f"sshd_config.{name}"
        settings.write_text(SERVER.format(folder=self.folder, name=name, address=self.address(name)))
        sshd = shutil.which("sshd", path="/usr/sbin:/sbin")
        self._call("ip", "netns", "exec", f"{self._tag}-{name}", str(sshd), "-f", str(settings))

    def _client_settings(self, name: str) -> str:
        return CLIENT.format(folder=self.folder, name=name, address=self.address(name))

    def _wait_open(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection((self.address(name), 22), 1.0).close()
            except OSError:
                assert time.monotonic() < deadline, f"{name} does not answer"
                time.sleep(0.05)
            else:
                return

    def processes(self, name: str) -> list[psutil.Process]:
        """Return what runs on a host."""
        done = subprocess.run(
            ["ip", "netns", "pids", f"{self._tag}-{name}"], capture_output=True, text=True, check=False
        )
        return [psutil.Process(int(pid)) for pid in done.stdout.split() if psutil.pid_exists(int(pid))]

    def job_processes(self) -> list[int]:
        """Return what runs on all hosts besides their servers and connections."""
        return [
            each.pid
            for name in self.names
            for each in self.processes(name)
            if each.is_running() and each.name() != "sshd" and each.status() != psutil.STATUS_ZOMBIE
        ]

    def kill_host(self, name: str) -> None:
        """Take a host away the way that power does: its network first, then all that runs there."""
        self._call("ip", "link", "set", f"{self._tag}{name}", "down")
        for each in self.processes(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)

    def revive_host(self, name: str) -> None:
        """Let a host start again, without what ran there."""
        self._call("ip", "link", "set", f"{self._tag}{name}", "up")
        self.start_server(name)
        self._wait_open(name)

    def close(self) -> None:
        """Stop everything on the hosts, and take the network away."""
        left = [each for name in self.names for each in self.processes(name)]
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        _, left = psutil.wait_procs(left, timeout=10)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", f"{self._tag}-{name}"], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self._tag], check=False, capture_output=True)
        if self._made_empty:
            with contextlib.suppress(OSError):
                EMPTY.rmdir()
        assert left == []

    def _call(self, *words: str) -> None:
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


PYTHON = sys.executable
