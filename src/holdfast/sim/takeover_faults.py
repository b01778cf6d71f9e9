"""What one seed of a takeover means: nodes, their settings, and what befalls them, as plain data."""

from __future__ import annotations

import enum
from random import Random

import msgspec

from holdfast.coordinator.messages import RunSettings

_MESSAGES_PER_S = 60


class TakeoverKind(enum.StrEnum):
    """What can befall a host."""

    KILL = "kill"  # its agent and workers die; `seconds` later an agent is started again (never, if 0)
    POWER = "power cut"  # the same, and nothing is heard of the host until then
    DRAIN = "drain"  # its agent is told to leave
    CUT = "cut"  # some hosts cannot talk to the others
    PAUSE = "pause"
    BREAK = "break"  # a connection ends
    FAIL = "fail"  # a worker fails


class TakeoverFault(msgspec.Struct, frozen=True):
    """One thing that goes wrong."""

    at: float
    kind: TakeoverKind
    hosts: tuple[int, ...]
    seconds: float = 0.0

    @property
    def ends_at(self) -> float:
        """When its hosts can act again: those that were stopped, or cut off, only then."""
        return self.at + self.seconds if self.kind in (TakeoverKind.PAUSE, TakeoverKind.CUT) else self.at

    def __str__(self) -> str:
        return f"{self.kind} {self.hosts} for {self.seconds:.2f} s"


class TakeoverScenario(msgspec.Struct, frozen=True):
    """All that happens in one simulation of a takeover."""

    seed: int
    size: int
    settings: RunSettings
    arrivals: tuple[float, ...]
    rates: tuple[float, ...]
    faults: tuple[TakeoverFault, ...]
    lease_s: float
    heal_at: float
    delay_s: float
    straggle: float = 0.0
    start_s: float = 0.2
    stop_s: float = 0.2
    ask_timeout_s: float = 10_000.0

    def bound_s(self) -> float:
        """How long nodes may take to agree once all faults have ended."""
        waits = self.settings
        return 6 * self.lease_s + 20.0 + 2 * waits.recovery_s + waits.last_call_s + 4 * (self.start_s + self.stop_s)

    def stop_bound_s(self) -> float:
        """How long a node without a quorum may go on."""
        return 5 * self.lease_s + 12.0 + 2 * self.settings.recovery_s + self.stop_s

    def messages_max(self) -> int:
        """More than this cannot be needed."""
        return int(self.size * (self.heal_at + self.bound_s()) * _MESSAGES_PER_S)


def make_takeover(seed: int, nodes_min: int = 2, nodes_max: int = 7) -> TakeoverScenario:
    """Draw everything that a seed stands for."""
    rng = Random(f"takeover {seed}")
    size = rng.randint(nodes_min, nodes_max)
    lease_s = rng.choice([0.5, 1.0, 2.0, 5.0])
    recovery_s = rng.choice([2.0, 5.0, 10.0])
    heal_at = 6.0 + rng.choice([8, 16, 30]) * lease_s
    return TakeoverScenario(
        seed=seed,
        size=size,
        settings=RunSettings(
            min_nodes=_draw_min(seed, size),
            max_nodes=_draw_max(seed, size),
            max_restarts=1000,
            last_call_s=3.0,
            quiet_s=1.0,
            recovery_s=recovery_s,
            takeover=True,
        ),
        arrivals=_draw_arrivals(rng, size, heal_at, stands_by=_draw_max(seed, size) < size),
        rates=tuple(rng.choice([1.0, rng.uniform(0.95, 1.05)]) for _ in range(size)),
        faults=_draw_faults(rng, size, lease_s, heal_at),
        lease_s=lease_s,
        heal_at=heal_at,
        delay_s=rng.choice([0.0005, 0.005, 0.05]),
        straggle=rng.choice([0.0, 0.0, 0.02]),
        start_s=rng.choice([0.0, 0.2, 1.0]),
        stop_s=_draw_stop(seed, rng.choice([0.0, 0.2, 1.0])),
    )


def _draw_min(seed: int, size: int) -> int:
    """Draw how few nodes may go on; mostly one, which allows the most halves."""
    rng = Random(f"takeover min {seed}")
    return 1 if rng.random() < 0.7 else rng.randint(1, size)


def _draw_max(seed: int, size: int) -> int:
    """Draw how many nodes a round has at most; sometimes one stands by."""
    rng = Random(f"takeover max {seed}")
    return size - 1 if size > _draw_min(seed, size) and size > 2 and rng.random() < 0.2 else size


def _draw_arrivals(rng: Random, size: int, heal_at: float, *, stands_by: bool) -> tuple[float, ...]:
    """Draw when nodes are started: more than MAX of them at once, since a quorum counts on it that others know them."""
    drawn = tuple(0.0 if rng.random() < 0.85 else rng.uniform(0, heal_at / 2) for _ in range(size))
    return (0.0,) * size if stands_by else drawn


def _draw_stop(seed: int, usual_s: float) -> float:
    """Draw how long workers take to stop; sometimes longer than sure deaths count."""
    return 6.0 if Random(f"takeover stop {seed}").random() < 0.2 else usual_s


def _draw_faults(rng: Random, size: int, lease_s: float, heal_at: float) -> tuple[TakeoverFault, ...]:
    kinds = [kind for kind in TakeoverKind if rng.random() < 0.45] or [TakeoverKind.KILL]
    faults: list[TakeoverFault] = []
    for kind in kinds:
        for _ in range(rng.randint(1, 3)):
            at = rng.uniform(2.0, heal_at)
            seconds = rng.choice([rng.uniform(0, 2 * lease_s), rng.uniform(0, 20 * lease_s)])
            if kind in (TakeoverKind.KILL, TakeoverKind.DRAIN, TakeoverKind.POWER) and rng.random() < 0.5:
                seconds = 0.0
            if kind is TakeoverKind.CUT:
                hosts = tuple(sorted(rng.sample(range(size), rng.randint(1, max(size - 1, 1)))))
            elif rng.random() < 0.5:
                hosts = (0,)  # where the coordinator is at first
            else:
                hosts = tuple(sorted(rng.sample(range(size), min(rng.choice([1, 1, 1, 2]), size))))
            faults.append(TakeoverFault(round(at, 3), kind, hosts, round(seconds, 3)))
    if len(faults) > 1 and rng.random() < 0.5:  # two at once
        one, other = rng.sample(range(len(faults)), 2)
        faults[other] = msgspec.structs.replace(faults[other], at=faults[one].at)
    return tuple(sorted(faults, key=lambda fault: fault.at))
