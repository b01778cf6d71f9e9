"""A real etcd of several members, each of which can be killed and started again."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from holdfast.rendezvous.etcd_access import EtcdAccess
from holdfast.wire.address import Endpoint
from holdfast.wire.ports import HeldPort

#: `make test-etcd` names the servers to test with; otherwise the one that is found first is used.
BINARIES_VARIABLE = "HOLDFAST_TEST_ETCD"


def binaries() -> list[str]:
    """The etcd servers to test with."""
    named = [each for each in os.environ.get(BINARIES_VARIABLE, "").split(os.pathsep) if each]
    found = shutil.which("etcd", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    return named or ([found] if found else [])


class Cluster:
    """Some members on loopback, or each on an address of its own."""

    def __init__(
        self,
        binary: str,
        folder: Path,
        members: int = 1,
        *,
        tls: tuple[Path, Path, Path] | None = None,
        hosts: Sequence[str] = (),
        prefixes: Sequence[tuple[str, ...]] = (),
    ) -> None:
        self._binary, self._folder, self._tls = binary, folder, tls
        self._hosts = hosts or ["127.0.0.1"] * members
        self._prefixes = prefixes or [()] * members
        self._ports = [(HeldPort(), HeldPort()) for _ in range(members)]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * members
        scheme = "https" if tls else "http"
        self._clients = [f"{scheme}://{host}:{own[0].port}" for host, own in zip(self._hosts, self._ports, strict=True)]
        self._peers = [f"http://{host}:{own[1].port}" for host, own in zip(self._hosts, self._ports, strict=True)]
        self.endpoints = tuple(Endpoint(host, own[0].port) for host, own in zip(self._hosts, self._ports, strict=True))
        self._is_new = True

    @property
    def access(self) -> EtcdAccess:
        return EtcdAccess(self.endpoints)

    def start(self, *members: int) -> None:
        """Start members, all by default, and wait until they answer."""
        numbers = members or tuple(range(len(self._processes)))
        for number in numbers:
            self._start(number)
        self._is_new = False
        for number in numbers:
            while not self.is_healthy(number):
                process = self._processes[number]
                assert process is not None
                assert process.poll() is None, self._log(number).read_text()[-2000:]
                time.sleep(0.05)

    def kill(self, *members: int) -> None:
        """Kill members, all by default."""
        for number in members or tuple(range(len(self._processes))):
            process, self._processes[number] = self._processes[number], None
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def close(self) -> None:
        self.kill()
        for pair in self._ports:
            for port in pair:
                port.close()

    def leader(self) -> int:
        """Return which member leads; waits until one does."""
        while True:
            for number in range(len(self._processes)):
                if self._processes[number] is not None and "etcd_server_is_leader 1" in self._get(number, "/metrics"):
                    return number
            time.sleep(0.05)

    def is_healthy(self, number: int) -> bool:
        return '"true"' in self._get(number, "/health")

    def _get(self, number: int, path: str) -> str:
        context = None
        if self._tls is not None:
            context = ssl.create_default_context(cafile=str(self._tls[0]))
            context.load_cert_chain(*self._tls[1:])
        try:
            with urllib.request.urlopen(self._clients[number] + path, timeout=2, context=context) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def _start(self, number: int) -> None:
        client, peer = self._clients[number], self._peers[number]
        names = ",".join(f"m{each}={url}" for each, url in enumerate(self._peers))
        command = [
            *(
                *self._prefixes[number],
                self._binary,
                "--name",
                f"m{number}",
                "--data-dir",
                str(self._folder / f"m{number}"),
            ),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", names),
            *("--initial-cluster-state", "new" if self._is_new else "existing"),
        ]
        if self._tls is not None:
            ca, cert, key = map(str, self._tls)
            command += ["--trusted-ca-file", ca, "--cert-file", cert, "--key-file", key, "--client-cert-auth"]
        with self._log(number).open("ab") as log:
            self._processes[number] = subprocess.Popen(command, stdout=log, stderr=log)

    def _log(self, number: int) -> Path:
        return self._folder / f"m{number}.log"
