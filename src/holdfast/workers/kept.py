"""Kept templates, the launch's side: find the template that an earlier launch has left, or leave one behind.

A kept template is used only by a launch that would have made the very same one: of the same user, with the same
interpreter, the same modules in the same order, the same variables, CPUs, control groups and namespaces, while no file
that it has loaded has changed. All of that is in the key that its files are named by, or is checked when a launch
attaches. Anything else starts cold.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast import home
from holdfast.errors import UnavailableError
from holdfast.workers import linux, strays
from holdfast.workers.child import EXIT_CODE_TAKEN, Child
from holdfast.workers.family import family
from holdfast.workers.keeper import CALL_TIMEOUT_S, peer_of
from holdfast.workers.variables import is_import_variable
from holdfast.workers.warm import FORK_TIMEOUT_S, IMPORT_TIMEOUT_S, Template

ANSWER_BYTES_MAX = 1024 * 1024
#: How many templates may be kept at a time: each holds what its modules need.
KEPT_MAX = 4
#: How long the exit code of a worker that has ended may take to come.
CODE_TIMEOUT_S = 5.0
_OURS = ("template.py", "template_become.py", "template_imports.py", "bootstrap.py", "keeper.py", "warm.py")


def keep(modules: Sequence[str], env: Mapping[str, str], keep_s: float) -> Template:
    """Return the template that a keeper holds for such a launch, or begin to keep one.

    Raises `UnavailableError` with the reason where none can be kept; then a template of the launch's own will do.
    """
    folder = warm_folder()
    key = make_key(modules, env)
    problem = ""
    if (connection := _call(folder, key)) is not None:
        answer = _ask(connection, {"ask": "attach", "keep_s": keep_s})
        if "attached" in answer:
            return KeptTemplate(modules, connection, int(answer["attached"]))
        connection.close()
        problem = str(answer.get("refused", "it does not answer"))
        if not answer.get("stale"):
            raise UnavailableError(f"the kept template cannot be used: {problem}")
    if len(list(kept_keys(folder) - {key})) >= KEPT_MAX:
        raise UnavailableError(f"{KEPT_MAX} templates are kept already; `holdfast warm stop` ends them")
    return _begin(folder, key, modules, env, keep_s)


def find(modules: Sequence[str], env: Mapping[str, str], keep_s: float) -> Template | None:
    """Return the template that an earlier launch has left for this one, or None where there is none."""
    folder = warm_folder()
    key = make_key(modules, env)
    return keep(modules, env, keep_s) if key in kept_keys(folder) else None


def _begin(folder: Path, key: str, modules: Sequence[str], env: Mapping[str, str], keep_s: float) -> Template:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [
        sys.executable,
        "-P",
        "-m",
        "holdfast.workers.keeper",
        str(theirs.fileno()),
        str(folder),
        key,
        str(keep_s),
    ]
    try:
        process = subprocess.Popen(
            [*command, *modules],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(theirs.fileno(),),
        )
    except OSError as error:
        ours.close()
        raise UnavailableError(f"a keeper cannot be started: {error}") from error
    finally:
        theirs.close()
    process.returncode = 0  # it outlives this process; Popen must neither wait for it nor warn about it
    return KeptTemplate(modules, ours, process.pid)


class KeptTemplate(Template):
    """A template that a keeper holds; used like one of our own, and left to the keeper in the end."""

    def __init__(self, modules: Sequence[str], connection: socket.socket, keeper: int) -> None:
        self._set_up(modules, FORK_TIMEOUT_S, IMPORT_TIMEOUT_S)
        self._control = connection
        connection.setblocking(True)
        self._keeper = keeper
        self._env = {}
        self._template_pid = 0
        self._codes: dict[int, int] = {}
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        family().enter()
        strays.keepers.add(keeper)

    @property
    def pid(self) -> int:
        """The keeper's process id."""
        return self._keeper

    def child(self, pid: int) -> Child:
        """Return a worker that was forked, as what to wait on."""
        return KeptChild(pid, self)

    def _take_ready(self, answer: Mapping[str, Any]) -> None:
        super()._take_ready(answer)
        if self.usable:
            self._env = dict(answer["env"])
            self._template_pid = int(answer["template"])
            self._cwd, self._cpus = Path(answer["cwd"]), set(answer["cpus"])

    def _receive(self, timeout: float) -> dict[str, Any] | None:
        until = time.monotonic() + timeout
        while True:
            answer = super()._receive(max(0.0, until - time.monotonic()))
            if answer is None or "exited" not in answer:
                return answer
            self._codes[answer["exited"]] = answer["code"]

    def _last_words(self) -> str:
        return ""

    def wait_code(self, pid: int) -> int:
        """Return the exit code of a worker that has ended; the keeper tells it."""
        until = time.monotonic() + CODE_TIMEOUT_S
        while pid not in self._codes and time.monotonic() < until and not self._is_gone:
            self._receive_code(until - time.monotonic())
        if pid in self._codes:
            return self._codes.pop(pid)
        return -9 if self._is_gone else EXIT_CODE_TAKEN  # workers die with their keeper

    def _receive_code(self, timeout: float) -> None:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if poll.poll(max(0.0, timeout) * 1000):
            data = b""
            with contextlib.suppress(OSError):
                data = self._control.recv(ANSWER_BYTES_MAX)
            if not data:
                self._cut_off("its keeper has ended")
                return
            message = json.loads(data)
            if "exited" in message:
                self._codes[message["exited"]] = message["code"]

    def reap(self, pid: int) -> None:
        """Let the keeper reap a worker: its pid may be used again from now on."""
        self._say({"ask": "reap", "pid": pid})

    @property
    def _is_gone(self) -> bool:
        stat = strays.read_stat(self._keeper)
        return stat is None or stat.state in "ZX"

    def _cut_off(self, reason: str) -> None:
        """Give the template up; workers that it has forked go on, so the keeper must too."""
        self.why_not = reason
        self._say({"ask": "end"})

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(message).encode())

    def close(self) -> None:
        """Leave the template to its keeper."""
        if not self._closed:
            self._closed = True
            self.why_not = "it is closed"
            strays.keepers.discard(self._keeper)
            self._control.close()
            os.close(self._null)
            for pid in filter(None, (self._keeper, self._template_pid)) if self._is_gone else ():
                strays.wait_end(pid, 0.0)  # where they came to us
            family().leave()


