"""The agent's watchdog: finds workers that hang, reports their stacks, and kills them.

Three things show a hang: a timer that a worker did not release, a heartbeat that does not come, and, in a gang that
never beats, workers that do nothing at all. In each case the watchdog takes the stacks of all local workers, keeps the
reason for the failure report, and kills the worker that hangs. Its death takes the ordinary path: the agent's loop sees
a worker die, asks `found` for the reason, and goes on.

All this happens in the watchdog's own threads, because taking stacks and waiting for a process take time, and the
agent's loop must not wait. A worker that cannot be killed, because the kernel holds it, makes `fileno` readable.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from holdfast.errors import UsageError
from holdfast.facts import WARNING, Fact, facts
from holdfast.failures.stacks import Group, Stack, kept, merge, name_ranks, odd_ones, render
from holdfast.timer.api import TIMER_FILE_VARIABLE
from holdfast.timer.file_server import FileTimerServer, is_watched
from holdfast.timer.hang import (
    AskOthers,
    Beat,
    BeatsSeen,
    GangStarted,
    GangStuck,
    HangEffect,
    HangMachine,
    HangOptions,
    NoBeatsYet,
    OthersSeen,
)
from holdfast.timer.machine import TimersExpired
from holdfast.timer.signs import read_signs
from holdfast.timer.stillness import Stillness
from holdfast.workers import stacks
from holdfast.workers.lines import readable
from holdfast.workers.strays import read_stat

#: How long a worker has after the signal that its timer asked for, and after SIGKILL.
GRACE_S = 5.0
KILL_WAIT_S = 10.0
#: How long another node has to kill the worker that all wait for, before we kill one of ours to break the round.
ELSEWHERE_WAIT_S = 20.0
#: The longest wait of a thread, so that its progress can be watched.
LOOK_S_MAX = 10.0
#: How long the thread pauses after an unexpected exception.
STUMBLE_S = 1.0

Gather = Callable[[dict[int, Stack]], dict[int, Stack]]
#: Returns how long all workers of the other nodes have been still; None if a node does not answer.
OthersStill = Callable[[], float | None]
#: Returns the beats so far of the worker with this local rank.
ReadBeat = Callable[[int], Beat]


@dataclass(frozen=True, slots=True)
class Watched:
    """One worker as the watchdog knows it; `pidfd` always means this process."""

    local_rank: int
    rank: int
    pid: int
    stacks_file: str
    pidfd: int
    began: float


@dataclass(frozen=True, slots=True)
class Hang:
    """Why the watchdog killed a worker, and where all workers were; a victim only waited for a rank of another node."""

    local_rank: int
    sentence: str
    groups: tuple[Group, ...] = field(default=(), repr=False)
    is_victim: bool = False


class Watchdog:
    """Watches one gang after the other.

    `read_beat` is called only between `watch` and `forget`. `gather` may add other nodes' stacks to ours before a
    worker is killed.
    """

    def __init__(
        self,
        run_id: str,
        role: str,
        *,
        timers: bool = False,
        hang: HangOptions | None = None,
        read_beat: ReadBeat = lambda _: Beat(),
        gather: Gather = lambda local: local,
        others_still: OthersStill = lambda: math.inf,
    ) -> None:
        self._role = role
        self.read_beat = read_beat
        self._gather = gather
        self.others_still = others_still
        self._lock = threading.RLock()
        self._workers: dict[int, Watched] = {}  # by local rank
        self._found: dict[int, Hang] = {}
        self._immovable: list[Hang] = []
        self._told = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._folder: str | None = None
        self._timers = self._make_timers(run_id) if timers else None
        self._hangs = _HangThread(hang, self) if hang is not None else None

    def _make_timers(self, run_id: str) -> FileTimerServer:
        """Open the pipe that the environment names; if it names none, make one and name it there."""
        path = os.environ.get(TIMER_FILE_VARIABLE, "")
        if path and is_watched(path):
            facts.warn("timer_file", f"another watchdog reads '{path}'; this one makes a pipe of its own")
            path = ""
        if not path:
            self._folder = tempfile.mkdtemp(prefix="holdfast_timer_")
            path = str(Path(self._folder) / "pipe")
            os.environ[TIMER_FILE_VARIABLE] = path
        server = FileTimerServer(path, run_id, LOOK_S_MAX, on_expired=self._on_timers)
        server.start()
        return server

    # -- for the agent's loop ----------------------------------------------------------------------------------

    def watch(self, workers: Iterable[tuple[int, int, int, str]]) -> None:
        """Watch workers: local rank, rank, pid and stacks file of each; they replace those before."""
        with self._lock:
            for local_rank, rank, pid, stacks_file in workers:
                self._found.pop(local_rank, None)
                if (before := self._workers.pop(local_rank, None)) is not None:
                    os.close(before.pidfd)
                with contextlib.suppress(ProcessLookupError):  # it has ended already
                    self._workers[local_rank] = Watched(
                        local_rank, rank, pid, stacks_file, os.pidfd_open(pid), time.monotonic()
                    )
        if self._hangs is not None:
            self._hangs.begin()

    def forget(self) -> None:
        """Stop watching the gang, and forget its hangs."""
        with self._lock:
            workers, self._workers = self._workers, {}
            self._found, self._immovable = {}, []
            for worker in workers.values():
                os.close(worker.pidfd)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._told)
        if self._timers is not None:
            self._timers.clear_timers({worker.pid for worker in workers.values()})
        if self._hangs is not None:
            self._hangs.end()

    def found(self, local_rank: int) -> Hang | None:
        """Return why the watchdog killed this worker, or None if it did not."""
        with self._lock:
            return self._found.get(local_rank)

    def immovable(self) -> list[Hang]:
        """Return the hangs of workers that could not be killed; each is returned once."""
        with self._lock:
            hangs, self._immovable = self._immovable, []
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._told)
        return hangs

    def fileno(self) -> int:
        """Return a descriptor that is readable while `immovable` has hangs."""
        return self._told

    def still_s(self) -> float | None:
        """Return how long all workers here have been still at the last look; None if unknown."""
        return self._hangs.still_s if self._hangs is not None else None

    def get_last_progress_time(self) -> int:
        """Return when all threads of the watchdog last made progress, in whole seconds of the wall clock."""
        times = [int(time.time())]
        if self._timers is not None:
            times.append(self._timers.get_last_progress_time())
        if self._hangs is not None:
            times.append(int(time.time() - self._hangs.idle_s()))
        return min(times)

    def close(self) -> None:
        """Stop the threads, remove the files, and restore the environment."""
        self.forget()
        if self._timers is not None:
            self._timers.stop()
        if self._hangs is not None:
            self._hangs.close()
        os.close(self._told)
        if self._folder is not None:
            os.environ.pop(TIMER_FILE_VARIABLE, None)
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- what is found, in the threads -------------------------------------------------------------------------

    def running(self) -> dict[int, Watched]:
        """Return the workers that have not ended, by rank."""
        with self._lock:
            return {worker.rank: worker for worker in self._workers.values() if not _wait_end(worker.pidfd, 0)}

    def _on_timers(self, expired: TimersExpired) -> None:
        worker = self._owner(expired.worker)
        if worker is None:
            return  # a timer of a process that is not, or no longer, one of our workers
        # As in TorchElastic, the earliest timer that asks for a signal decides.
        timer = next((each for each in expired.timers if each.signal > 0), expired.timers[0])
        scope = readable(timer.scope.encode("utf-8", "backslashreplace"))
        sentence = f"timer '{scope}' of {timer.seconds:.3g} s expired"
        groups = kept(merge(self._take_stacks()))
        self._tell(
            "timer_expired",
            f"rank {worker.rank}: {sentence}",
            groups,
            role=self._role,
            rank=worker.rank,
            scope=scope,
            seconds=timer.seconds,
        )
        if timer.signal > 0:
            self._end(worker, Hang(worker.local_rank, sentence, groups), timer.signal)

    def on_stuck(self, stuck: GangStuck, beats: Mapping[int, Beat]) -> None:
        """Find the rank that a stuck gang waits for, and kill it."""
        groups = merge(self._take_stacks())
        # A worker that is still starting has another stack than the others, but they do not wait for it.
        running, odd = self.running(), [rank for rank in odd_ones(groups) if rank not in stuck.newcomers]
        # If the stacks do not tell, the rank that is least far holds the others up.
        culprits = [rank for rank in odd if rank in running] or [rank for rank in stuck.suspects if rank in running][:1]
        elsewhere = bool(odd) and not set(odd) & set(running)
        what = "no worker computed, wrote or communicated" if stuck.is_still else "no heartbeat"
        reason = f"{what} for {stuck.silent_s:.3g} s, the limit is {stuck.limit_s:.3g} s"
        blame = f"; {_differ(odd)}" if odd else ""
        groups = kept(groups)
        self._tell(
            "hang",
            f"{name_ranks(running)}: {reason}{blame}",
            groups,
            role=self._role,
            ranks=sorted(running),
            suspects=list(odd) or culprits,
            silent_s=stuck.silent_s,
            limit_s=stuck.limit_s,
        )
        for rank in culprits:
            beat = beats.get(rank, Beat())
            last = f", last at step {beat.step}" if beat.step else f", after {beat.count} beats"
            sentence = f"{reason}{'' if stuck.is_still else last}{blame if elsewhere else ''}"
            hang = Hang(running[rank].local_rank, sentence, groups, is_victim=elsewhere)
            if not (elsewhere and self._wait_over(running[rank])):
                self._end(running[rank], hang, signal.SIGKILL)

    def tell_no_beats(self, limit_s: float | None, why: str) -> None:
        """Report once how hangs of workers without heartbeats are found, or that they are not."""
        if limit_s is None:
            how = f"--hang finds nothing, because /proc does not show whether workers move ({why}): call it once a step"
        else:
            how = f"--hang acts only when no worker computes, writes or communicates for {limit_s:.3g} s"
        facts.publish(Fact("no_heartbeats", f"no worker has called holdfast.heartbeat(): {how}", {"limit_s": limit_s}))

    def _owner(self, pid: object) -> Watched | None:
        """Return the worker that this process is, or in whose session it is, as a data loader's process is."""
        assert isinstance(pid, int)
        found = read_stat(pid)
        sessions = {pid} if found is None else {pid, found.session}
        with self._lock:
            return next((worker for worker in self._workers.values() if worker.pid in sessions), None)

    def _take_stacks(self) -> dict[int, Stack]:
        """Take the stacks of all workers here, by rank, and of other nodes if they answer."""
        running = self.running()
        by_pid = stacks.take(
            (worker.pid for worker in running.values()),
            {worker.pid: worker.stacks_file for worker in running.values()},
        )
        local = {rank: by_pid[worker.pid] for rank, worker in running.items()}
        try:
            return self._gather(dict(local))
        except Exception as error:  # noqa: BLE001 - other nodes' stacks only help
            facts.warn("stacks_incomplete", f"the stacks of other nodes are missing: {error!r}")
            return local

    def _tell(self, kind: str, sentence: str, groups: tuple[Group, ...], **data: object) -> None:
        data["stacks"] = [group.to_json() for group in groups]
        facts.publish(Fact(kind, f"{sentence}\n{render(groups)}", data, WARNING))

    def _wait_over(self, worker: Watched) -> bool:
        """Wait until the worker ends because its round is over; return whether it did."""
        with self._lock:
            if self._workers.get(worker.local_rank) is not worker:
                return True
            pidfd = os.dup(worker.pidfd)
        try:
            return _wait_end(pidfd, ELSEWHERE_WAIT_S)
        finally:
            os.close(pidfd)

    def _end(self, worker: Watched, hang: Hang, number: int) -> None:
        """Kill a worker: the signal, a grace period, SIGKILL; the agent's loop sees it die."""
        with self._lock:
            if self._workers.get(worker.local_rank) is not worker:
                return  # the gang is over already
            self._found[worker.local_rank] = hang
            pidfd = os.dup(worker.pidfd)
        try:
            gentle = [(number, GRACE_S)] if number != signal.SIGKILL else []
            for each, wait_s in [*gentle, (signal.SIGKILL, KILL_WAIT_S)]:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(pidfd, each)
                if _wait_end(pidfd, wait_s):
                    return
        finally:
            os.close(pidfd)
        with self._lock:
            if self._found.get(worker.local_rank) is hang:
                self._immovable.append(hang)
                os.eventfd_write(self._told, 1)


