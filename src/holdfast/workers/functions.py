"""Functions as workers: started by multiprocessing, with our sessions, logs and error files.

The return value comes back through an anonymous file in memory that only parent and child hold: no pipe that
a large value could fill up, no file that another user could reach.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing as mp
import os
import pickle
import signal
import sys
import traceback
import warnings
from dataclasses import dataclass, replace
from multiprocessing import reduction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import UsageError
from holdfast.failures import errorfile
from holdfast.workers import bootstrap, linux
from holdfast.workers.plan import Function, WorkerPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

START_METHODS = ("spawn", "fork", "forkserver")


class _Fd:
    """A descriptor that is passed to the child, for every start method."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (reduction.DupFd(self.fd),)


def _arrive(travelled: Any) -> _Fd:
    return _Fd(travelled.detach())


class _Name(str):
    """A process's name. It arrives there first, before the program's own modules are imported.

    So it makes the names of other packages mean ours in a new process, if that was asked for.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _name, (str(self), os.environ.get(bootstrap.COMPAT_VARIABLE, ""))


def _name(text: str, families: str) -> str:
    bootstrap.lead_names(families)
    return text


@dataclass
class _Task:
    function: Function
    env: dict[str, str]
    cpus: frozenset[int] | None
    agent: int | None  # the pid that the worker's parent must have; None if the parent is the forkserver
    stdout: _Fd | None
    stderr: _Fd | None
    result: _Fd


class FunctionChild:
    """A process that runs a function; see `holdfast.workers.child.Child`."""

    def __init__(self, process: mp.process.BaseProcess, result: int, *, own: bool) -> None:
        assert process.pid is not None
        self.pid: int = process.pid
        self._process = process
        self._result = result
        self._own = own
        # The fork server's children are not ours to wait for; it reports their ends through the sentinel.
        self.fd: int = linux.open_pidfd(self.pid) if own else process.sentinel

    def status(self) -> int | None:
        """Return the exit code once it has ended."""
        if self._own:
            with contextlib.suppress(ChildProcessError):  # another Process object in this program reaped it
                return linux.wait_status(self.fd, keep=True)
        return self._process.exitcode

    def result(self) -> Any:
        """Return what the function returned, None if it left by `exit(0)`; call it only when it has ended with 0."""
        data = os.pread(self._result, os.fstat(self._result).st_size, 0)
        if not data:
            return None
        return pickle.loads(data)  # noqa: S301 - written by our own child into memory that only it and we hold

    def release(self) -> None:
        """Reap it and close its descriptors."""
        if self._own:
            os.close(self.fd)
        os.close(self._result)
        self._process.join(1.0)
        with contextlib.suppress(ValueError):  # it hangs in the kernel
            self._process.close()


def start_function(plan: WorkerPlan, env: Mapping[str, str], stdout: int | None, stderr: int | None) -> FunctionChild:
    """Start the plan's function; to be called on the starter's thread."""
    function = plan.entry
    assert isinstance(function, Function)
    if function.start_method not in START_METHODS:
        raise UsageError(f"start method {function.start_method!r} must be one of {', '.join(START_METHODS)}")
    if function.start_method != "fork" and lives_only_here(function):
        _check_fork(function)
        function = replace(function, start_method="fork")
    own = function.start_method != "forkserver"
    result = os.memfd_create("holdfast-result", os.MFD_CLOEXEC)
    task = _Task(
        function=function,
        env=dict(env),
        cpus=plan.cpus,
        agent=os.getpid() if own else None,
        stdout=None if stdout is None else _Fd(stdout),
        stderr=None if stderr is None else _Fd(stderr),
        result=_Fd(result),
    )
    context: Any = mp.get_context(function.start_method)
    process = context.Process(target=_work, args=(task,), name=_Name(f"worker-{plan.local_rank}"))
    try:
        with _quiet_fork() if function.start_method == "fork" else contextlib.nullcontext():
            process.start()
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        os.close(result)
        raise UsageError(f"{function.fn!r} or its arguments cannot be sent to a new process: {error}") from error
    except BaseException:
        os.close(result)
        raise
    return FunctionChild(process, result, own=own)


def lives_only_here(function: Function) -> bool:
    """Whether a function was typed into a prompt, a notebook or stdin, so that no new process could import it."""
    main = sys.modules.get("__main__")
    if main is None or getattr(main, "__spec__", None) is not None:
        return False
    path = getattr(main, "__file__", None)
    if path is not None:
        return not Path(path).exists()  # `<stdin>`: multiprocessing would try to run it
    try:
        return b"__main__" in bytes(reduction.ForkingPickler.dumps((function.fn, function.args)))
    except (AttributeError, TypeError, pickle.PicklingError):
        # A lambda, say. One of the prompt can be forked; one of a module is the caller's mistake as it is elsewhere.
        return getattr(function.fn, "__module__", None) == "__main__"


def _check_fork(function: Function) -> None:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        name = getattr(function.fn, "__name__", repr(function.fn))
        raise UsageError(
            f"'{name}' exists only in this session, so workers must be forked from it, and CUDA, which this session "
            f"uses already, does not survive that: put '{name}' into a file and import it, or restart the session"
        )


@contextlib.contextmanager
def _quiet_fork() -> Iterator[None]:
    """Fork with signals blocked: until the child has dropped our handlers, they would run in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is what was asked for
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- in the worker -------------------------------------------------------------------------------------------


def _packed(value: Any) -> bytes:
    try:
        # Not multiprocessing's pickler: it sends a tensor as a name that only this process can resolve, and this one
        # ends now.
        return pickle.dumps(value)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        kind = type(value).__name__
        raise TypeError(f"the function returned a {kind}, which cannot be sent back to the agent: {error}") from None


def _work(task: _Task) -> None:
    _settle_in(task)
    try:
        value = task.function.fn(*task.function.args)
        with open(task.result.fd, "wb", closefd=False) as file:
            file.write(_packed(value))
    except SystemExit as ending:
        if ending.code not in (None, 0):
            errorfile.record(ending)
        raise
    except BaseException as error:  # noqa: BLE001 - the user's function may raise anything
        error.__traceback__ = _without_ours(error.__traceback__)
        errorfile.record(error)
        traceback.print_exception(error)
        sys.exit(1)


def _settle_in(task: _Task) -> None:
    """Give up everything that belongs to the agent: session, signal handlers, streams."""
    with contextlib.suppress(PermissionError):
        os.setsid()
    linux.set_parent_death_signal(signal.SIGKILL)
    if task.agent is not None and os.getppid() != task.agent:
        os._exit(1)
    if task.function.start_method == "fork":
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if task.cpus:
        os.sched_setaffinity(0, task.cpus)
    for stream, target, name in ((task.stdout, 1, "stdout"), (task.stderr, 2, "stderr")):
        if stream is not None:
            os.dup2(stream.fd, target)
            os.close(stream.fd)
            # The agent may have put something else in the place of its own streams. Unbuffered, as under `python -u`,
            # because what is printed must not wait for a death that leaves no time to flush.
            raw = io.FileIO(target, "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, errors="backslashreplace", write_through=True))
    os.environ.update(task.env)
    bootstrap.watch_faults()


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
