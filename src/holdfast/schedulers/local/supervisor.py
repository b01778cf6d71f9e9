"""The supervisor: one detached process per job that starts the replicas, reads their output, and writes their state.

The driver of the job machine: one thread, one loop over signals, pipes and replicas' ends. It is detached, in a session
of its own, so that it outlives the process that submitted the job. Replicas do not outlive it: the kernel ends them if
it is killed. The last state is written when the last byte of output is on disk; the lock, which it holds from the
beginning, is given up after that.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import HoldfastError, UnavailableError, UsageError
from holdfast.failures import errorfile
from holdfast.failures.classify import Evidence, classify, explain, how_it_ended, reason
from holdfast.failures.failure import Kind
from holdfast.machine import Tick
from holdfast.schedulers.local import keep, record
from holdfast.schedulers.local.capture import STDERR, STDOUT, Pipe, ReplicaLog
from holdfast.schedulers.local.folders import JobFolder, Jobs, boot_id, start_of
from holdfast.schedulers.local.machine import (
    CancelAsked,
    JobBegun,
    JobEnded,
    JobEvent,
    JobMachine,
    ReplicaEnded,
    ReplicaStarted,
    StartReplica,
    StopReplica,
)
from holdfast.schedulers.local.record import JobRecord, LocalRequest
from holdfast.schedulers.local.render import PORT_VARIABLE
from holdfast.specs.states import AppState, is_terminal
from holdfast.wire.secret import SECRET_FILE_VARIABLE, VARIABLES, make_key, write_secret
from holdfast.workers.driver import Gang
from holdfast.workers.logs import LogsDest
from holdfast.workers.oom import oom_kills
from holdfast.workers.plan import Program, WorkerPlan

if TYPE_CHECKING:
    from holdfast.wire.ports import HeldPort

#: How much of an error file is kept in the job's record.
ERROR_CHARS_MAX = 64 * 1024
LAST_WORDS_CHARS_MAX = 300
#: How long the last state is tried again where it cannot be written: a full disk may get room.
FINAL_TRIES, FINAL_PAUSE_S = 30, 1.0
#: Open files of ours: those that are always there, and those of one replica.
FILES_BASE, FILES_PER_REPLICA = 64, 16
RESTARTS_VARIABLE = "HOLDFAST_RESTART_COUNT"


class Attempt:
    """One start of one replica: its gang of one, and its two pipes."""

    def __init__(self, number: int, gang: Gang, pipes: tuple[Pipe, Pipe], error_file: Path) -> None:
        self.number = number
        self.gang = gang
        self.stdout, self.stderr = pipes
        self.error_file = error_file
        self.oom_kills = oom_kills()

    def last_lines(self) -> tuple[str, ...]:
        """Return what it said last, preferably as an error."""
        return self.stderr.tail.text() or self.stdout.tail.text()


class Supervisor:
    """Runs one job from its first process to its final state."""

    def __init__(
        self,
        folder: JobFolder,
        request: LocalRequest,
        make_log: Callable[[Path, list[str]], ReplicaLog] = ReplicaLog,
    ) -> None:
        self.folder = folder
        self.request = request
        self._machine = JobMachine(request.role_plans, [(replica.role, replica.id) for replica in request.replicas])
        self._events: deque[JobEvent] = deque()
        self._attempts: dict[int, Attempt] = {}  # by the replica's number, while anything of it is left
        self._notes: list[str] = []  # trouble with the logs
        self._logs = [make_log(Path(replica.log_dir), self._notes) for replica in request.replicas]
        self._epoll = select.epoll()
        self._pipes: dict[int, Pipe] = {}
        self._bell, self._ring = os.pipe()
        self._port: HeldPort | None = None
        #: How the replicas find the secret that they share.
        self._secret: dict[str, str] = {}
        self._record = folder.read_state() or JobRecord()
        self._record.supervisor = record.Supervisor(os.getpid(), start_of(os.getpid()), boot_id())
        self._written: JobRecord | None = None

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the job to its end; the last state is on disk when this returns."""
        make_room(len(self.request.replicas))
        self._listen()
        self._write()  # from here on the job can be cancelled by a signal
        if self.folder.cancel_asked():
            self._cancel()
        if self.request.needs_port:
            from holdfast.wire.ports import HeldPort

            self._port = HeldPort()
            self._secret = _make_secret(self.folder)
        self._events.append(JobBegun())
        self._settle()
        while self._machine.ended is None:
            self._wait()
            due = self._machine.wakeup()
            if due is not None and due <= time.monotonic():
                self._events.append(Tick())
            # Output alone changes nothing that is written down, unless it could not be kept.
            if self._events or self._notes != self._record.notes:
                self._settle()
        for log in self._logs:
            log.close()
        self._write_last()

    def _listen(self) -> None:
        """Let signals wake the loop. Handlers, not SIG_IGN: replicas would inherit that."""
        for end in (self._bell, self._ring):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._ring, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGTERM:
                signal.signal(number, lambda *_: None)
        self._epoll.register(self._bell, select.EPOLLIN)

    def _wait(self) -> None:
        moments = [attempt.gang.deadline() for attempt in self._attempts.values()] + [self._machine.wakeup()]
        known = [moment for moment in moments if moment is not None]
        timeout = max(0.0, min(known) - time.monotonic()) if known else None
        ready = [fd for fd, _ in self._epoll.poll(timeout)]  # in the order in which they became so
        if self._bell in ready:
            self._hear()
        for fd in ready:
            if fd in self._pipes and self._pipes[fd].carry() == 0:
                self._epoll.unregister(self._pipes.pop(fd).fd)  # `finish` closes it
        now = time.monotonic()
        for attempt in list(self._attempts.values()):
            deadline = attempt.gang.deadline()
            if attempt.gang.fileno() in ready or (deadline is not None and deadline <= now):
                self._advance(attempt)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            heard = os.read(self._bell, 4096)
            if signal.SIGTERM in heard or signal.SIGINT in heard:
                self._cancel()

    def _cancel(self) -> None:
        if self.folder.cancel_asked():
            self._events.append(CancelAsked(self.folder.kill_asked()))
        else:
            self._events.append(CancelAsked(why="its supervisor was told to end, as happens at a shutdown"))

    def _settle(self) -> None:
        """Hand every event to the machine and do what it says, until nothing is left; then write it down."""
        while self._events:
            for effect in self._machine.handle(self._events.popleft(), time.monotonic()):
                match effect:
                    case StartReplica(number):
                        self._start(number)
                    case StopReplica(number, hard):
                        self._stop(number, 0.0 if hard else self.request.cancel_grace_s)
                    case JobEnded():
                        return  # the last state is written when the files are closed
        self._write()

    # -- replicas ------------------------------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        plan, log = self.request.replicas[number], self._logs[number]
        restarts = self._machine.replicas[number].restarts
        error_file = log.folder / f"error_{restarts}.json"
        env = {**plan.env, RESTARTS_VARIABLE: str(restarts)}
        if self._port is not None:
            env.setdefault(PORT_VARIABLE, str(self._port.port))
            env |= {} if env.keys() & VARIABLES else self._secret
        pipes = Pipe(log, STDOUT), Pipe(log, STDERR)
        dest = LogsDest(stdouts={0: pipes[0].path}, stderrs={0: pipes[1].path}, error_files={0: str(error_file)})
        gang = Gang([WorkerPlan(0, Program(tuple(plan.argv)), env, plan.cwd)], dest)
        try:
            _make_log_folder(log.folder)
            gang.start()
        except (HoldfastError, OSError, ValueError) as error:
            gang.close()
            for pipe in pipes:
                pipe.finish()
            sentence = str(error) if isinstance(error, HoldfastError) else f"cannot start {plan.argv[0]!r}: {error}"
            log.write_lines(b"h", [f"[holdfast: {sentence}]".encode(errors="backslashreplace")])
            self._events.append(ReplicaEnded(number, None, sentence, False, time.time()))
            return
        attempt = Attempt(number, gang, pipes, error_file)
        self._attempts[number] = attempt
        self._epoll.register(gang.fileno(), select.EPOLLIN)
        for pipe in pipes:
            pipe.close_writer()
            self._pipes[pipe.fd] = pipe
            self._epoll.register(pipe.fd, select.EPOLLIN)
        self._events.append(ReplicaStarted(number, gang.pids()[0], time.time()))

    def _stop(self, number: int, grace_s: float) -> None:
        attempt = self._attempts.get(number)
        if attempt is not None:  # else it could not be started, and its end is on the way to the machine
            attempt.gang.ask_stop(signal.SIGTERM, grace_s)
            self._advance(attempt)

    def _advance(self, attempt: Attempt) -> None:
        """Handle the end of a replica, and of the processes that it left behind."""
        gang = attempt.gang
        if gang.take_exits() and gang.stopped is None:
            gang.ask_stop(signal.SIGKILL, 0.0)
        if gang.stopped is not None:
            self._finish(attempt)

    def _finish(self, attempt: Attempt) -> None:
        """A replica has ended completely: copy its last output to disk, and tell the machine."""
        del self._attempts[attempt.number]
        gang = attempt.gang
        self._epoll.unregister(gang.fileno())
        for pipe in (attempt.stdout, attempt.stderr):
            if self._pipes.pop(pipe.fd, None) is not None:
                self._epoll.unregister(pipe.fd)
            pipe.finish()
        exited = gang.exits().get(0)
        assert gang.stopped is not None
        if exited is None:  # it hangs in the kernel
            ended = ReplicaEnded(attempt.number, None, gang.stopped.sentence, True, time.time())
        else:
            ended = ReplicaEnded(attempt.number, exited.exit_code, "", exited.signalled_by_us, time.time())
            if exited.failed:
                ended = self._examine(attempt, ended)
        gang.close()
        self._events.append(ended)

    def _examine(self, attempt: Attempt, ended: ReplicaEnded) -> ReplicaEnded:
        """Add why a replica failed, and what its error file holds."""
        assert ended.exit_code is not None
        error = errorfile.read(str(attempt.error_file))
        kills, before = oom_kills(), attempt.oom_kills
        evidence = Evidence(
            exit_code=ended.exit_code,
            error=error,
            oom_kills=0 if kills is None or before is None else kills - before,
            log_lines=attempt.last_lines(),
        )
        kind = classify(evidence)
        cause, why, last_line = explain(kind, evidence), reason(kind, evidence), ""
        said = [line.strip() for line in evidence.log_lines if line.strip()]
        if error is not None and (rank := error.rank) is not None:
            cause, why = f"rank {rank}: {cause}", f"rank {rank}: {why}"  # left by a launcher, which has many workers
        elif error is None and kind is not Kind.OUT_OF_MEMORY and said:
            last_line = said[-1][:LAST_WORDS_CHARS_MAX]
            cause = f"{cause if why else how_it_ended(ended.exit_code)}; its last line was: {last_line}"
        content = json.dumps(error.data) if error is not None and error.data else ""
        content = content if len(content) <= ERROR_CHARS_MAX else ""
        return replace(ended, cause=cause, error=content, reason=why, last_line=last_line)

    # -- the record ----------------------------------------------------------------------------------------------------

    def _write(self, *, final: bool = False) -> None:
        """Write the state down if it has changed."""
        progress = self._machine.snapshot()
        starts = [replica.started_at for replica in progress.replicas if replica.started_at is not None]
        self._record = msgspec.structs.replace(
            self._record,
            **msgspec.structs.asdict(progress),
            notes=list(self._notes),
            started_at=self._record.started_at or min(starts, default=None),
        )
        if self._record != self._written or final:
            try:
                self.folder.write_state(self._record, final=final)
                self._written = self._record
            except OSError as error:
                if final:
                    raise
                print(f"the state cannot be written: {error}", file=sys.stderr)

    def _write_last(self) -> None:
        self._record.ended_at = time.time()
        for left in reversed(range(FINAL_TRIES)):
            try:
                self._write(final=True)
            except OSError:
                if not left:
                    raise
                time.sleep(FINAL_PAUSE_S)
            else:
                return

    def give_up(self, sentence: str) -> None:
        """Kill everything now, because the supervisor itself failed, and report it."""
        for attempt in list(self._attempts.values()):
            with contextlib.suppress(Exception):
                attempt.gang.close()
            for pipe in (attempt.stdout, attempt.stderr):
                with contextlib.suppress(Exception):
                    pipe.finish()
        last = {**msgspec.structs.asdict(self._machine.snapshot()), "state": AppState.FAILED.name, "msg": sentence}
        self._record = msgspec.structs.replace(self._record, **last, ended_at=time.time())
        for replica in self._record.replicas:
            if not is_terminal(AppState[replica.state]):
                replica.state, replica.cause = AppState.FAILED.name, sentence
        self.folder.write_state(self._record, final=True)


