"""How the agent handles workers that hang: the watchdog, the stacks of all ranks, and the report."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.agent.api import WorkerGroup
from holdfast.agent.peer_calls import PeerCalls
from holdfast.errors import HoldfastError, PeerError
from holdfast.facts import WARNING, Fact, facts
from holdfast.failures import Failure, Kind
from holdfast.failures.stacks import Stack, kept, merge, render
from holdfast.quantities import count
from holdfast.threads import start_thread
from holdfast.timer.beats import BeatBook
from holdfast.timer.hang import HangOptions
from holdfast.workers import stacks
from holdfast.workers.gangs import Gangs

if TYPE_CHECKING:
    from holdfast.timer.beats import Progress
    from holdfast.timer.hang import Beat
    from holdfast.timer.watchdog import Hang, Watchdog

#: Set to 1, it has the agent watch the timers that workers set; see `holdfast.timer`.
TORCHELASTIC_ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
#: What nodes ask each other when a gang seems stuck: how long all workers have been inactive, and their stacks.
STILL_TOPIC, STACKS_TOPIC = "still", "stacks"

#: How long the other nodes have to take their workers' stacks and send them.
ANSWER_TIMEOUT_S = stacks.TIMEOUT_S + 2.0
#: How long they have to say whether their workers are active.
STILL_TIMEOUT_S = 5.0


class Hangs:
    """What one agent knows of its workers' progress: their beats, their stacks, and a watchdog where one is wanted."""

    def __init__(
        self,
        hang: HangOptions | None,
        gather: Callable[[dict[int, Stack]], dict[int, Stack]],
        others_still: Callable[[], float | None],
    ) -> None:
        self._options = hang
        self._gather = gather
        self._others_still = others_still
        self._watchdog: Watchdog | None = None
        #: The beats of the present gang.
        self._book: BeatBook | None = None
        #: The rank of each of its workers by local rank.
        self._ranks: dict[int, int] = {}
        #: Pid and stacks file of each worker by rank; replaced as a whole, since other threads read it.
        self._workers: dict[int, tuple[int, str]] = {}

    # -- a gang's life -------------------------------------------------------------------------------------------

    def prepare(self, run_id: str, role: str, envs: dict[int, dict[str, str]]) -> None:
        """Give workers a place for their beats; start the watchdog on first use, where one is wanted."""
        timers = os.environ.get(TORCHELASTIC_ENABLE_FILE_TIMER) == "1"
        if self._watchdog is None and (timers or self._options is not None):
            from holdfast.timer.watchdog import Watchdog  # few launches want it, and all would wait for the import

            self._watchdog = Watchdog(
                run_id,
                role,
                timers=timers,
                hang=self._options,
                read_beat=self._read_beat,
                gather=self._gather,
                others_still=self._others_still,
            )
        book = self._open_book(len(envs))
        self.tell_steps(envs)  # of the workers that are replaced, before their slots are emptied
        if book is not None:
            for local_rank, env in envs.items():
                env.update(book.variables(local_rank))

    def _open_book(self, size: int) -> BeatBook | None:
        """Make the place for the workers' beats; without one, steps are not counted and hangs cannot be found."""
        if self._book is None:
            try:
                self._book = BeatBook(size)
            except (OSError, HoldfastError) as error:
                if self._options is not None:
                    raise
                facts.warn("no_beats", f"the workers' steps are not counted: {error}")
        return self._book

    @property
    def beats_file(self) -> str:
        """The file that the present workers write their beats to; empty where there are none."""
        return self._book.path if self._book is not None else ""

    def count_steps(self) -> int:
        """Return how many beats the present workers have sent; from any thread."""
        book = self._book
        try:
            return 0 if book is None else sum(book.read(each).count for each in tuple(self._ranks))
        except ValueError:  # they have just ended
            return 0

    def progress(self) -> int | None:
        """Return a number that changes when a worker here makes a step; None if none has beaten; from any thread.

        A step that is tried again is no step.
        """
        book = self._book
        try:
            found = [] if book is None else [book.progress(each) for each in tuple(self._ranks)]
        except ValueError:  # they have just ended
            return None
        steps = [each.steps if each.last_step is None else each.last_step for each in found if each is not None]
        return sum(steps) if steps else None

    def tell_steps(self, local_ranks: Iterable[int]) -> None:
        """Publish how far these workers got; those that never beat are left out."""
        found = {
            self._ranks[each]: progress
            for each in local_ranks
            if each in self._ranks and self._book is not None and (progress := self._book.progress(each)) is not None
        }
        if found:
            made = "; ".join(_steps(rank, progress) for rank, progress in sorted(found.items()))
            data = {"ranks": {str(rank): progress.to_json() for rank, progress in found.items()}}
            facts.publish(Fact("steps", made, data))

    def _read_beat(self, local_rank: int) -> Beat:
        assert self._book is not None  # the watchdog asks only while there is a gang
        return self._book.read(local_rank)

    def watch(self, group: WorkerGroup, gang: Gangs) -> None:
        """Begin to watch workers that have just been started: all, or those that were replaced."""
        pids = gang.pids()
        before = {pid for pid, _ in self._workers.values()}
        self._ranks = {each.local_rank: each.global_rank for each in group.workers}
        self._workers = {
            each.global_rank: (pids[each.local_rank], gang.stacks_file(each.local_rank)) for each in group.workers
        }
        if self._watchdog is not None:
            self._watchdog.watch(
                (each.local_rank, each.global_rank, *self._workers[each.global_rank])
                for each in group.workers
                if pids[each.local_rank] not in before
            )

    def forget(self) -> None:
        """The gang has ended."""
        self._workers = {}
        if self._watchdog is not None:
            self._watchdog.forget()
        self.tell_steps(self._ranks)
        self._ranks = {}
        if self._book is not None:
            self._book.close()
            self._book = None

    def close(self) -> None:
        """Release everything; may be called again."""
        self.forget()
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None

    # -- what was found ------------------------------------------------------------------------------------------

    def filenos(self) -> tuple[int, ...]:
        """What becomes readable when `take_immovable` has something to tell."""
        return (self._watchdog.fileno(),) if self._watchdog is not None else ()

    def take_immovable(self) -> list[Hang]:
        """Return the hangs of workers that could not be ended, each once."""
        return self._watchdog.immovable() if self._watchdog is not None else []

    def found(self, local_rank: int) -> Hang | None:
        """Return why this worker was ended by the watchdog, or None if it was not."""
        return self._watchdog.found(local_rank) if self._watchdog is not None else None

    def get_last_progress_time(self) -> int | None:
        """When the watchdog last made progress, in whole seconds of the wall clock; None if there is none."""
        return self._watchdog.get_last_progress_time() if self._watchdog is not None else None

    # -- stacks --------------------------------------------------------------------------------------------------

    def take_stacks(self) -> dict[int, Stack]:
        """Return where this node's workers are, by rank; from any thread."""
        workers = dict(self._workers)
        by_pid = stacks.take((pid for pid, _ in workers.values()), dict(workers.values()))
        return {rank: by_pid[pid] for rank, (pid, _) in workers.items()}

    def answer(self, topic: str, body: str) -> str:
        """Answer another node that asks whether our workers are active, or for their stacks."""
        del body
        if topic == STILL_TOPIC:
            return json.dumps(self._watchdog.still_s() if self._watchdog is not None else None)
        if topic != STACKS_TOPIC:
            raise PeerError(f"this node cannot answer a question about '{topic}'")
        return json.dumps({str(rank): stack.to_json() for rank, stack in self.take_stacks().items()})

    def tell_half_finished(self, sentence: str, running: list[int]) -> None:
        """Publish the stacks of the ranks that are still running; in a thread, since taking stacks may take seconds."""

        def tell() -> None:
            try:
                taken = self.take_stacks()
            except Exception as error:  # noqa: BLE001 - the sentence is worth telling without the stacks
                facts.unexpected("taking the stacks of workers", error, "they are told without")
                taken = {}
            groups = kept(merge({rank: stack for rank, stack in taken.items() if rank in running}))
            data: dict[str, Any] = {"running": running, "stacks": [group.to_json() for group in groups]}
            facts.publish(Fact("half_finished", f"{sentence}:\n{render(groups)}", data, WARNING))

        start_thread(tell, "holdfast stacks")


