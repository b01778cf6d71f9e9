"""A process that has imported torch, and forks a child for every script that a test wants to run.

To import torch and to make the first optimizer takes three seconds of processor time; what most scripts of the tests do
takes less than one. A script that is forked begins like one in a new interpreter: with its own arguments, environment
and streams, as `__main__`, with one thread, and with nothing of holdfast imported. It shares with the others the seed
of its hashes and the options of the interpreter, so a few tests of each kind start new interpreters.

The server ends when the process that started it closes the socket or dies, and when nothing was asked for long.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import IO, Any

#: torch, and what it imports later, when the first optimizer is made.
PRELOADED = ("numpy", "torch", "torch._dynamo", "torch.distributed", "torch.utils.data")

#: After so long without a request the server ends by itself.
IDLE_S = 600.0
#: Only a broken server takes so long to answer. Before the first answer it imports torch, on a busy machine.
PATIENCE_S = 300.0

#: Variables that are read when an interpreter or a library is loaded; the server's are those of its first script.
AT_START = ("PYTHON", "OMP_", "MKL_", "LD_")

REQUEST_BYTES_MAX = 1 << 20
STATUS = struct.Struct("i")


class ForkServer:
    """Starts scripts; the server itself is started for the first one, and again where it has ended meanwhile."""

    def __init__(self, *switches: str) -> None:
        self._switches = switches
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._asked_at = 0.0

    def start(self, argv: list[str], env: dict[str, str]) -> Script:
        """Run `argv[0]`, a Python file, as a process of its own."""
        stdout, stdout_w = os.pipe()
        stderr, stderr_w = os.pipe()
        status, status_w = os.pipe()
        request = json.dumps({"argv": argv, "env": env, "cwd": str(Path.cwd())}).encode()
        assert len(request) <= REQUEST_BYTES_MAX
        try:
            answer = self._ask(request, [stdout_w, stderr_w, status_w], env)
        finally:
            for fd in (stdout_w, stderr_w, status_w):
                os.close(fd)
        return Script(argv, *answer, status, os.fdopen(stdout), os.fdopen(stderr))

    def _ask(self, request: bytes, fds: list[int], env: dict[str, str]) -> tuple[int, int]:
        # A server that may be about to end is not asked.
        if self._server is None or self._server.poll() is not None or time.monotonic() - self._asked_at > IDLE_S / 2:
            self.close()
            self._begin(env)
        self._asked_at = time.monotonic()
        assert self._socket is not None
        socket.send_fds(self._socket, [request], fds)
        answer, got, _, _ = socket.recv_fds(self._socket, STATUS.size, 1, socket.MSG_CMSG_CLOEXEC)
        assert answer, "the fork server has ended"
        return STATUS.unpack(answer)[0], got[0]

    def _begin(self, env: dict[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(PATIENCE_S)
        self._socket = ours
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, *self._switches, __file__], stdin=theirs, stdout=subprocess.DEVNULL, env=env
            )

    def close(self) -> None:
        """End the server; scripts that run go on."""
        if self._socket is not None:
            self._socket.close()
        if self._server is not None:
            self._server.wait(PATIENCE_S)


class Script:
    """A script that runs, with what is used of `subprocess.Popen`."""

    def __init__(self, argv: list[str], pid: int, pidfd: int, status: int, stdout: IO[str], stderr: IO[str]) -> None:
        self.args, self.pid, self.stdout, self.stderr = argv, pid, stdout, stderr
        self.returncode: int | None = None
        self._pidfd, self._status = pidfd, status

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            told = os.read(self._status, STATUS.size)
            os.close(self._status)
            os.close(self._pidfd)
            assert told, "the fork server has ended before its script"
            self.returncode = STATUS.unpack(told)[0]
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


# -- in the server ------------------------------------------------------------------------------------------------


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork for every request. Returns in each child what it was asked to run, and nothing in the server in the end."""
    running: dict[int, tuple[int, int]] = {}  # by pidfd: its pid, and where its end is told
    while True:
        ready = select.select([control, *running], [], [], IDLE_S)[0]
        if not ready and not running:
            return None
        for pidfd in running.keys() & ready:
            pid, status = running.pop(pidfd)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            try:
                os.write(status, STATUS.pack(code))
            except BrokenPipeError:
                pass  # the test did not wait for it
            os.close(status)
            os.close(pidfd)
        if control not in ready:
            continue
        request, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 3, socket.MSG_CMSG_CLOEXEC)
        if not request:
            return None
        assert len(list(Path("/proc/self/task").iterdir())) == 1, "a child would have only one of these threads"
        pid = os.fork()
        if pid == 0:
            for number, fd in enumerate(fds[:2], start=1):
                os.dup2(fd, number)
            for fd in (*fds, *running, *(status for _, status in running.values())):
                os.close(fd)
            control.detach()
            return json.loads(request)
        for fd in fds[:2]:
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        running[pidfd] = pid, fds[2]
        socket.send_fds(control, [STATUS.pack(pid)], [pidfd])


def become(request: dict[str, Any]) -> dict[str, Any]:
    """Make this process what a cold one would be when its script begins; returns the names of its `__main__`."""
    with Path(os.devnull).open() as null:
        os.dup2(null.fileno(), 0)
    os.chdir(request["cwd"])
    kept = {name: value for name, value in os.environ.items() if name.startswith(AT_START)}
    wanted = {name: value for name, value in request["env"].items() if name.startswith(AT_START)}
    assert kept == wanted, f"too late for {kept.items() ^ wanted.items()}: the server has read them when it started"
    os.environ.clear()
    os.environ.update(request["env"])
    sys.modules["torch"].seed()
    sys.modules["numpy"].random.seed()
    sys.argv = request["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent.absolute())
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = sys.argv[0]
    return main.__dict__


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a child does not touch, and so copy, what all have in common
    with socket.socket(fileno=0) as control:
        asked = serve(control)
    if asked is not None:
        names = become(asked)
        exec(compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec"), names)