class _HangThread:
    """Looks at the beats of the gang when the machine asks for it."""

    def __init__(self, options: HangOptions, watchdog: Watchdog) -> None:
        for limit_s in (options.limit_s, options.start_s):
            if limit_s is not None and limit_s <= 0:
                raise UsageError(f"a hang limit of {limit_s:g} s kills every worker; give more than 0, or none")
        self._watchdog = watchdog
        self._machine = HangMachine(options)
        self._changed = threading.Condition()
        self._stillness = Stillness()
        self._blind_why = ""
        #: How long all workers had been still at the last look; None if that could not be seen.
        self.still_s: float | None = None
        self._is_on = False  # a gang runs
        self._closing = False
        self._last_progress = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="holdfast hangs", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """A gang has been started."""
        with self._changed:
            self._machine.handle(GangStarted(), time.monotonic())
            self._stillness = Stillness()
            self._is_on = True
            self._changed.notify()

    def end(self) -> None:
        """The gang is over."""
        with self._changed:
            self._is_on = False

    def idle_s(self) -> float:
        """Return how long ago the thread last made progress."""
        return time.monotonic() - self._last_progress

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(LOOK_S_MAX)

    def _run(self) -> None:
        while not self._closing:
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - without the thread no hang would ever be found
                facts.unexpected("the hang watchdog", error, "it goes on watching")
                with self._changed:  # an exception that repeats must not keep a processor busy
                    self._changed.wait_for(lambda: self._closing, STUMBLE_S)

    def _look(self) -> None:
        """Wait until it is time to look, and look once."""
        with self._changed:
            self._changed.wait(self._wait_s())
            self._last_progress = time.monotonic()
            if self._closing:
                return
            running = self._watchdog.running()
            beats = self._read(running)
            self.still_s = self._look_still({rank: worker.pid for rank, worker in running.items()})
            found = self._machine.handle(BeatsSeen(beats, self.still_s), time.monotonic()) if self._is_on else []
        self._carry_out(found, beats)

    def _carry_out(self, effects: list[HangEffect], beats: Mapping[int, Beat]) -> None:
        """Do what the machine asks for, without the lock: each of these may take seconds."""
        for effect in effects:
            match effect:
                case GangStuck():
                    self._watchdog.on_stuck(effect, beats)
                case NoBeatsYet():
                    self._watchdog.tell_no_beats(effect.limit_s, self._blind_why)
                case AskOthers():
                    seen = OthersSeen(self._watchdog.others_still())
                    with self._changed:
                        then = self._machine.handle(seen, time.monotonic()) if self._is_on else []
                    self._carry_out(then, beats)

    def _look_still(self, pids: dict[int, int]) -> float | None:
        try:
            return self._stillness.look(read_signs(pids), time.monotonic())
        except OSError as error:
            self._blind_why = str(error)
            return None

    def _wait_s(self) -> float:
        wakeup = self._machine.wakeup() if self._is_on else None
        return LOOK_S_MAX if wakeup is None else min(max(wakeup - time.monotonic(), 0.0), LOOK_S_MAX)

    def _read(self, running: Mapping[int, Watched]) -> dict[int, Beat]:
        if not self._is_on:  # the agent has given the slots back
            return {}
        return {
            rank: msgspec.structs.replace(self._watchdog.read_beat(worker.local_rank), began=worker.began)
            for rank, worker in running.items()
        }


def _differ(ranks: Sequence[int]) -> str:
    """Return a sentence that these ranks have other stacks than the rest."""
    return (
        f"{name_ranks(ranks)}'s stack differs from the others"
        if len(ranks) == 1
        else (f"the stacks of {name_ranks(ranks)} differ from the others")
    )


def _wait_end(pidfd: int, timeout_s: float) -> bool:
    """Wait until a process has ended; return whether it has."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))
