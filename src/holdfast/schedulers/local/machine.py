"""The job machine: which replicas of a local job are started, stopped and started again, and how the job ends. Pure.

The rules:
- All replicas are started together. The job has succeeded when all have ended with 0.
- A replica that fails is started again as its role's policy says: alone (REPLICA), with all of its role (ROLE) or with
  the whole app (APPLICATION), at most `max_retries` times; those that must restart with it are stopped first. Retries
  are counted for each replica, each role, or the whole app. The first comes at once, each later one after a longer
  wait.
- Without retries left the job continues as long as `min_replicas` of that role run or have succeeded. Otherwise it has
  failed: the others are stopped, and the first failure is the cause.
- A replica that ends while it is being stopped is charged with nothing.
- A cancelled job ends when nothing of it runs any more. A job that is already failing stays failed.

It does not know processes, signals, grace times or files. The driver answers `StartReplica` with `ReplicaStarted`
or with a `ReplicaEnded` without an exit code, and `StopReplica` with `ReplicaEnded`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.machine import Tick
from holdfast.schedulers.local.record import Progress, ReplicaRecord, RolePlan
from holdfast.specs.app import RetryPolicy
from holdfast.specs.states import AppState

#: The wait before the second retry; each further one is twice as long, up to the longest.
RETRY_DELAY_S = 1.0
RETRY_DELAY_MAX_S = 30.0


class Phase(enum.Enum):
    """What the driver is doing with a replica."""

    WAITING = "waiting"  #: to be started for the first time
    STARTING = "starting"  #: the driver has been told to start it
    RUNNING = "running"
    STOPPING = "stopping"  #: the driver has been told to stop it
    ENDED = "ended"


#: Phases in which a process may be there.
LIVE = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})


@dataclass(slots=True)
class Replica:
    """One replica, as the machine and the record on disk know it."""

    role: str
    id: int
    phase: Phase = Phase.WAITING
    pid: int | None = None
    exit_code: int | None = None
    #: How the last attempt ended; meaningful in ENDED.
    outcome: AppState = AppState.PENDING
    cause: str = ""
    reason: str | None = None
    last_line: str = ""
    error: str = ""
    restarts: int = 0
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def name(self) -> str:
        """How people call it."""
        return f"{self.role}/{self.id}"

    @property
    def state(self) -> AppState:
        """Where it stands."""
        if self.phase is Phase.ENDED:
            return self.outcome
        return AppState.RUNNING if self.phase in LIVE else AppState.PENDING


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobBegun:
    """Start everything."""


@dataclass(frozen=True, slots=True)
class ReplicaStarted:
    """A replica runs; `at` is the wall clock, for people."""

    number: int
    pid: int
    at: float


@dataclass(frozen=True, slots=True)
class ReplicaEnded:
    """Nothing of a replica is left, and its output is on disk; without an exit code it could not be started.

    `stopped` says that it was signalled by us before it ended.
    """

    number: int
    exit_code: int | None
    cause: str
    stopped: bool
    at: float
    error: str = ""  #: what its error file holds
    reason: str | None = None
    last_line: str = ""


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """The job is to end; `hard` is without the time that replicas have to end by themselves."""

    hard: bool = False
    why: str = "the job was cancelled"


# -- effects -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartReplica:
    """Start a replica; ends with `ReplicaStarted` or `ReplicaEnded`."""

    number: int


@dataclass(frozen=True, slots=True)
class StopReplica:
    """End a replica and all that descends from it; ends with `ReplicaEnded`. May come again, and then `hard`."""

    number: int
    hard: bool = False


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Nothing of the job runs any more, and nothing will."""

    state: AppState
    sentence: str


JobEvent = JobBegun | ReplicaStarted | ReplicaEnded | CancelAsked | Tick
JobEffect = StartReplica | StopReplica | JobEnded


@dataclass(slots=True)
class _Restart:
    """Replicas that are started again together, once all of them have ended and the time has come."""

    numbers: list[int]
    due: float
    sentence: str


@dataclass(slots=True)
class _Retries:
    """How many retries were used up, by what they are counted for."""

    used: dict[tuple[str, int | None], int] = field(default_factory=dict)

    def take(self, key: tuple[str, int | None], limit: int) -> int | None:
        """Use one up and return its number, or None if there is none left."""
        count = self.used.get(key, 0)
        if count >= limit:
            return None
        self.used[key] = count + 1
        return count + 1


