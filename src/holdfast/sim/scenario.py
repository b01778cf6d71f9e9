"""What one seed means: a run, its nodes, the weather on the network, and every fault with its time, as plain data.

A seed first draws *which* kinds of faults there are at all and how fierce (the swarm), then the faults themselves.
They are an explicit list, so that the shrinker can take faults and nodes away and look whether the failure stays.
"""

from __future__ import annotations

import enum
from random import Random

import msgspec

from holdfast.coordinator.messages import Admit, RunSettings

RUN = "sim"
#: A first gathering of a training waits this long for all workers that are expected.
GATHER_S = 10.0
#: The run of workers that train in process, beside that of their agents.
WORKERS_RUN = "sim.workers"


class FaultKind(enum.StrEnum):
    """What can go wrong, or merely happen, at a certain time."""

    CRASH = "crash"  # a node's process dies; `seconds` later it comes back under a new id (never, if 0)
    PAUSE = "pause"
    SLOW = "slow"
    CUT = "cut"  # a partition between some nodes and the coordinator
    BREAK = "break"  # a connection ends
    FAIL = "fail"  # a worker fails
    LEAVE = "leave"
    FINISH = "finish"  # the workers of all nodes finish, each within `seconds`
    CLOSE = "close"
    PAUSE_COORDINATOR = "pause coordinator"
    SLOW_COORDINATOR = "slow coordinator"
    RESTART_COORDINATOR = "restart coordinator"
    # Only where workers train in process:
    CUT_RING = "cut ring"  # nothing passes between a worker and the others of its round any more
    LOSE_CHECKPOINTS = "lose checkpoints"  # none can be read for a while
    CRASH_WORKER = "crash worker"
    CRASH_BOTH = "crash both"  # a worker and the coordinator die at the same moment


class How(enum.StrEnum):
    """The variants of faults."""

    PLAIN = ""
    SILENT = "silent"  # a crash of the host: no one hears the connection end
    UP = "up"  # a cut of the way to the coordinator only
    DOWN = "down"  # a cut of the way from the coordinator only
    VICTIM = "victim"  # a worker fails because of another
    MIDWAY = "midway"  # the coordinator dies between two effects of one decision
    DISK_LOST = "disk lost"


class Fault(msgspec.Struct, frozen=True):
    """One thing that goes wrong."""

    at: float
    kind: FaultKind
    nodes: tuple[str, ...] = ()
    seconds: float = 0.0
    how: How = How.PLAIN

    def __str__(self) -> str:
        parts = [str(self.kind), *([f"({self.how})"] if self.how else []), *self.nodes]
        return " ".join(parts) + (f" for {self.seconds:.2f} s" if self.seconds else "")


class Weather(msgspec.Struct, frozen=True):
    """How the network treats every single message."""

    delay_s: float = 0.002
    #: How much delays differ: 1 for from half to one and a half of `delay_s`.
    spread: float = 1.0
    loss: float = 0.0
    duplicate: float = 0.0
    #: The share of messages that are held up for long, and how long at most.
    straggle: float = 0.0
    straggle_s: float = 0.0
    #: Whether a message may overtake another of the same connection.
    reorder: bool = False
    #: Whether what is sent into a partition is delivered when it heals; else it is lost.
    holds: bool = False


class NodePlan(msgspec.Struct, frozen=True):
    """One node and its habits."""

    name: str
    host: str
    arrives_at: float = 0.0
    role: str = "trainer"
    workers: int = 1
    node_rank: int = -1
    clock_rate: float = 1.0
    clock_offset_s: float = 0.0
    timers_first: bool = False
    #: Whether its `Fail` is said when a worker fails, or lost with a connection that is just being made anew.
    gives_up: bool = True
    hosts_coordinator: bool = False
    #: How long its workers' imports take.
    preload_s: float = 0.0


