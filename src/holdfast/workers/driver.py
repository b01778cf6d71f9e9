"""The gang: one attempt's workers on this node, started, watched and stopped together.

The driver of the stop machine: it owns processes, pidfds and pipes, and makes no decisions.

Death is an event: `fileno()` becomes readable the moment any worker ends, so a gang fits into an asyncio loop
(`loop.add_reader`, or `holdfast.workers.aio`), a selector, or the blocking `wait_exits`. `take_exits` then
says which worker ended and how. A gang belongs to the thread that uses it.

No process is left behind: each worker leads a session of its own and dies with the agent; processes that a worker has
started are found and killed when the gang is stopped or closed; and an orphan reaper does so if the agent itself is
killed.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import UnavailableError
from holdfast.facts import facts
from holdfast.machine import Tick
from holdfast.workers import strays
from holdfast.workers.bootstrap import STACKS_FILE_VARIABLE
from holdfast.workers.child import Child, OwnChild
from holdfast.workers.family import family
from holdfast.workers.logs import LogsDest
from holdfast.workers.machine import (
    KILL_TIMEOUT_S,
    KillStrays,
    SignalWorker,
    StopAsked,
    StopEnded,
    StopEvent,
    StopMachine,
    StraysGone,
    WorkerGone,
)
from holdfast.workers.orphan_reaper import OrphanReaper
from holdfast.workers.plan import GANG_VARIABLE, MEMBER_FILE_VARIABLE, Function, Program, WorkerExited, WorkerPlan
from holdfast.workers.postmortem import Postmortem
from holdfast.workers.pump import Pump, shared_pump
from holdfast.workers.starter import command_line, start_exec, starter
from holdfast.workers.sweep import Sweeper, signal_group, signal_tree
from holdfast.workers.wiring import LogOptions, Wiring

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from holdfast.failures import Failure
    from holdfast.workers.warm import Template

#: How long a stuck console may hold up a report or the end of a gang.
CONSOLE_TIMEOUT_S = 1.0
GRACE_S = 30.0
#: How long killed leftovers of one worker may take to end before it is replaced all the same.
RETIRE_TIMEOUT_S = 1.0


class Gang:
    """A set of workers that start and stop together; close it, or use it as a context manager."""

    def __init__(
        self,
        plans: Sequence[WorkerPlan],
        dest: LogsDest | None = None,
        options: LogOptions | None = None,
        *,
        template: Template | None = None,
        pump: Pump | None = None,
        kill_timeout_s: float = KILL_TIMEOUT_S,
    ) -> None:
        self.plans: dict[int, WorkerPlan] = {plan.local_rank: plan for plan in plans}
        assert len(self.plans) == len(plans), "two plans have the same local rank"
        self.token = secrets.token_hex(16)
        self.stopped: StopEnded | None = None
        self._dest = dest or LogsDest()
        self._wiring = Wiring(self._dest, options or LogOptions(), pump or shared_pump(), several=len(plans) > 1)
        self._template = template
        self._machine = StopMachine(self.plans, kill_timeout_s)
        self._epoll = select.epoll()
        self._children: dict[int, Child] = {}
        self._by_fd: dict[int, int] = {}
        self._exits: dict[int, WorkerExited] = {}
        self._untaken: list[WorkerExited] = []
        self._signalled: set[int] = set()
        self._sweeper = Sweeper(self.token, self._epoll)
        self._orphan_reaper: OrphanReaper | None = None
        self._scratch: str | None = None
        self._open = False
        self._postmortem = Postmortem()

    # -- the start -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every worker; if one cannot be started, the others are ended and the reason is raised."""
        assert not self._open, "a gang starts once"
        family().enter()
        self._open = True
        try:
            for rank in self.plans:
                self._wiring.connect(rank)
            environments = {rank: self._environment(plan) for rank, plan in self.plans.items()}
            self._start_warm(environments)
            starter().call(lambda: self._start_cold(environments))
            for out, err in self._wiring.wires.values():
                out.close_worker_end()
                err.close_worker_end()
            self._orphan_reaper = OrphanReaper(self.token, self._pids(), self._scratch)
            family().add(self._orphan_reaper.pid)
        except BaseException:
            self.close()
            raise

    def _environment(self, plan: WorkerPlan) -> dict[str, str]:
        env = {**os.environ, **plan.env, GANG_VARIABLE: self.token}
        env["TORCHELASTIC_ERROR_FILE"] = self.error_file(plan.local_rank)
        fault_file = self._fault_file(plan.local_rank)
        if fault_file:
            env["HOLDFAST_FAULT_FILE"] = fault_file
        env[STACKS_FILE_VARIABLE] = self.stacks_file(plan.local_rank)
        env[MEMBER_FILE_VARIABLE] = self._beside_error_file(plan.local_rank, "member")
        return env

    def _start_warm(self, environments: Mapping[int, dict[str, str]]) -> None:
        template = self._template
        if template is None:
            return
        ranks = [rank for rank, plan in self.plans.items() if template.can_run(plan, environments[rank])]
        if not ranks:
            return
        orders = [template.order(self.plans[rank], environments[rank], *self._fds(rank)) for rank in ranks]
        try:
            pids = template.fork(orders)
        except UnavailableError as error:
            sentence = f"starting the workers without the template: {error}"
            facts.warn("template_lost", sentence)
            return
        for rank, pid in zip(ranks, pids, strict=True):
            self._adopt(rank, OwnChild(pid))

    def _start_cold(self, environments: Mapping[int, dict[str, str]]) -> None:
        for rank, plan in self.plans.items():
            if rank not in self._children:
                self._adopt(rank, self._start_one(plan, environments[rank]))

    def _start_one(self, plan: WorkerPlan, env: dict[str, str]) -> Child:
        stdout, stderr = self._fds(plan.local_rank)
        if isinstance(plan.entry, Function):
            from holdfast.workers.functions import start_function

            return start_function(plan, env, stdout, stderr)
        argv = command_line(plan.entry)
        return OwnChild(start_exec(argv, env, cwd=plan.cwd, stdout=stdout, stderr=stderr, cpus=plan.cpus))

    def _fds(self, local_rank: int) -> tuple[int | None, int | None]:
        out, err = self._wiring.wires[local_rank]
        return out.fd, err.fd

    def _adopt(self, rank: int, child: Child) -> None:
        family().add(child.pid)
        self._children[rank] = child
        self._by_fd[child.fd] = rank
        self._epoll.register(child.fd, select.EPOLLIN)

    # -- watching --------------------------------------------------------------------------------------------

    def pids(self) -> dict[int, int]:
        """The process id of every worker, by local rank, those that have ended included."""
        return {rank: child.pid for rank, child in self._children.items()}

    def running(self) -> list[int]:
        """The local ranks whose end has not been seen yet."""
        return [rank for rank in self._children if rank not in self._exits]

    def exits(self) -> dict[int, WorkerExited]:
        """All ends seen so far, in their order."""
        return dict(self._exits)

    def fileno(self) -> int:
        """What becomes readable when `take_exits` has something to do."""
        return self._epoll.fileno()

    def deadline(self) -> float | None:
        """The monotonic time by which `take_exits` must be called at the latest, or None."""
        return self._machine.wakeup()

    def take_exits(self) -> list[WorkerExited]:
        """Return the ends that have not been taken yet, without waiting, and drive a running stop."""
        self.drive()
        taken, self._untaken = self._untaken, []
        return taken

    def drive(self) -> None:
        """Collect ends and drive a running stop, leaving the ends to be taken later."""
        self._collect(0)

    def wait_exits(self, timeout: float | None = None) -> list[WorkerExited]:
        """Wait until a worker ends, a stop is over, or the time is; returns the new ends."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            taken = self.take_exits()
            if taken or self.stopped is not None or not (self.running() or self._sweeper.busy):
                return taken
            now = time.monotonic()
            if until is not None and now >= until:
                return []
            moments = [moment for moment in (until, self.deadline()) if moment is not None]
            self._collect(max(0.0, min(moments) - now) if moments else None)

    def _collect(self, timeout: float | None) -> None:
        if self._epoll.closed:
            return  # there is nothing more to learn
        for fd, _ in self._epoll.poll(timeout):
            if fd in self._by_fd:
                self._note_end(fd)
            elif fd in self._sweeper:
                self._note_stray_end(fd)
        self._handle(Tick())

    def _note_end(self, fd: int) -> None:
        rank = self._by_fd[fd]
        child = self._children[rank]
        code = child.status()
        if code is None:
            return
        self._epoll.unregister(fd)
        del self._by_fd[fd]
        exited = WorkerExited(rank, child.pid, code, rank in self._signalled)
        self._exits[rank] = exited
        self._untaken.append(exited)
        self._handle(WorkerGone(rank))
        self._sweeper.meet(self._pids())  # its leftovers can be recognised while it lives

    # -- stopping --------------------------------------------------------------------------------------------

    def ask_stop(self, number: int = signal.SIGTERM, grace_s: float = GRACE_S) -> None:
        """Begin to stop the gang and return at once; `stopped` is set when it is over.

        A second call with SIGKILL, or with a shorter grace, makes a running stop harder.
        """
        self._collect(0)  # workers that have ended before this moment were not ended by us
        self._handle(StopAsked(number, grace_s))

    def stop(self, number: int = signal.SIGTERM, grace_s: float = GRACE_S) -> StopEnded:
        """Stop the gang and wait until nothing of it is left: at most the grace time and a few seconds."""
        self.ask_stop(number, grace_s)
        while self.stopped is None:
            deadline = self.deadline()
            assert deadline is not None, "a stop that is under way always has a deadline"
            self._collect(max(0.0, deadline - time.monotonic()))
        return self.stopped

    def send(self, number: int) -> None:
        """Forward a signal to every living worker's process group; this does not stop the gang."""
        for rank in self.running():
            signal_group(self._children[rank].pid, number)

    def _handle(self, event: StopEvent) -> None:
        for effect in self._machine.handle(event, time.monotonic()):
            match effect:
                case SignalWorker(rank, number):
                    self._signal_worker(rank, number)
                case KillStrays():
                    self._sweep()
                case StopEnded():
                    self.stopped = effect

    def _signal_worker(self, rank: int, number: int) -> None:
        child = self._children.get(rank)
        if child is None:  # the start failed half-way
            self._handle(WorkerGone(rank))
            return
        if child.status() is None:
            self._signalled.add(rank)
        signal_tree(child.pid, number)

    def _sweep(self) -> None:
        """Kill all strays, until none is found any more."""
        self._sweeper.kill(self._pids())
        if not self._sweeper.busy:
            self._handle(StraysGone())

    def _note_stray_end(self, fd: int) -> None:
        self._sweeper.note_end(fd)
        if not self._sweeper.busy:
            self._sweep()

    def _pids(self) -> list[int]:
        return [child.pid for child in self._children.values()]

    # -- what is left of a worker ----------------------------------------------------------------------------

    def failure(self, exited: WorkerExited, *, timed_out: bool = False) -> Failure:
        """Make the failure record of a worker's end, waiting briefly for its last lines."""
        rank = exited.local_rank
        self._wiring.settle(rank, CONSOLE_TIMEOUT_S)
        return self._postmortem.examine(
            exited,
            self.plans[rank].env,
            self._wiring.wires[rank],
            error_file=self.error_file(rank),
            fault_file=self._fault_file(rank),
            timed_out=timed_out,
        )

    def return_value(self, local_rank: int) -> Any:
        """Return what a worker's function returned; only for functions that have ended with 0."""
        from holdfast.workers.functions import FunctionChild

        child = self._children[local_rank]
        assert isinstance(child, FunctionChild), "only functions have return values"
        return child.result()

    def error_file(self, local_rank: int) -> str:
        """Where this worker's error file is, or would be."""
        path = self._dest.error_files.get(local_rank, os.devnull)
        return path if path != os.devnull else str(self._scratch_path(f"{local_rank}.error.json"))

    def stacks_file(self, local_rank: int) -> str:
        """Where this worker writes its stacks when asked to, see `holdfast.workers.stacks`; empty for a program."""
        if isinstance(self.plans[local_rank].entry, Program):
            return ""
        return self._beside_error_file(local_rank, "stacks.log")

    def is_member(self, local_rank: int) -> bool:
        """Whether this worker has said that it trains in process, so that workers survive each other."""
        return Path(self._beside_error_file(local_rank, "member")).exists()

    def replica_size(self, local_rank: int) -> int:
        """With how many neighbours, itself included, this worker holds one copy of a model, as it says."""
        try:
            said = Path(self._beside_error_file(local_rank, "member")).read_text()
        except OSError:
            return 1
        return int(said) if said.isdigit() else 1

    def kill(self, local_rank: int) -> None:
        """Kill one worker at once, and all its children; its end is reported like any other."""
        if local_rank in self.running():
            signal_tree(self._children[local_rank].pid, signal.SIGKILL)

    def _fault_file(self, local_rank: int) -> str:
        """Where fatal signals write their stacks, if we cannot read stderr."""
        plan = self.plans[local_rank]
        if isinstance(plan.entry, Program) or self._dest.stderrs.get(local_rank):
            return ""
        return self._beside_error_file(local_rank, "fault.log")

    def _beside_error_file(self, local_rank: int, name: str) -> str:
        error_file = self._dest.error_files.get(local_rank, os.devnull)
        if error_file == os.devnull:
            return str(self._scratch_path(f"{local_rank}.{name}"))
        return str(Path(error_file).with_name(name))

    def _scratch_path(self, name: str) -> Path:
        """Name a file in a private folder that goes away with the gang."""
        if self._scratch is None:
            try:
                self._scratch = tempfile.mkdtemp(prefix="holdfast_gang_")
            except OSError as error:
                facts.warn("log_incomplete", f"workers may not leave error files: no temporary folder: {error}")
                self._scratch = f"/tmp/holdfast_gang_{self.token}"
        return Path(self._scratch) / name

    # -- the end ---------------------------------------------------------------------------------------------

    def retire(self, local_rank: int) -> None:
        """Release everything that a worker that has ended still holds, while the others keep running.

        Processes that it has left in its session are killed first: the next worker may need the same GPU.
        """
        assert local_rank in self._exits, "a worker that runs is not retired"
        child = self._children.pop(local_rank)
        strays.end_strays([child.pid], family().pids(), None, RETIRE_TIMEOUT_S)
        self._wiring.disconnect(local_rank, CONSOLE_TIMEOUT_S)
        if self._orphan_reaper is not None:
            self._orphan_reaper.drop(child.pid)  # before the pid can be given to another process
        family().remove(child.pid)
        child.release()

    def close(self) -> None:
        """Kill everything that is left of the gang, now, and release everything; may be called again."""
        if not self._open:
            self._epoll.close()
            return
        if self.stopped is None:
            self.stop(signal.SIGKILL)
        self._open = False
        self._sweeper.close()
        self._epoll.close()
        self._wiring.close(CONSOLE_TIMEOUT_S)
        for child in self._children.values():
            family().remove(child.pid)
            child.release()
        if self._orphan_reaper is not None:
            family().remove(self._orphan_reaper.pid)
            self._orphan_reaper.dismiss()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        family().leave()

    def __enter__(self) -> Gang:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_open", False):
            warn(f"a gang of {len(self.plans)} workers was never closed", ResourceWarning, source=self)