class JobMachine:
    """Decides one job's life; see the top of this module."""

    def __init__(
        self, roles: Sequence[RolePlan], replicas: Sequence[tuple[str, int]], retry_delay_s: float = RETRY_DELAY_S
    ) -> None:
        self.replicas = [Replica(role, number) for role, number in replicas]
        self.num_restarts = 0
        self.ended: JobEnded | None = None
        self._roles = {role.name: role for role in roles}
        self._retry_delay_s = retry_delay_s
        self._retries = _Retries()
        self._restarts: list[_Restart] = []  # their numbers never overlap
        self._ending: JobEnded | None = None  # decided, while some still run
        self._hard = False  # from now on no replica gets time to end
        self._lost: list[str] = []  # failed replicas that the job went on without

    def handle(self, event: JobEvent, now: float) -> list[JobEffect]:
        """Decide what the event means for the job."""
        effects: list[JobEffect] = []
        match event:
            case JobBegun():
                if self._ending is None:
                    effects += self._start(range(len(self.replicas)))
            case ReplicaStarted(number, pid, at):
                self._note_start(self.replicas[number], pid, at)
            case ReplicaEnded():
                effects += self._note_end(event, now)
            case CancelAsked(hard, why):
                effects += self._cancel(hard, why)
            case Tick():
                pass
        return effects + self._go_on(now)

    # -- replicas ------------------------------------------------------------------------------------------------------

    def _start(self, numbers: Sequence[int]) -> list[JobEffect]:
        for number in numbers:
            replica = self.replicas[number]
            assert replica.phase in (Phase.WAITING, Phase.ENDED), replica
            replica.restarts += replica.phase is Phase.ENDED
            replica.phase, replica.outcome = Phase.STARTING, AppState.PENDING
            replica.exit_code = replica.ended_at = replica.pid = None
            replica.cause = replica.error = replica.last_line = ""
            replica.reason = None
        return [StartReplica(number) for number in numbers]

    def _note_start(self, replica: Replica, pid: int, at: float) -> None:
        replica.pid, replica.started_at = pid, at
        if replica.phase is Phase.STARTING:  # STARTING -> RUNNING; one that is to be stopped stays STOPPING
            replica.phase = Phase.RUNNING

    def _note_end(self, event: ReplicaEnded, now: float) -> list[JobEffect]:
        replica = self.replicas[event.number]
        was_stopping, replica.phase = replica.phase is Phase.STOPPING, Phase.ENDED
        replica.exit_code, replica.ended_at = event.exit_code, event.at
        if event.stopped:
            replica.outcome = AppState.CANCELLED  # its cause was written down when it was stopped
            return []
        replica.cause, replica.error = event.cause, event.error
        replica.reason, replica.last_line = event.reason, event.last_line
        if event.exit_code == 0:
            replica.outcome, replica.cause = AppState.SUCCEEDED, ""
            return []
        replica.outcome = AppState.FAILED
        return [] if was_stopping else self._failed(event.number, now)

    def _stop(self, numbers: Sequence[int], why: str) -> list[JobEffect]:
        effects: list[JobEffect] = []
        for number in numbers:
            replica = self.replicas[number]
            if replica.phase in (Phase.STARTING, Phase.RUNNING):  # -> STOPPING
                replica.phase, replica.cause = Phase.STOPPING, f"it was stopped: {why}"
                effects.append(StopReplica(number, self._hard))
        return effects

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _failed(self, number: int, now: float) -> list[JobEffect]:
        """A replica failed by itself: start it again, continue without it, or give up."""
        replica = self.replicas[number]
        role = self._roles[replica.role]
        story = f"{replica.name} failed: {replica.cause}"
        together, key = self._companions(number)
        retry = self._retries.take(key, role.max_retries)
        if retry is not None:
            self.num_restarts += 1
            return self._restart(together, retry, f"{story}; started again, retry {retry} of {role.max_retries}", now)
        if role.min_replicas is not None and self._standing(role.name) >= role.min_replicas:
            self._lost.append(
                f"{story}; the job goes on without it, since {role.min_replicas} of '{role.name}' are enough"
            )
            return []
        spent = f" (after {role.max_retries} retries)" if role.max_retries else ""
        return self._end(AppState.FAILED, f"{self._first_failure(number)}{spent}", f"{replica.name} failed")

    def _companions(self, number: int) -> tuple[list[int], tuple[str, int | None]]:
        """Say which replicas are started again together with one, and for which the retry is counted."""
        replica = self.replicas[number]
        match self._roles[replica.role].retry_policy:
            case RetryPolicy.REPLICA:
                return [number], (replica.role, replica.id)
            case RetryPolicy.ROLE:
                return [n for n, other in enumerate(self.replicas) if other.role == replica.role], (replica.role, None)
            case _:
                return list(range(len(self.replicas))), ("", None)

    def _restart(self, numbers: list[int], retry: int, sentence: str, now: float) -> list[JobEffect]:
        delay = min(self._retry_delay_s * 2 ** (retry - 2), RETRY_DELAY_MAX_S) if retry > 1 else 0.0
        due = now + delay
        for other in [each for each in self._restarts if set(each.numbers) & set(numbers)]:
            self._restarts.remove(other)  # the wider circle takes the narrower one in
            numbers, due = sorted({*numbers, *other.numbers}), max(due, other.due)
        self._restarts.append(_Restart(numbers, due, sentence))
        return self._stop(numbers, sentence)

    def _standing(self, role: str) -> int:
        """Count the replicas of a role that run, will run, or have succeeded."""
        again = self._to_restart()
        return sum(
            replica.role == role
            and (replica.phase is not Phase.ENDED or replica.outcome is AppState.SUCCEEDED or n in again)
            for n, replica in enumerate(self.replicas)
        )

    def _to_restart(self) -> set[int]:
        return {number for restart in self._restarts for number in restart.numbers}

    def _first_failure(self, number: int) -> str:
        again = self._to_restart()
        failed = [
            each
            for n, each in enumerate(self.replicas)
            if each.phase is Phase.ENDED and each.outcome is AppState.FAILED and n not in again
        ]
        first = min(failed, key=lambda each: each.ended_at or 0.0, default=self.replicas[number])
        return f"{first.name} failed: {first.cause}"

    def _end(self, state: AppState, sentence: str, why: str) -> list[JobEffect]:
        """Wind the job up; what was decided first stays."""
        if self._ending is not None or self.ended is not None:
            return []
        self._ending = JobEnded(state, sentence)
        for number in sorted(self._to_restart()):
            replica = self.replicas[number]
            if replica.phase is Phase.ENDED and replica.outcome is AppState.FAILED:
                replica.outcome = AppState.CANCELLED  # it had retries left: it did not end the job
                replica.cause = f"it was not started again: {why}; before, {replica.cause}"
                replica.reason = None
        self._restarts.clear()
        for replica in self.replicas:
            if replica.phase is Phase.WAITING:  # WAITING -> ENDED
                replica.phase, replica.outcome = Phase.ENDED, AppState.CANCELLED
                replica.cause = f"it was never started: {why}"
        return self._stop(range(len(self.replicas)), why)

    def _cancel(self, hard: bool, why: str) -> list[JobEffect]:
        stopping = [number for number, replica in enumerate(self.replicas) if replica.phase is Phase.STOPPING]
        harder = hard and not self._hard
        self._hard = self._hard or hard
        effects = self._end(AppState.CANCELLED, why, why)
        return effects + [StopReplica(number, hard=True) for number in stopping if harder]

    def _go_on(self, now: float) -> list[JobEffect]:
        """Start the replicas whose restart is due, or end the job."""
        if self.ended is not None:
            return []
        effects: list[JobEffect] = []
        for restart in [each for each in self._restarts if self._is_ready(each) and each.due <= now]:
            self._restarts.remove(restart)
            effects += self._start(restart.numbers)
        if not self._restarts and all(replica.phase is Phase.ENDED for replica in self.replicas):
            self.ended = self._ending or JobEnded(AppState.SUCCEEDED, "; ".join(self._lost))
            effects.append(self.ended)
        return effects

    def _is_ready(self, restart: _Restart) -> bool:
        return all(self.replicas[number].phase is Phase.ENDED for number in restart.numbers)

    # -- what the outside may ask --------------------------------------------------------------------------------------

    @property
    def state(self) -> AppState:
        """Where the job stands."""
        if self.ended is not None:
            return self.ended.state
        running = any(replica.phase in LIVE for replica in self.replicas)
        return AppState.RUNNING if running else AppState.PENDING

    @property
    def sentence(self) -> str:
        """The reason for the job's state; empty while there is none."""
        if self.ended is not None:
            return self.ended.sentence
        if self._ending is not None:
            left = sum(replica.phase in LIVE for replica in self.replicas)
            return f"{self._ending.sentence}; {left} of {len(self.replicas)} replicas are still being stopped"
        return "; ".join([*self._lost, *(restart.sentence for restart in self._restarts)])

    def wakeup(self) -> float | None:
        """Say when the next restart is due, or None."""
        return min((restart.due for restart in self._restarts if self._is_ready(restart)), default=None)

    def check(self) -> None:
        """Assert that the parts of the state agree."""
        numbers = [number for restart in self._restarts for number in restart.numbers]
        assert len(numbers) == len(set(numbers)), "a replica is to be restarted twice"
        assert not (self._restarts and (self._ending or self.ended)), "a job that ends restarts nothing"
        if self.ended is not None:
            assert all(replica.phase is Phase.ENDED for replica in self.replicas)
        for replica in self.replicas:
            if replica.phase is Phase.ENDED:
                assert replica.outcome in (AppState.SUCCEEDED, AppState.FAILED, AppState.CANCELLED), replica
            assert replica.restarts <= self.num_restarts

    def snapshot(self) -> Progress:
        """Describe the job as it is written to disk."""
        return Progress(
            state=self.state.name,
            msg=self.sentence,
            num_restarts=self.num_restarts,
            replicas=[self._record(number) for number in range(len(self.replicas))],
        )

    def _record(self, number: int) -> ReplicaRecord:
        replica = self.replicas[number]
        waits = replica.phase is Phase.ENDED and number in self._to_restart()
        return ReplicaRecord(
            role=replica.role,
            id=replica.id,
            state=(AppState.PENDING if waits else replica.state).name,
            pid=replica.pid if replica.phase in LIVE else None,
            exit_code=replica.exit_code,
            cause=replica.cause,
            reason=replica.reason,
            last_line=replica.last_line,
            error=replica.error,
            restarts=replica.restarts,
            started_at=replica.started_at,
            ended_at=replica.ended_at,
        )