class TrainingPlan(msgspec.Struct, frozen=True):
    """What workers train in process."""

    steps: int = 40
    step_s: float = 0.3
    #: Whether a step's data depends on how many workers there are.
    scale_batch: bool = False
    #: Whose collectives sum gradients: an error of "ring" says that the round is over, one of "gloo" does not.
    library: str = "gloo"
    #: Whether workers talk to each other once more after the state was changed.
    late_collective: bool = False
    #: The share of steps that can be undone after they have changed the state.
    undo: float = 1.0
    #: Save a checkpoint after so many steps; 0 for never. Reading and writing one takes so long.
    save_every: int = 0
    disk_s: float = 0.1
    collective_timeout_s: float = 20.0
    #: How many workers there are, and how long a coordinator waits for them after it comes back.
    workers: int = 2
    recovery_s: float = 10.0

    def settings(self) -> RunSettings:
        """Return the settings of the workers' run, as in production but for a shorter gathering."""
        return RunSettings(
            min_nodes=1,
            max_nodes=self.workers,
            expected=self.workers,
            max_restarts=1_000_000,
            last_call_s=GATHER_S,
            quiet_s=GATHER_S,
            admit=Admit.RESTART,
            recovery_s=self.recovery_s,
            drop_grace_s=0.0,
        )


class Scenario(msgspec.Struct, frozen=True):
    """All that happens in one simulation, except what the network draws per message and the nodes per action."""

    seed: int
    settings: RunSettings
    weather: Weather
    nodes: tuple[NodePlan, ...]
    faults: tuple[Fault, ...] = ()
    lease_s: float = 5.0
    #: When all faults end.
    heal_at: float = 30.0
    ask_timeout_s: float = 600.0
    #: Workers take up to so long to start and to stop.
    start_s: float = 0.5
    stop_s: float = 0.5
    #: The share of nodes whose workers fail too when a worker of the same round has failed.
    contagion: float = 0.0
    coordinator_rate: float = 1.0
    coordinator_offset_s: float = 0.0
    timers_first: bool = False
    #: Set if the nodes are workers that train in process.
    training: TrainingPlan | None = None
    #: Whether workers train in process: they outlive each other and their round.
    in_process: bool = False
    #: The agent's loop takes what is left for it up to so much later.
    loop_s: float = 0.0

    def bound_s(self) -> float:
        """How long the nodes may take to agree once all faults have ended."""
        waits = self.settings
        # A silent lease twice (a node that is found dead late, a coordinator that was late itself), a connect that
        # has just begun to time out, and every wait that the run's own settings ask for.
        if self.training is not None:
            return self._training_bound_s(self.training)
        return (
            3 * self.lease_s
            + 12.0
            + waits.recovery_s
            + waits.last_call_s
            + (waits.admit_every_s if waits.admit is Admit.EVERY else 0.0)
            + 3 * (self.start_s + self.stop_s + self.loop_s)
            + max((node.preload_s for node in self.nodes), default=0.0)
            + 3.0
        ) * 1.2

    def _training_bound_s(self, training: TrainingPlan) -> float:
        """All steps, and a few rounds that come about in the slowest way."""
        waits = self.settings
        round_s = 3 * self.lease_s + 12.0 + waits.recovery_s + waits.last_call_s + training.collective_timeout_s * 1.2
        return training.steps * (training.step_s + 0.2) * 1.5 + 4 * round_s


# -- the swarm -----------------------------------------------------------------------------------------------