def make_room(replicas: int) -> None:
    """Allow as many open files as the replicas need; the limit stays as it is where it is high enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES_BASE + FILES_PER_REPLICA * replicas
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard) if hard >= 0 else needed, hard))


def main(path: str, lock: int) -> None:
    """Be the supervisor of the job in this folder, whose lock is held; never returns."""
    os.set_inheritable(lock, False)
    folder = JobFolder(Path(path))
    code = 0
    request = None
    try:
        request = folder.read_request()
        assert request is not None, "the job was put in place before its supervisor was started"
        supervisor = Supervisor(folder, request)
        try:
            supervisor.run()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the job must not stay RUNNING for ever
            traceback.print_exc()
            supervisor.give_up(f"its supervisor broke; please report this: {type(error).__name__}: {error}")
            code = 1
    except BaseException:  # noqa: BLE001 - to supervisor.log
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os.close(lock)
    _prune(folder, request)
    os._exit(code)  # the kernel cleans up the rest faster


def _make_secret(folder: JobFolder) -> dict[str, str]:
    """Make a secret that only this job's replicas use, and return how they find it; none if the user chose one."""
    if any(os.environ.get(name) for name in VARIABLES):
        return {}
    path = folder.path / "secret"
    try:
        write_secret(path, make_key())
    except UsageError as error:
        print(error, file=sys.stderr)
        return {}  # the replicas use the user's own
    return {SECRET_FILE_VARIABLE: str(path)}


def _make_log_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(
            f"cannot make the log folder {path}: {error.strerror}; name another with -cfg log_dir=FOLDER"
        ) from error


def _prune(folder: JobFolder, request: LocalRequest | None) -> None:
    """Drop old jobs, in a process of its own: a caller that waits for our end must not wait for that."""
    try:
        policy = keep.policy_from(os.environ)
        if request is not None and request.keep_jobs is not None:
            policy = policy._replace(jobs=request.keep_jobs)
        jobs = Jobs(folder.path.parent)
        if jobs.should_prune(policy) and os.fork() == 0:
            jobs.prune(policy)
    except Exception:  # noqa: BLE001 - to supervisor.log
        traceback.print_exc()
