"""A keeper: a process that holds a template after its launch has ended, for the next launch that needs the same one.

Started by a launch with `--keep-warm` as `python -m holdfast.workers.keeper FD FOLDER KEY SECONDS MODULE...`; the first
launch speaks over FD. It serves one launch at a time, over a socket that only this user can reach, and ends when none
has come for SECONDS. A lock on KEY.lock says that it lives.

A launch's requests to fork go to the template as they are, with their descriptors. The workers become children of this
process, so it waits for them and reports their exit codes. When a launch goes away, what is left of its workers is
killed. They also die with this process, by the parent-death signal.

Messages are JSON objects, one to a packet; a request has its word under "ask". See `kept.py` for the launch's side.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.workers.child import OwnChild
from holdfast.workers.family import family
from holdfast.workers.gangs import stopped_by_signal
from holdfast.workers.linux import set_child_subreaper
from holdfast.workers.machine import KILL_TIMEOUT_S
from holdfast.workers.strays import children, end_strays, read_stat
from holdfast.workers.template import FDS_MAX
from holdfast.workers.warm import Template

REQUEST_BYTES_MAX = 4096
#: How much of its environment a template can tell in one packet.
ENV_BYTES_MAX = 64 * 1024
#: How long a caller may take to say what it wants, and to take in an answer.
CALL_TIMEOUT_S = 2.0
#: How long a predecessor that has been told to end may still hold the lock.
LOCK_TIMEOUT_S = 5.0


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return process and user at the other end of a local socket, as the kernel knows them."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return int(pid), int(uid)


class Keeper:
    """One template and the launch that uses it at present, if any."""

    def __init__(self, modules: list[str], listener: socket.socket, first: socket.socket, keep_s: float) -> None:
        self._listener = listener
        self._keep_s = keep_s
        self._client: socket.socket | None = first
        self._idle_since = time.monotonic()
        self._since = time.time()
        self._launches = 1
        self._workers: dict[int, OwnChild] = {}  # by pid; those that have ended wait to be reaped
        self._reported: set[int] = set()
        #: What the template has said of itself once its imports were done.
        self._ready: dict[str, Any] | None = None
        self._woken, wake = socket.socketpair()
        for end in (self._woken, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._wake = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        family().enter()
        set_child_subreaper(True)
        self._template = Template(modules)

    def serve(self) -> None:
        """Serve launches until none has come for too long, or the template is of no use any more."""
        while self._is_wanted():
            self._wait()
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
            self._look_at_template()
            self._report_ends()
            self._pass_stops_on()
            self._reap_others()
            if self._client is not None and _readable(self._client):
                self._hear(self._client)
            if _readable(self._listener):
                self._answer()
        self._template.close()

    def _is_wanted(self) -> bool:
        if self._client is not None:
            return True
        is_good = self._template.usable or self._template.importing
        return is_good and time.monotonic() < self._idle_since + self._keep_s

    def _wait(self) -> None:
        poll = select.poll()
        for each in (self._listener, self._woken, self._client):
            if each is not None:
                poll.register(each, select.POLLIN)
        if self._template.importing:
            poll.register(self._template.fileno(), select.POLLIN)
        for pid, child in self._workers.items():
            if pid not in self._reported:
                poll.register(child.fd, select.POLLIN)
        idle_s = self._idle_since + self._keep_s - time.monotonic()
        poll.poll(None if self._client is not None else max(0.0, idle_s) * 1000 + 1)

    # -- the template --------------------------------------------------------------------------------------------------

    def _look_at_template(self) -> None:
        template = self._template
        if self._ready is not None or (template.importing and not template.wait_ready(0.0) and template.importing):
            return
        env = {name: value for name, value in os.environ.items() if template.matters(name)}
        too_large = sum(map(len, env.values())) > ENV_BYTES_MAX
        self._ready = {
            "problem": template.why_not or ("the environment is too large" if too_large else ""),
            "seconds": template.seconds,
            "reads": sorted(template.reads),
            "walked": template.walked,
            "shadowable": template.shadowable,
            "env": {} if too_large else env,
            "cwd": str(Path.cwd()),
            "cpus": sorted(os.sched_getaffinity(0)),
            "template": template.pid,
        }
        self._send(self._ready)

    def _fork(self, request: bytes, fds: list[int]) -> None:
        """Pass a request to fork on, and the answer back; its workers are ours now."""
        answer = self._template.forward([request], fds)
        self._workers.update({pid: OwnChild(pid) for pid in answer["pids"]})
        self._send(answer)

    # -- the launch ----------------------------------------------------------------------------------------------------

    def _hear(self, client: socket.socket) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(client, REQUEST_BYTES_MAX, FDS_MAX)
        except OSError:
            data, fds = b"", []
        try:
            if not data:
                self._part()
            elif data in (b"fork", b"standby"):
                self._fork(data, fds)
            else:
                self._obey(json.loads(data))
        finally:
            for fd in fds:
                os.close(fd)

    def _obey(self, request: dict[str, Any]) -> None:
        match request.get("ask"):
            case "reap":
                if (child := self._workers.pop(int(request["pid"]), None)) is not None:
                    self._reported.discard(child.pid)
                    child.release()
            case "end":
                self._template.close()

    def _report_ends(self) -> None:
        for pid, child in self._workers.items():
            if pid not in self._reported and (code := child.status()) is not None:
                self._reported.add(pid)
                self._send({"exited": pid, "code": code})

    def _pass_stops_on(self) -> None:
        """Wake the launch's agent where a worker was stopped, as SIGCHLD would if it were the agent's own child."""
        if self._client is not None and stopped_by_signal(self._workers):
            with contextlib.suppress(OSError):
                os.kill(peer_of(self._client)[0], signal.SIGCHLD)

    def _reap_others(self) -> None:
        """Reap what fell to us when workers ended that had started it."""
        for pid in children(os.getpid()):
            stat = read_stat(pid)
            if pid not in self._workers and pid != self._template.pid and stat is not None and stat.state == "Z":
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _part(self) -> None:
        """The launch is gone: end what is left of its workers, and wait for the next launch."""
        assert self._client is not None
        self._client.close()
        self._client, self._idle_since = None, time.monotonic()
        for pid in self._workers:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        end_strays(self._workers, frozenset({self._template.pid}), None, KILL_TIMEOUT_S)
        for child in self._workers.values():
            with contextlib.suppress(OSError):
                os.waitpid(child.pid, 0)
            child.release()
        self._workers, self._reported = {}, set()

    def _send(self, message: dict[str, Any]) -> None:
        if self._client is not None:
            with contextlib.suppress(OSError):  # it is gone, which the next look at the socket tells
                self._client.send(json.dumps(message).encode())

    # -- callers -------------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(CALL_TIMEOUT_S)
        try:
            if peer_of(connection)[1] != os.geteuid():
                connection.close()
                return
            request = json.loads(connection.recv(REQUEST_BYTES_MAX))
            if request.get("ask") == "attach" and self._attach(connection, float(request["keep_s"])):
                return
            if request.get("ask") == "status":
                connection.send(json.dumps(self._status()).encode())
            elif request.get("ask") == "stop":
                self._keep_s = 0.0
                connection.send(json.dumps({"stopping": True, **self._status()}).encode())
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            pass  # a caller that says nothing sensible, or is gone
        connection.close()

    def _attach(self, connection: socket.socket, keep_s: float) -> bool:
        """Take a launch in; says whether its connection stays open."""
        if self._client is not None:
            connection.send(json.dumps({"refused": "another launch uses it"}).encode())
            return False
        if self._ready is not None and (changed := self._template.changed_files()):
            connection.send(json.dumps({"refused": f"{changed[0]} has changed", "stale": True}).encode())
            self._keep_s = 0.0
            return False
        self._client, self._keep_s = connection, keep_s
        self._launches += 1
        connection.send(json.dumps({"attached": os.getpid()}).encode())
        if self._ready is not None:
            self._send(self._ready)
        return True

    def _status(self) -> dict[str, Any]:
        busy = self._client is not None
        return {
            "pid": os.getpid(),
            "template": self._template.pid,
            "modules": list(self._template.modules),
            "since": self._since,
            "busy": busy,
            "importing": self._template.importing,
            "launches": self._launches,
            "idle_left_s": None if busy else max(0.0, self._idle_since + self._keep_s - time.monotonic()),
        }


def _readable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def lock(path: Path, timeout_s: float) -> int | None:
    """Take the lock that says that a keeper lives; None where another one holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    until = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= until:
                os.close(fd)
                return None
            time.sleep(0.05)
        else:
            return fd


def main() -> int:
    """Hold the lock, listen, serve."""
    first = socket.socket(fileno=int(sys.argv[1]))
    folder, key, keep_s, modules = Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]), sys.argv[5:]
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    held = lock(folder / f"{key}.lock", LOCK_TIMEOUT_S)
    if held is None:
        first.send(json.dumps({"problem": "another launch has just begun to keep the same one"}).encode())
        return 1
    # Through the folder's descriptor: the name of a socket may have 107 bytes, and a home folder's may have more.
    place = f"/proc/self/fd/{here}/{key}.sock"
    with contextlib.suppress(FileNotFoundError):
        Path(place).unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place)
        listener.listen(8)
        try:
            Keeper(modules, listener, first, keep_s).serve()
        finally:
            Path(place).unlink()
            (folder / f"{key}.lock").unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