def make_scenario(seed: int, nodes_min: int = 5, nodes_max: int = 64) -> Scenario:
    """Draw everything that a seed stands for."""
    rng = Random(f"scenario {seed}")
    size = rng.randint(nodes_min, rng.choice([nodes_max, (nodes_min + nodes_max) // 2, min(2 * nodes_min, nodes_max)]))
    lease_s = rng.choice([0.5, 1.0, 2.0, 3.0, 5.0])
    heal_at = 8.0 + 6 * lease_s
    nodes = _make_nodes(rng, size, heal_at)
    return Scenario(
        seed=seed,
        settings=_make_settings(rng, size, [node.node_rank for node in nodes]),
        weather=_make_weather(rng, lease_s),
        nodes=nodes,
        faults=_make_faults(rng, nodes, lease_s, heal_at),
        lease_s=lease_s,
        heal_at=heal_at,
        ask_timeout_s=rng.choice([600.0, 600.0, 600.0, heal_at]),
        start_s=rng.choice([0.0, 0.1, 1.0, 3.0]),
        stop_s=rng.choice([0.0, 0.1, 1.0, 3.0]),
        contagion=rng.choice([0.0, 0.3, 1.0]),
        coordinator_rate=_draw_rate(rng),
        coordinator_offset_s=rng.uniform(0, 1e6),
        timers_first=rng.random() < 0.5,
        in_process=rng.random() < 0.3,
        loop_s=rng.choice([0.0, 0.0, 0.02, 0.5]),
    )


def _make_settings(rng: Random, size: int, wishes: list[int]) -> RunSettings:
    least = rng.choice([1, max(size // 2, 1), max(size - 2, 1), size, rng.randint(1, size)])
    most = rng.choice([size, max(size - 1, least), max(least, size // 2), size + rng.randint(0, 4)])
    fixed_ranks = least == most == size and sorted(wishes) == list(range(size))
    return RunSettings(
        min_nodes=least,
        max_nodes=most,
        max_restarts=rng.choice([0, 1, 3, 10, 100, 100]),
        last_call_s=rng.uniform(1, 8),
        quiet_s=rng.choice([0.1, 1.0, 3.0]),
        admit=rng.choice(list(Admit)),
        admit_every_s=rng.uniform(0, 8),
        rejoin_timeout_s=rng.choice([600.0, 600.0, 6.0]),
        recovery_s=rng.choice([0.5, 3.0, 10.0]),
        fixed_ranks=fixed_ranks,
        spares=rng.choice([-1, -1, -1, 0, 2]),
        progress_s=rng.choice([0.0, 0.0, 3.0]),
        reset_restarts=rng.random() < 0.3,
        crash_loop=rng.choice([0, 0, 0, 3]),
    )


def _make_weather(rng: Random, lease_s: float) -> Weather:
    return Weather(
        delay_s=rng.choice([0.0002, 0.002, 0.05]),
        loss=rng.choice([0.0, 0.0, 0.01, 0.1, 0.3]),
        duplicate=rng.choice([0.0, 0.0, 0.01, 0.2]),
        straggle=rng.choice([0.0, 0.0, 0.01, 0.1]),
        straggle_s=rng.uniform(0, 3 * lease_s),
        reorder=rng.random() < 0.5,
        holds=rng.random() < 0.5,
    )


def _make_nodes(rng: Random, size: int, heal_at: float) -> tuple[NodePlan, ...]:
    per_host = rng.choice([1, 1, 1, 2, 4])
    roles = rng.choice([["trainer"], ["trainer"], ["trainer", "reader"]])
    workers = rng.choice([[1], [8], [1, 2, 8]])
    wishes = rng.choice(["none", "none", "none", "all", "some"])
    arrive_s = rng.choice([0.0, 0.5, 5.0])
    late = rng.choice([0.0, 0.0, 0.2])
    drift = rng.random() < 0.5
    hosting = rng.randrange(size) if rng.random() < 0.5 else -1
    preload_s = rng.choice([0.0, 0.0, 0.5, 6.0])
    order = rng.sample(range(size), size)
    return tuple(
        NodePlan(
            name=f"n{index}",
            host=f"h{index // per_host}",
            arrives_at=rng.uniform(0, heal_at) if rng.random() < late else rng.uniform(0, arrive_s),
            role=rng.choice(roles),
            workers=rng.choice(workers),
            node_rank=_draw_wish(rng, wishes, order[index], size),
            clock_rate=_draw_rate(rng) if drift else 1.0,
            clock_offset_s=rng.uniform(0, 1e6),
            timers_first=rng.random() < 0.5,
            gives_up=rng.random() < 0.7,
            hosts_coordinator=index == hosting,
            preload_s=rng.random() * preload_s,
        )
        for index in range(size)
    )


def _draw_wish(rng: Random, wishes: str, own: int, size: int) -> int:
    if wishes == "all":
        return own
    # A clumsy user: some ranks are asked for twice, some are out of range.
    return rng.randrange(size + 2) if wishes == "some" and rng.random() < 0.3 else -1


def _draw_rate(rng: Random) -> float:
    return rng.choice([1.0, rng.uniform(0.9, 1.1)])


def _make_faults(rng: Random, nodes: tuple[NodePlan, ...], lease_s: float, heal_at: float) -> tuple[Fault, ...]:
    names = [node.name for node in nodes]
    kinds = [kind for kind in FaultKind if kind not in _TRAINING and rng.random() < _CHANCES.get(kind, 0.5)]
    variants = {kind: [how for how in hows if rng.random() < 0.6] or [How.PLAIN] for kind, hows in _HOWS.items()}
    faults: list[Fault] = []
    for kind in kinds:
        for _ in range(rng.randint(1, _COUNTS.get(kind, 4))):
            how = rng.choice(variants.get(kind, [How.PLAIN]))
            at = rng.uniform(0.1, heal_at)
            if kind is FaultKind.FINISH:
                at = rng.uniform(heal_at / 2, heal_at)
            seconds = _draw_seconds(rng, kind, lease_s)
            targets = () if kind in _GLOBAL else tuple(_draw_targets(rng, kind, names))
            faults.append(Fault(round(at, 3), kind, targets, round(seconds, 3), how))
    if len(faults) > 1 and rng.random() < 0.5:  # two at once
        one, other = rng.sample(range(len(faults)), 2)
        faults[other] = msgspec.structs.replace(faults[other], at=faults[one].at)
    return tuple(sorted(faults, key=lambda fault: fault.at))


_GLOBAL = (
    FaultKind.FINISH,
    FaultKind.PAUSE_COORDINATOR,
    FaultKind.SLOW_COORDINATOR,
    FaultKind.RESTART_COORDINATOR,
)
_TRAINING = (FaultKind.CUT_RING, FaultKind.LOSE_CHECKPOINTS, FaultKind.CRASH_WORKER, FaultKind.CRASH_BOTH)
_CHANCES = {FaultKind.FINISH: 0.15, FaultKind.CLOSE: 0.05}
_COUNTS = {FaultKind.FINISH: 1, FaultKind.CLOSE: 1, FaultKind.SLOW_COORDINATOR: 1, FaultKind.FAIL: 6}
_HOWS = {
    FaultKind.CRASH: [How.PLAIN, How.SILENT],
    FaultKind.CUT: [How.PLAIN, How.UP, How.DOWN],
    FaultKind.FAIL: [How.PLAIN, How.VICTIM],
    FaultKind.RESTART_COORDINATOR: [How.PLAIN, How.MIDWAY, How.DISK_LOST],
}


def _draw_targets(rng: Random, kind: FaultKind, names: list[str]) -> list[str]:
    if kind in (FaultKind.CUT, FaultKind.CRASH, FaultKind.PAUSE) and rng.random() < 0.3:
        return sorted(rng.sample(names, rng.randint(1, len(names))))
    return [rng.choice(names)]


def _draw_seconds(rng: Random, kind: FaultKind, lease_s: float) -> float:
    if kind in (FaultKind.CRASH, FaultKind.LEAVE):
        return rng.choice([0.0, rng.uniform(0.05, 2 * lease_s)])
    if kind in (FaultKind.FAIL, FaultKind.CLOSE):
        return 0.0
    if kind is FaultKind.FINISH:
        return rng.choice([0.0, 2.0])
    # Shorter than a lease, around it, and longer.
    return rng.choice([rng.uniform(0.01, lease_s / 2), rng.uniform(0.5, 1.5) * lease_s, rng.uniform(1.5, 4) * lease_s])


# -- training in process -----------------------------------------------------------------------------------------------

_TRAINING_KINDS = (
    FaultKind.CRASH,
    FaultKind.PAUSE,
    FaultKind.CUT,
    FaultKind.BREAK,
    FaultKind.FAIL,
    FaultKind.LEAVE,
    FaultKind.PAUSE_COORDINATOR,
    FaultKind.RESTART_COORDINATOR,
    FaultKind.CRASH_WORKER,
    *_TRAINING,
)
_TRAINING_GLOBAL = (*_GLOBAL, FaultKind.LOSE_CHECKPOINTS)


def make_training(seed: int, nodes_min: int = 2, nodes_max: int = 5) -> Scenario:
    """Draw a training in process: its nodes and their workers, what they train, and what happens to them."""
    rng = Random(f"training {seed}")
    size = rng.randint(nodes_min, nodes_max)
    lease_s = rng.choice([1.0, 2.0, 5.0])
    per_node = rng.choice([1, 1, 2, 3])
    training = TrainingPlan(
        steps=rng.choice([20, 60, 100]),
        step_s=rng.choice([0.05, 0.2, 0.5]),
        scale_batch=rng.random() < 0.5,
        library=rng.choice(["gloo", "gloo", "ring"]),
        late_collective=rng.random() < 0.3,
        undo=rng.choice([1.0, 1.0, 0.5, 0.0]),
        save_every=rng.choice([0, 0, 1, 5]),
        disk_s=rng.choice([0.01, 0.5]),
        collective_timeout_s=rng.choice([5.0, 20.0]),
        workers=size * per_node,
        recovery_s=rng.choice([3.0, 10.0]),
    )
    heal_at = rng.uniform(0.3, 1.0) * training.steps * training.step_s + 2 * lease_s
    hosting = rng.randrange(size) if rng.random() < 0.5 else -1
    nodes = tuple(
        NodePlan(
            name=f"n{index}",
            host=f"h{index}",
            arrives_at=rng.uniform(0, 0.5),
            workers=per_node,
            clock_rate=_draw_rate(rng),
            clock_offset_s=rng.uniform(0, 1e6),
            timers_first=rng.random() < 0.5,
            hosts_coordinator=index == hosting,
        )
        for index in range(size)
    )
    return Scenario(
        seed=seed,
        settings=RunSettings(
            min_nodes=1,
            max_nodes=size,
            max_restarts=100,
            last_call_s=GATHER_S,
            quiet_s=rng.choice([1.0, 3.0]),
            admit=rng.choice([Admit.AT_ONCE, Admit.RESTART]),
            recovery_s=training.recovery_s,
        ),
        weather=Weather(delay_s=rng.choice([0.0002, 0.002, 0.05])),
        nodes=nodes,
        faults=_training_faults(rng, nodes, lease_s, heal_at),
        lease_s=lease_s,
        heal_at=heal_at,
        start_s=rng.choice([0.1, 1.0]),
        stop_s=rng.choice([0.1, 1.0]),
        coordinator_rate=_draw_rate(rng),
        coordinator_offset_s=rng.uniform(0, 1e6),
        timers_first=rng.random() < 0.5,
        in_process=True,
        training=training,
    )


def _training_faults(rng: Random, nodes: tuple[NodePlan, ...], lease_s: float, heal_at: float) -> tuple[Fault, ...]:
    names = [node.name for node in nodes]
    kinds = [kind for kind in _TRAINING_KINDS if rng.random() < 0.3] or [FaultKind.CRASH]
    faults: list[Fault] = []
    for kind in kinds:
        for _ in range(rng.randint(1, 3)):
            how = rng.choice([How.PLAIN, *_HOWS.get(kind, [])])
            if how in (How.VICTIM, How.DISK_LOST):
                how = How.PLAIN
            seconds = max(_draw_seconds(rng, kind, lease_s), 0.05)
            targets = () if kind in _TRAINING_GLOBAL else tuple(_draw_targets(rng, kind, names))
            faults.append(Fault(round(rng.uniform(0.5, heal_at), 3), kind, targets, round(seconds, 3), how))
    return tuple(sorted(faults, key=lambda fault: fault.at))
