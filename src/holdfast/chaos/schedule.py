"""What goes wrong, when, and on which worker, chosen by a seed. Pure."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any, Protocol


class Kind(enum.StrEnum):
    """What is done."""

    SIGKILL = "sigkill"
    SIGSTOP = "sigstop"
    EXCEPTION = "exception"
    EXIT = "exit"
    HANG = "hang"
    #: The agent of this worker is killed, and with it all its workers; another is started in its place.
    AGENT_KILL = "agent-kill"
    #: The coordinator is killed and started again from its records.
    COORDINATOR_RESTART = "coordinator-restart"
    #: The agent of this worker is told to leave, and none comes in its place.
    SHRINK = "shrink"
    #: One more agent joins.
    GROW = "grow"
    #: Every worker that holds the same copy of the model is killed at once.
    REPLICA_KILL = "replica-kill"
    #: A worker and the one with the same part in another copy are killed at once.
    PAIR_KILL = "pair-kill"


class Moment(enum.StrEnum):
    """Where in a step it is done."""

    FORWARD = "forward"
    REDUCE = "reduce"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    SYNC = "sync"
    RENDEZVOUS = "rendezvous"
    #: While parts of a model go from one copy to another: before they are sent, and before they are taken over.
    TRANSFER = "transfer"


#: Done by the worker to itself; all others are done to the job from outside.
BY_WORKER = (
    Kind.SIGKILL,
    Kind.SIGSTOP,
    Kind.EXCEPTION,
    Kind.EXIT,
    Kind.HANG,
    Kind.REPLICA_KILL,
    Kind.PAIR_KILL,
)
#: Need a second agent.
OF_AGENTS = (Kind.AGENT_KILL, Kind.SHRINK, Kind.GROW)
#: Need copies of a model that are split over workers.
OF_REPLICAS = (Kind.REPLICA_KILL, Kind.PAIR_KILL)
#: After these there are fewer workers, or more, than at the beginning.
OF_SIZE = (Kind.SHRINK, Kind.GROW)


class Choice(Protocol):
    """What a schedule is chosen with: `random.Random(seed)`."""

    def choice(self, options: Any) -> Any:
        """Pick one."""

    def randint(self, low: int, high: int) -> int:
        """Pick a number, both ends included."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: the first worker of this rank to reach the moment at, or after, this step brings it about."""

    number: int
    kind: Kind
    moment: Moment
    step: int
    rank: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run of the campaign."""

    seed: int
    agents: int
    workers_per_agent: int
    steps: int
    faults: tuple[Fault, ...]

    @property
    def world_size(self) -> int:
        """How many workers there are at the beginning."""
        return self.agents * self.workers_per_agent

    @property
    def keeps_size(self) -> bool:
        """Whether survivors wait for a replacement: in every second schedule in which every lost worker is replaced."""
        return self.seed % 2 == 0 and not any(fault.kind in OF_SIZE for fault in self.faults)

    def to_json(self) -> dict[str, Any]:
        """Describe the schedule as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        faults = ", ".join(f"{f.kind} of rank {f.rank} at {f.moment} of step {f.step}" for f in self.faults)
        return f"seed {self.seed}: {self.agents} agents of {self.workers_per_agent} workers; {faults}"


STEPS = 24
FAULTS_MAX = 3
#: So many workers hold one copy of the model, where the campaign trains with replicas.
REPLICA = 2


def choose(seed: int, random: Choice, replica: int = 1) -> Schedule:
    """Choose a schedule: every kind and moment comes up, faults of agents only where there are two of them.

    With `replica` that many workers hold one copy of the model: there are two or three copies then.
    """
    agents = random.choice((1, 1, 2))
    if replica > 1:
        workers = replica * random.choice((2, 3)) if agents == 1 else replica
    else:
        workers = random.choice((2, 3, 4)) if agents == 1 else random.choice((1, 2))
    kinds = [
        kind for kind in Kind if (agents > 1 or kind not in OF_AGENTS) and (replica > 1 or kind not in OF_REPLICAS)
    ]
    moments = tuple(moment for moment in Moment if replica > 1 or moment is not Moment.TRANSFER)
    world_size = agents * workers
    faults: list[Fault] = []
    for number in range(random.randint(1, FAULTS_MAX)):
        kind = random.choice(kinds)
        if kind in (Kind.SHRINK, Kind.AGENT_KILL):
            kinds = [each for each in kinds if each not in (Kind.SHRINK, Kind.AGENT_KILL)]  # a worker must be left
        moment = random.choice(moments)
        # Rounds are formed at the beginning, and again only after another fault, which is when parts are moved, too.
        early = moment in (Moment.SYNC, Moment.RENDEZVOUS) and number == 0
        step = 0 if early or moment is Moment.TRANSFER else random.randint(2, STEPS - 6)
        faults.append(Fault(number, kind, moment, step, random.randint(0, world_size - 1)))
    return Schedule(seed, agents, workers, STEPS, tuple(faults))
