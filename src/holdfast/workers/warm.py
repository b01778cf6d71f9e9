"""Warm starts, the agent's side: a template process is kept ready and forked for each worker.

A restart then costs tens of milliseconds instead of the seconds that importing torch takes. If a template
cannot be used (an import failed, it left threads or an open GPU), `why_not` says so in a sentence and workers
are executed as ever.

A forked worker must behave like an executed one. `refusal` names the obstacles: a variable that
modules read while they are imported and that differs in the worker (`OMP_NUM_THREADS`, `LD_LIBRARY_PATH`,
`PYTHON*`...), CPUs that thread pools have counted already, a module beside the script that would take the place of one
that is loaded. Such a worker is executed, and the reason is reported.

No rank runs twice: a fork begins only when this side says so (see `template.py`), and a template that does not answer
in time is killed before anything is started in its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import UnavailableError
from holdfast.facts import facts
from holdfast.workers import linux
from holdfast.workers.child import Child, OwnChild
from holdfast.workers.family import family
from holdfast.workers.lines import last_lines
from holdfast.workers.plan import GANG_VARIABLE, Module, Script, WorkerPlan
from holdfast.workers.starter import start_exec, starter
from holdfast.workers.strays import end_strays, wait_end
from holdfast.workers.variables import is_import_variable, is_workers_own

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TEMPLATE = str(Path(__file__).with_name("template.py"))

#: How many workers go into one message: three descriptors each, and the kernel passes 253 at most.
WORKERS_PER_MESSAGE = 64
#: How long the template may take to fork, and to import, before it is given up.
FORK_TIMEOUT_S = 30.0
IMPORT_TIMEOUT_S = 900.0
#: The longest answer: names of variables and modules.
ANSWER_BYTES_MAX = 1024 * 1024
_PADDING = " " * 1024  # room for the workers' own command lines, see template.py
CLOSE_TIMEOUT_S = 5.0
#: Thread pools that are told to bind their threads do so with the CPUs that they found when they were loaded.
BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


@dataclass(frozen=True, slots=True)
class Order:
    """One worker to be forked; the descriptors travel beside it."""

    kind: str
    target: str
    args: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    umask: int
    cpus: tuple[int, ...]
    fds: tuple[int, int, int]


_IMPORTING = "it is still importing"


class Template:
    """A template process; it begins to import at once, in the background."""

    def __init__(
        self,
        modules: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        fork_timeout_s: float = FORK_TIMEOUT_S,
        import_timeout_s: float = IMPORT_TIMEOUT_S,
    ) -> None:
        self._set_up(modules, fork_timeout_s, import_timeout_s)
        self._token = secrets.token_hex(16)  # its workers write their gang's over it, see template.py
        self._env = {**os.environ, **(env or {}), GANG_VARIABLE: self._token}
        self._output = [os.memfd_create(f"holdfast-template-{name}", os.MFD_CLOEXEC) for name in ("stdout", "stderr")]
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        family().enter()
        try:
            self._child = starter().call(lambda: OwnChild(self._start(theirs)))
            family().add(self._child.pid)
        except BaseException:
            self._give_back()
            raise
        finally:
            theirs.close()

    def _set_up(self, modules: Sequence[str], fork_timeout_s: float, import_timeout_s: float) -> None:
        self.modules = tuple(modules)
        self.why_not = _IMPORTING  # empty once it can be forked
        self.seconds = 0.0  #: how long the imports took
        self.reads: frozenset[str] = frozenset()  #: variables that its modules looked at
        self.walked = False  #: whether they have gone through all variables
        self.shadowable: dict[str, str] = {}  #: modules that a script's folder could replace, and where they lie
        self._fork_timeout_s = fork_timeout_s
        self._import_deadline = time.monotonic() + import_timeout_s
        self._told: set[str] = set()
        self._cpus = os.sched_getaffinity(0)
        self._cwd = Path.cwd()
        self._closed = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def usable(self) -> bool:
        """Whether it can be forked now."""
        return not self.why_not

    @property
    def importing(self) -> bool:
        """Whether it is too early to say if it can be forked."""
        return self.why_not == _IMPORTING

    @property
    def import_deadline(self) -> float:
        """The monotonic time at which its imports are given up."""
        return self._import_deadline

    def fileno(self) -> int:
        """What becomes readable when the template is ready, for loops that wait for several things."""
        return self._control.fileno()

    def _start(self, theirs: socket.socket) -> int:
        os.set_inheritable(theirs.fileno(), True)
        python = os.environ.get("PYTHON_EXEC") or sys.executable
        arguments = [str(theirs.fileno()), str(os.getpid()), _PADDING, *self.modules]
        return start_exec(
            [python, "-u", TEMPLATE, *arguments],
            self._env,
            stdin=subprocess.DEVNULL,
            stdout=self._output[0],
            stderr=self._output[1],
            pass_fds=(theirs.fileno(),),
        )

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until the imports are done; return whether the template can be forked, else see `why_not`."""
        if self.usable or self._closed or not self.importing:
            return self.usable
        left = max(0.0, self._import_deadline - time.monotonic())
        answer = self._receive(left if timeout is None else min(timeout, left))
        if answer is None:
            if self.importing and time.monotonic() >= self._import_deadline:
                self._cut_off(f"importing {', '.join(self.modules)} took too long")
            return False
        self._take_ready(answer)
        return self.usable

    def _take_ready(self, answer: Mapping[str, Any]) -> None:
        self.seconds = float(answer.get("seconds", 0.0))
        self.reads = frozenset(answer.get("reads", ()))
        self.walked = bool(answer.get("walked", False))
        self.shadowable = dict(answer.get("shadowable", ()))
        self.why_not = str(answer["problem"])

    # -- who may be forked ---------------------------------------------------------------------------------------

    def differs(self, env: Mapping[str, str]) -> list[str]:
        """Name the variables that a worker would need to have had before the imports."""
        names = sorted({*env, *self._env})
        return [name for name in names if self.matters(name) and env.get(name) != self._env.get(name)]

    def matters(self, name: str) -> bool:
        """Whether a worker must have had this variable before the imports."""
        if is_import_variable(name) or name in self.reads:
            return True
        return self.walked and not is_workers_own(name)

    def can_run(self, plan: WorkerPlan, env: Mapping[str, str]) -> bool:
        """Whether this worker may be forked from this template; if its plan forbids it, this is reported once."""
        if not self.usable or not isinstance(plan.entry, Script | Module):
            return False
        reason = self.refusal(plan, env)
        if reason and reason not in self._told:
            self._told.add(reason)
            facts.warn("template_refused", f"starting workers cold: {reason}")
        return not reason

    def refusal(self, plan: WorkerPlan, env: Mapping[str, str]) -> str:
        """Say why a script or module would not run in a fork as in a process of its own; empty if it would."""
        names = ", ".join(self.modules)
        if different := self.differs(env):
            return f"{', '.join(different)} must be the same when {names} is imported"
        if not self._may_bind(plan.cpus, env):
            return f"{names} has counted more CPUs than the worker may use; set OMP_NUM_THREADS to fork it all the same"
        assert isinstance(plan.entry, Script | Module)
        folder = _search_folder(plan.entry, plan.cwd)
        if folder is None:
            return "the script is an archive, and may have modules of its own in the place of loaded ones"
        if plan.cwd and Path(plan.cwd).resolve() != self._cwd and _is_relative(env.get("PYTHONPATH", "")):
            return "PYTHONPATH has relative folders, and the worker runs in another folder than its agent"
        if not env.get("PYTHONSAFEPATH") and (found := self._shadowed_by(folder)):
            return f"{folder} has modules of its own in the place of loaded ones: {', '.join(found)}"
        return ""

    def _shadowed_by(self, folder: Path) -> list[str]:
        own = _modules_in(folder)
        return sorted(name for name, where in self.shadowable.items() if name in own and where != str(folder))

    def _may_bind(self, cpus: frozenset[int] | None, env: Mapping[str, str]) -> bool:
        """Whether a thread pool that was loaded with the template's CPUs has as many threads as it would with these."""
        wanted = cpus or os.sched_getaffinity(0)
        if wanted == self._cpus:
            return True
        threads = env.get("OMP_NUM_THREADS", "")
        return threads.isdecimal() and int(threads) <= len(wanted) and not set(BINDING_VARIABLES) & set(env)

    # -- forking -----------------------------------------------------------------------------------------------

    def order(self, plan: WorkerPlan, env: dict[str, str], stdout: int | None, stderr: int | None) -> Order:
        """Write down what the forked worker is to become."""
        entry = plan.entry
        assert isinstance(entry, Script | Module)
        return Order(
            kind="module" if isinstance(entry, Module) else "script",
            target=entry.name if isinstance(entry, Module) else entry.path,
            args=entry.args,
            env=env,
            cwd=plan.cwd or str(Path.cwd()),
            umask=linux.read_umask(),
            cpus=tuple(sorted(plan.cpus or ())),
            fds=(
                self._inherited(0),
                self._inherited(1) if stdout is None else stdout,
                self._inherited(2) if stderr is None else stderr,
            ),
        )

    def _inherited(self, fd: int) -> int:
        """Our own stream, or nothing if we were started without it."""
        try:
            os.fstat(fd)
        except OSError:
            return self._null
        return fd

    def child(self, pid: int) -> Child:
        """Return a worker that was forked, as what to wait on."""
        return OwnChild(pid)

    def fork(self, orders: Sequence[Order]) -> list[int]:
        """Fork one worker per order and return their pids; `child` makes them ours to wait on.

        Raises `UnavailableError` if that cannot be done. Then nothing runs: what had been forked is killed, and
        so is a template that has not answered.
        """
        pids: list[int] = []
        try:
            for some in _batches(orders):
                pids += self._fork_some(some)
        except UnavailableError:
            self._undo(pids, {order.env[GANG_VARIABLE] for order in orders})
            raise
        return pids

    def _fork_some(self, orders: Sequence[Order]) -> list[int]:
        go_read, go_write = os.pipe()
        try:
            self._ask(orders, go_read)
            answer = self._receive(self._fork_timeout_s)
            if answer is None:
                reason = self.why_not or f"it did not answer within {self._fork_timeout_s:g} s"
                self._cut_off(reason)
                raise UnavailableError(f"the template did not fork: {reason}")
            pids: list[int] = answer["pids"]
            if len(pids) != len(orders):
                self._undo(pids, {self._token})
                raise UnavailableError(f"the template could not fork: {answer.get('problem')}")
            for pid in pids:
                linux.inherit_limits(pid)
            os.write(go_write, b"g" * len(pids))
            return pids
        finally:
            os.close(go_read)
            os.close(go_write)  # a fork that has got no letter ends now

    def _ask(self, orders: Sequence[Order], go: int) -> None:
        content = os.memfd_create("holdfast-orders", os.MFD_CLOEXEC)
        try:
            with open(content, "wb", closefd=False) as file:
                file.write(json.dumps([asdict(order) for order in orders]).encode())
            os.lseek(content, 0, os.SEEK_SET)
            fds = [content, go, *(fd for order in orders for fd in order.fds)]
            socket.send_fds(self._control, [b"fork"], fds)
        except OSError as error:
            self._cut_off(f"it is gone ({error})")
            raise UnavailableError(f"the template cannot be asked: {self.why_not}") from error
        finally:
            os.close(content)

    def fork_standby(self, wanted: Mapping[str, Any]) -> tuple[int, socket.socket]:
        """Fork a process that prepares what is wanted and waits to become a worker; returns its pid and its socket.

        Raises `UnavailableError` where that cannot be done.
        """
        seat, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        answer = self.forward([b"standby"], [theirs.fileno()])
        theirs.close()
        if not answer["pids"]:
            seat.close()
            raise UnavailableError(f"the template could not fork: {answer.get('problem')}")
        [pid] = answer["pids"]
        linux.inherit_limits(pid)
        with contextlib.suppress(OSError):  # where it has died, the seat says so
            seat.send(json.dumps(dict(wanted)).encode())
        return pid, seat

    def forward(self, data: list[bytes], fds: Sequence[int]) -> dict[str, Any]:
        """Pass on a request of another process with its descriptors; returns the answer, which names pids."""
        try:
            socket.send_fds(self._control, data, fds)
        except OSError as error:
            self._cut_off(f"it is gone ({error})")
        answer = self._receive(self._fork_timeout_s) if self.usable else None
        if answer is None:
            self._cut_off(self.why_not or f"it did not answer within {self._fork_timeout_s:g} s")
            return {"pids": [], "problem": self.why_not}
        return answer

    def changed_files(self) -> list[str]:
        """Name files of loaded modules that are no longer as they were imported."""
        answer = self.forward([b"changed"], ())
        return list(answer.get("changed", [answer.get("problem", "")]))

    def _receive(self, timeout: float) -> dict[str, Any] | None:
        """Return the next answer; None after the timeout, or where the template has died."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if not poll.poll(max(0, timeout * 1000)):
            return None
        try:
            data = self._control.recv(ANSWER_BYTES_MAX)
        except OSError:
            data = b""
        with contextlib.suppress(ValueError):  # a module may have written to the socket
            answer: dict[str, Any] = json.loads(data)
            return answer
        doing = f"while importing {', '.join(self.modules)}" if self.importing else "while it was forked"
        self._cut_off(f"it died {doing}{self._last_words()}")
        return None

    def _last_words(self) -> str:
        for fd in reversed(self._output):
            size = os.fstat(fd).st_size
            lines = last_lines(os.pread(fd, 8192, max(0, size - 8192)), lines_max=1)
            if lines:
                return f": {lines[0]}"
        return ""

    # -- the end -----------------------------------------------------------------------------------------------

    def _undo(self, pids: Sequence[int], tokens: set[str]) -> None:
        """Kill workers that are not needed, and their children."""
        for pid in pids:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for token in sorted(tokens):
            end_strays(pids, family().pids(), token, CLOSE_TIMEOUT_S)
        for pid in pids:
            wait_end(pid, CLOSE_TIMEOUT_S)

    def _cut_off(self, reason: str) -> None:
        """Give the template up: kill it and all that it has forked but we have not heard of."""
        self.why_not = reason
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)
        poll = select.poll()
        poll.register(self._child.fd, select.POLLIN)
        poll.poll(CLOSE_TIMEOUT_S * 1000)
        # Forks wait for a letter that will not come; a module may have started processes of its own.
        end_strays([self._child.pid], family().pids(), self._token, CLOSE_TIMEOUT_S)

    def close(self) -> None:
        """End the template; the workers that were forked from it keep running."""
        if self._closed:
            return
        self._cut_off("it is closed")
        family().remove(self._child.pid)
        self._child.release()
        self._give_back()

    def _give_back(self) -> None:
        self._closed = True
        self._control.close()
        for fd in (*self._output, self._null):
            os.close(fd)
        family().leave()


def _search_folder(entry: Script | Module, cwd: str | None) -> Path | None:
    """Return the folder that Python would search first for what this entry imports; None if it is an archive."""
    here = Path(cwd) if cwd else Path.cwd()
    if isinstance(entry, Module):
        return here.resolve()
    path = (here / entry.path).resolve()
    if path.is_dir():
        return path
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(4) == b"PK\3\4":
            return None
    return path.parent


def _is_relative(path: str) -> bool:
    """Whether a search path means another folder where the working directory is another."""
    return bool(path) and any(not Path(each).is_absolute() for each in path.split(os.pathsep))


def _modules_in(folder: Path) -> set[str]:
    """Name the modules and packages that lie in a folder; a folder without `__init__` comes last on Python's path."""
    found = set()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                stem, dot, suffix = entry.name.partition(".")
                is_module = dot and suffix.rpartition(".")[2] in ("py", "pyc", "so")
                if is_module or (not dot and entry.is_dir() and any(Path(entry.path).glob("__init__.*"))):
                    found.add(stem)
    except OSError:
        pass  # then Python finds nothing there either
    return found


def _batches(orders: Sequence[Order]) -> Iterator[Sequence[Order]]:
    """Divide orders into messages, the first worker in one of its own.

    It may be rank 0, whose store the others look for. With a head start it listens by then; torch makes a worker that
    is refused wait for half a second and more.
    """
    if orders:
        yield orders[:1]
    for start in range(1, len(orders), WORKERS_PER_MESSAGE):
        yield orders[start : start + WORKERS_PER_MESSAGE]
