"""Real engines for the tests: a dockerd of their own, and a Podman with its own storage.

Both run an image of empty folders, into which the programs of this machine are mounted, so nothing is pulled. It needs
root and Debian's packages docker.io, or podman with netavark, aardvark-dns and runc.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

ENGINES = ("docker", "podman")
IMAGE = "holdfast-test:1"
#: No test waits for that long; it only keeps a broken one from hanging.
PATIENCE_S = 240.0
ROOT = Path(__file__).parents[3]
NEEDED = {"docker": ("dockerd", "docker", "containerd", "runc"), "podman": ("podman", "runc")}
#: Where Debian has the programs that make Podman's networks and answer for names.
HELPERS = "/usr/lib/podman"

CONFIGURATION = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""
WRAPPER = """#!/bin/sh
exec {podman} --root {folder}/root --runroot {folder}/run --network-config-dir {folder}/net --tmpdir {folder}/tmp "$@"
"""


def why_not(engine: str) -> str:
    """Say why there can be no engine here; empty where there can."""
    if not os.environ.get("HOLDFAST_TEST_CLUSTERS"):
        return "daemons are started only in make test-clusters"
    missing = [name for name in NEEDED[engine] if shutil.which(name) is None]
    if missing:
        return f"{engine} is not installed here ({', '.join(missing)})"
    if engine == "podman" and not Path(HELPERS, "netavark").exists():
        return "podman's networks are not installed here (netavark)"
    return "" if os.geteuid() == 0 else f"{engine} of the tests needs root"


class TestEngine:
    """One engine; `environ` leads to it, and `close` leaves nothing of it."""

    __test__ = False

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self._daemon: subprocess.Popen[bytes] | None = None
        self._socket = folder / "d.sock"
        self.environ = {"DOCKER_HOST": f"unix://{self._socket}"} if name == "docker" else self._podman()

    def _podman(self) -> dict[str, str]:
        (self.folder / "bin").mkdir()
        wrapper = self.folder / "bin" / "podman"
        wrapper.write_text(WRAPPER.format(podman=shutil.which("podman"), folder=self.folder))
        wrapper.chmod(0o755)
        (self.folder / "containers.conf").write_text(CONFIGURATION)
        path = f"{wrapper.parent}:{os.environ['PATH']}"
        return {"PATH": path, "CONTAINERS_CONF": str(self.folder / "containers.conf")}

    def start(self) -> None:
        """Start the engine, and give it the image."""
        if self.name == "docker":
            self.start_daemon()
        change = f"ENV PATH={sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin"
        self.call("import", "--change", change, "-", IMAGE, stdin=rootfs())

    def start_daemon(self) -> None:
        """Start dockerd, and wait until it answers. It leaves this machine's firewall alone."""
        words = ["dockerd", f"--data-root={self.folder}/root", f"--exec-root={self.folder}/exec"]
        words += [f"--host=unix://{self._socket}", f"--pidfile={self.folder}/d.pid", "--bridge=none"]
        pool = f"base=10.{150 + os.getpid() % 50}.0.0/16,size=24"
        words += [f"--default-address-pool={pool}"]  # beside other daemons of this machine
        words += ["--iptables=false", "--ip6tables=false", "--ip-masq=false", "--live-restore"]
        with (self.folder / "log").open("ab") as log:
            self._daemon = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + PATIENCE_S
        while self._run("version").returncode:
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
            assert self._daemon.poll() is None, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.05)

    def stop_daemon(self) -> None:
        """End dockerd, not its containers."""
        assert self._daemon is not None
        self._daemon.terminate()
        self._daemon.wait(PATIENCE_S)
        self._daemon = None

    def call(self, *words: str, stdin: bytes = b"") -> str:
        """Run a command of the engine and return what it prints."""
        done = self._run(*words, stdin=stdin)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.decode()

    def _run(self, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        env = {**os.environ, **self.environ}
        program = shutil.which(self.name, path=env["PATH"])
        return subprocess.run([str(program), *words], env=env, input=stdin, capture_output=True, timeout=PATIENCE_S)

    def left(self) -> list[str]:
        """Name the containers, networks and images of jobs that are there."""
        label = "--filter=label=holdfast.job"
        found = self.call("ps", "--all", "--format={{.Names}}", label).split()
        found += self.call("network", "ls", "--format={{.Name}}", label).split()
        return found + self.call("image", "ls", "--format={{.Repository}}:{{.Tag}}", label).split()

    def kill(self, container: str) -> None:
        """Kill a container, as it is in this world."""
        self.call("kill", "--signal=KILL", container)

    def flags(self) -> list[str]:
        """Return the flags that mount the programs of this machine."""
        packages = [each for each in sys.path if each.startswith("/") and Path(each).is_dir()]
        places: list[str] = []
        for each in ["/usr", sys.base_prefix, sys.prefix, str(ROOT / "src"), *packages]:
            if not any(Path(each).is_relative_to(place) for place in places):
                places.append(each)
        return [f"--volume={each}:{each}:ro" for each in places]

    def close(self) -> None:
        """Remove everything that is there, then the engine itself."""
        for container in self._run("ps", "--all", "--quiet").stdout.decode().split():
            self._run("rm", "--force", container)
        for network in self._run("network", "ls", "--quiet", "--filter=label=holdfast.job").stdout.decode().split():
            self._run("network", "rm", network)
        if self._daemon is not None:
            self._daemon.terminate()
            try:
                self._daemon.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._daemon.pid, signal.SIGKILL)
                self._daemon.wait()
        unmount_below(self.folder)


def unmount_below(folder: Path) -> None:
    """Unmount what an engine has left mounted."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((each for each in mounts if each.startswith(str(folder))), reverse=True):
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["umount", "--lazy", mount], check=True, capture_output=True)


def rootfs() -> bytes:
    """Return an image of empty folders, with two users."""
    files = {
        "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nsam:x:1234:1234:sam:/tmp:/bin/sh\n",
        "etc/group": "root:x:0:\nsam:x:1234:\n",
        "etc/nsswitch.conf": "hosts: files dns\n",
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("usr", "proc", "sys", "dev", "tmp", "etc", "root", "sbin", "run", "var", "workspace"):
            made = tarfile.TarInfo(name)
            made.type, made.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(made)
        for name in ("bin", "lib", "lib64"):
            made = tarfile.TarInfo(name)
            made.type, made.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(made)
        for name, text in files.items():
            made = tarfile.TarInfo(name)
            made.size, made.mode = len(text), 0o644
            tar.addfile(made, io.BytesIO(text.encode()))
    return buffer.getvalue()
