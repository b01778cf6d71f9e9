"""Real hosts to log in to: an OpenSSH server in each of several network namespaces of this machine.

The namespaces share this machine's files, so each host gets a state folder of its own. It needs root, iproute2 and
Debian's package openssh-server.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import time
from pathlib import Path

import psutil

from tests.schedulers.namespaces import Namespaces, call, end

PROGRAMS = ("sshd", "ssh", "ssh-keygen", "ip")
#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 240.0
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
        self.config = folder / "ssh_config"
        self._spaces = Namespaces("hf", 100, count)
        self.names = self._spaces.names
        self.address, self.processes = self._spaces.address, self._spaces.processes
        self._made_empty = not EMPTY.exists()

    def start(self) -> None:
        """Make the network and start the servers."""
        for name in ("key", "host_key"):
            call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name))
        EMPTY.mkdir(mode=0o755, exist_ok=True)
        self._spaces.make()
        self.config.write_text("".join(self._client_settings(name) for name in self.names))
        for name in self.names:
            self.start_server(name)
        for name in self.names:
            self._wait_open(name)

    def start_server(self, name: str) -> None:
        """Start a host's server."""
        settings = self.folder / f"sshd_config.{name}"
        settings.write_text(SERVER.format(folder=self.folder, name=name, address=self.address(name)))
        sshd = shutil.which("sshd", path="/usr/sbin:/sbin")
        call(*self._spaces.words(name), str(sshd), "-f", str(settings))

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

    def job_processes(self) -> list[int]:
        """Return what runs on all hosts besides their servers and connections."""
        return [
            each.pid
            for name in self.names
            for each in self.processes(name)
            if each.is_running() and each.name() != "sshd" and each.status() != psutil.STATUS_ZOMBIE
        ]

    def kill_host(self, name: str) -> None:
        """Take a host away the way that power does."""
        self._spaces.kill(name)

    def revive_host(self, name: str) -> None:
        """Let a host start again, without what ran there."""
        self._spaces.connect(name)
        self.start_server(name)
        self._wait_open(name)

    def close(self) -> None:
        """Stop everything on the hosts, and take the network away."""
        left = end([each for name in self.names for each in self.processes(name)])
        self._spaces.remove()
        if self._made_empty:
            with contextlib.suppress(OSError):
                EMPTY.rmdir()
        assert left == []


PYTHON = sys.executable