class KeptChild:
    """A worker that is a child of the keeper: its end shows on a pidfd, its exit code comes from the keeper."""

    def __init__(self, pid: int, template: KeptTemplate) -> None:
        self.pid = pid
        self.fd = linux.open_pidfd(pid)
        self._template = template
        self._code: int | None = None

    def status(self) -> int | None:
        """Return its exit code, or None while it runs."""
        if self._code is None:
            poll = select.poll()
            poll.register(self.fd, select.POLLIN)
            if poll.poll(0):
                self._code = self._template.wait_code(self.pid)
        return self._code

    def release(self) -> None:
        """Let the keeper reap it, and close the pidfd; where the keeper is gone it may have come to us."""
        self._template.reap(self.pid)
        with contextlib.suppress(ChildProcessError):
            linux.wait_status(self.fd, keep=False)
        os.close(self.fd)


# -- which one it is ---------------------------------------------------------------------------------------------------


def warm_folder() -> Path:
    """Return the folder of the kept templates' sockets and locks, which only this user can use."""
    state = home.state_folder()
    home.make_folders(state)
    return home.make_private(state / "warm")


def make_key(modules: Sequence[str], env: Mapping[str, str]) -> str:
    """Name the template that a launch would make, by all that its imports and its forks depend on."""
    here = Path(__file__).parent
    facts = {
        "user": [os.geteuid(), os.getegid(), sorted(os.getgroups())],
        "python": [str(Path(sys.executable).resolve()), sys.executable, sys.version, sys.prefix],
        "holdfast": [str(here), *((here / name).stat().st_mtime_ns for name in _OURS)],
        "modules": list(modules),
        "variables": {name: value for name, value in sorted(env.items()) if is_import_variable(name)},
        "folder": str(Path.cwd()) if _is_relative(env.get("PYTHONPATH", "")) else "",
        "cpus": sorted(os.sched_getaffinity(0)),
        "groups": Path("/proc/self/cgroup").read_text(),
        "spaces": sorted(str(each.readlink()) for each in Path("/proc/self/ns").iterdir()),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _is_relative(path: str) -> bool:
    return bool(path) and any(not Path(each).is_absolute() for each in path.split(os.pathsep))


# -- keepers -----------------------------------------------------------------------------------------------------------


def kept_keys(folder: Path) -> set[str]:
    """Return the keys of the keepers that live; what a dead one has left is removed."""
    import fcntl

    found = set()
    for path in folder.glob("*.lock"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                found.add(path.stem)
            else:
                path.with_suffix(".sock").unlink(missing_ok=True)
                path.unlink(missing_ok=True)
            finally:
                os.close(fd)
    return found


def keepers() -> Iterator[dict[str, Any]]:
    """Describe every keeper of this user that lives; one that does not answer has only its key."""
    folder = warm_folder()
    for key in sorted(kept_keys(folder)):
        yield {"key": key, **_tell(folder, key, "status")}


def stop(key: str) -> dict[str, Any]:
    """Have a keeper end: at once, or with the launch that uses it; returns what it answers, nothing if it is gone."""
    return _tell(warm_folder(), key, "stop")


def _tell(folder: Path, key: str, word: str) -> dict[str, Any]:
    connection = _call(folder, key)
    if connection is None:
        return {}
    with connection:
        return _ask(connection, {"ask": word})


def _call(folder: Path, key: str) -> socket.socket | None:
    """Connect to a keeper of this user; None where there is none."""
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(CALL_TIMEOUT_S)
    try:
        connection.connect(f"/proc/self/fd/{here}/{key}.sock")
        if peer_of(connection)[1] == os.geteuid():
            return connection
    except OSError:
        pass
    finally:
        os.close(here)
    connection.close()
    return None


def _ask(connection: socket.socket, message: dict[str, Any]) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        connection.send(json.dumps(message).encode())
        answer: dict[str, Any] = json.loads(connection.recv(ANSWER_BYTES_MAX))
        return answer
    return {}
