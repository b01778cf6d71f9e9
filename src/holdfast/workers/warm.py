"""Warm starts, the agent's side: a template process is kept ready and forked for each worker.

A restart then costs tens of milliseconds instead of the seconds that importing torch takes. Where a template
cannot be used (an import failed, it left threads or an open GPU), `why_not` says so in a sentence and workers
are executed as ever. What modules read while they are imported (`OMP_NUM_THREADS`, `LD_LIBRARY_PATH`,
`PYTHON*`...) must be the same for the template and its workers: `differs` names what is not, and a template
for another environment is a new one.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import Unavailable
from holdfast.workers.child import OwnChild
from holdfast.workers.family import family
from holdfast.workers.lines import last_lines
from holdfast.workers.plan import GANG_VARIABLE, Module, Script, WorkerPlan
from holdfast.workers.starter import start_exec, starter
from holdfast.workers.strays import end_strays

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TEMPLATE = str(Path(__file__).with_name("template.py"))

#: Variables with these beginnings are read while modules are imported, so they cannot change after it.
IMPORT_PREFIXES = (
    "ATEN_",
    "BLIS_",
    "GLIBC_TUNABLES",
    "GOMP_",
    "KMP_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "NUMEXPR_",
    "NUMPY_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "PYTORCH_",
    "TORCH_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "VECLIB_",
    "VIRTUAL_ENV",
)
#: These begin so too, but are read when they are used.
LATE_PREFIXES = ("TORCH_NCCL_", "TORCH_GLOO_", "PYTHONFAULTHANDLER")

#: How many workers go into one message: three descriptors each, and the kernel passes 253 at most.
WORKERS_PER_MESSAGE = 64
FORK_TIMEOUT_S = 30.0
_PADDING = " " * 1024  # room for the workers' own command lines, see template.py
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Order:
    """One worker to be forked; the descriptors travel beside it."""

    kind: str
    target: str
    args: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    cpus: tuple[int, ...]
    fds: tuple[int, int, int]


_IMPORTING = "it is still importing"


class Template:
    """A template process; it begins to import at once, in the background."""

    def __init__(self, modules: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.modules = tuple(modules)
        self.why_not = _IMPORTING  # empty once it can be forked
        self.seconds = 0.0  #: how long the imports took
        self._token = secrets.token_hex(16)  # its workers write their gang's over it, see template.py
        self._env = {**os.environ, **(env or {}), GANG_VARIABLE: self._token}
        self._output = os.memfd_create("holdfast-template", os.MFD_CLOEXEC)
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        family().enter()
        self._closed = False
        try:
            self._child = starter().call(lambda: OwnChild(self._start(theirs)))
            family().add(self._child.pid)
        except BaseException:
            self._give_back()
            raise
        finally:
            theirs.close()

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
            stdout=self._output,
            stderr=self._output,
            pass_fds=(theirs.fileno(),),
        )

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait until the imports are done; says whether the template can be forked, else see `why_not`."""
        if self.usable or self._closed or not self.importing:
            return self.usable
        answer = self._receive(timeout)
        if answer is None:
            return False
        self.seconds = float(answer.get("seconds", 0.0))
        self.why_not = str(answer["problem"])
        return self.usable

    def differs(self, env: Mapping[str, str]) -> list[str]:
        """Name the variables that a worker would need to have had before the imports."""
        names = sorted({*env, *self._env})
        return [name for name in names if is_import_variable(name) and env.get(name) != self._env.get(name)]

    def can_run(self, plan: WorkerPlan, env: Mapping[str, str]) -> bool:
        """Whether this worker may be forked from this template."""
        return self.usable and isinstance(plan.entry, Script | Module) and not self.differs(env)

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
            cpus=tuple(sorted(plan.cpus or ())),
            fds=(
                self._inherited(0),
                self._inherited(1) if stdout is None else stdout,
                self._inherited(2) if stderr is None else stderr,
            ),
        )

    def _inherited(self, fd: int) -> int:
        """Our own stream, or nothing where we were started without it."""
        try:
            os.fstat(fd)
        except OSError:
            return self._null
        return fd

    def fork(self, orders: Sequence[Order]) -> list[int]:
        """Fork one worker per order and return their pids; they are children of this process.

        Raises `Unavailable` where the template is gone; nothing has been started then.
        """
        pids: list[int] = []
        try:
            for some in _batches(orders):
                answer = self._ask(some)
                pids += answer["pids"]
                if len(answer["pids"]) != len(some):
                    raise Unavailable(f"the template could not fork: {answer.get('problem')}")
        except Unavailable:
            self._undo(pids)
            raise
        return pids

    def _ask(self, orders: Sequence[Order]) -> dict[str, Any]:
        content = os.memfd_create("holdfast-orders", os.MFD_CLOEXEC)
        try:
            with open(content, "wb", closefd=False) as file:
                file.write(json.dumps([asdict(order) for order in orders]).encode())
            os.lseek(content, 0, os.SEEK_SET)
            fds = [content, *(fd for order in orders for fd in order.fds)]
            socket.send_fds(self._control, [b"fork"], fds)
        except OSError as error:
            self._lost(f"it is gone ({error})")
            raise Unavailable(f"the template cannot be asked: {self.why_not}") from error
        finally:
            os.close(content)
        answer = self._receive(FORK_TIMEOUT_S)
        if answer is None or "pids" not in answer:
            self._lost(self.why_not or "it did not answer")
            raise Unavailable(f"the template did not fork: {self.why_not}")
        return answer

    def _receive(self, timeout: float | None) -> dict[str, Any] | None:
        """Return the next answer; None after the timeout, or where the template has died."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if not poll.poll(None if timeout is None else max(0, timeout * 1000)):
            return None
        try:
            data = self._control.recv(1 << 16)
        except OSError:
            data = b""
        if data:
            answer: dict[str, Any] = json.loads(data)
            return answer
        self._lost(f"it died while importing {', '.join(self.modules)}{self._last_words()}")
        return None

    def _last_words(self) -> str:
        size = os.fstat(self._output).st_size
        lines = last_lines(os.pread(self._output, 8192, max(0, size - 8192)), lines_max=1)
        return f": {lines[0]}" if lines else ""

    def _lost(self, reason: str) -> None:
        self.why_not = reason

    def _undo(self, pids: Sequence[int]) -> None:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def close(self) -> None:
        """End the template; the workers that were forked from it go on."""
        if self._closed:
            return
        self.why_not = "it is closed"
        with contextlib.suppress(OSError):
            os.killpg(self._child.pid, signal.SIGKILL)
        poll = select.poll()
        poll.register(self._child.fd, select.POLLIN)
        poll.poll(CLOSE_TIMEOUT_S * 1000)
        # A module may have started processes of its own while it was imported.
        end_strays([self._child.pid], family().pids(), self._token, CLOSE_TIMEOUT_S)
        family().remove(self._child.pid)
        self._child.release()
        self._give_back()

    def _give_back(self) -> None:
        self._closed = True
        self._control.close()
        os.close(self._output)
        os.close(self._null)
        family().leave()


def _batches(orders: Sequence[Order]) -> Iterator[Sequence[Order]]:
    """Divide orders into messages, the first worker in one of its own.

    It may be rank 0, whose store the others look for. With a head start it listens by then; whoever is refused is
    made to wait by torch for half a second and more.
    """
    if orders:
        yield orders[:1]
    for start in range(1, len(orders), WORKERS_PER_MESSAGE):
        yield orders[start : start + WORKERS_PER_MESSAGE]


def is_import_variable(name: str) -> bool:
    """Whether a variable of this name is read while modules are imported."""
    return name.startswith(IMPORT_PREFIXES) and not name.startswith(LATE_PREFIXES)