def ask_others(calls: PeerCalls | None) -> dict[int, Stack]:
    """Return where the workers of the round's other nodes are, by rank, as far as they answer in time."""
    found: dict[int, Stack] = {}
    for answer in calls.call(STACKS_TOPIC, "", ANSWER_TIMEOUT_S).values() if calls is not None else ():
        try:
            found |= {int(rank): Stack.from_json(stack) for rank, stack in json.loads(answer).items()}
        except (PeerError, ValueError, AttributeError) as error:
            facts.warn("stacks_incomplete", f"another node's stacks could not be read: {error}")
    return found


def ask_others_still(calls: PeerCalls | None, group: WorkerGroup) -> float | None:
    """Return how long all workers of the round's other nodes have been inactive; None if one of them does not say."""
    others = group.group_world_size - 1 if group.group_world_size is not None else 0
    if others <= 0:
        return math.inf
    answers = calls.call(STILL_TOPIC, "", STILL_TIMEOUT_S) if calls is not None else {}
    try:
        still = [float(json.loads(answer)) for answer in answers.values()]
    except (TypeError, ValueError):  # a node that cannot see its workers answers null
        return None
    return min(still) if len(still) == others else None


def explain_hang(failure: Failure, hang: Hang) -> Failure:
    """Make the failure of a worker that the watchdog ended say why, and where all ranks were."""
    kind = Kind.VICTIM if hang.is_victim else Kind.TIMEOUT
    ended = "it could not be ended: the kernel holds it"
    if failure.exit_code is not None:
        name = failure.signal_name
        ended = f"it was ended by {name}" if name else f"it then exited with code {failure.exit_code}"
    return replace(failure, kind=kind, message=f"{hang.sentence}; {ended}", stacks=hang.groups)


def _steps(rank: int, progress: Progress) -> str:
    last = "" if progress.last_step is None else f", the last is {progress.last_step}"
    return f"rank {rank}: {count(progress.steps, 'step')}{last}"
