"""Goodput by simulation with Holdfast's own machines: the coordinator, and on every node the member and the agent.

Workers are only counted: a round trains when all its nodes have started theirs and `restart_s` has passed. Everything
between a failure and the next start is decided by the machines that run in production.

While a round runs, nodes and the coordinator exchange beats and nothing else. That time is skipped: all clocks of the
fleet stand still until the next failure or the next node that comes back. A cluster that does nothing but beat is the
same before and after, so skipping changes nothing but how long a simulated day takes; `skip=False` lives through it.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

from holdfast.agent.machine import (
    AgentEffect,
    AgentEvent,
    AgentMachine,
    AgentRules,
    AskRound,
    Begin,
    StartWorkers,
    StopWorkers,
    WorkerFailed,
    WorkersStopped,
)
from holdfast.agent.machine import Stage as AgentStage
from holdfast.coordinator.machine import Connected, CoordinatorMachine, Disconnected, Received, Send
from holdfast.coordinator.messages import LEASE_S, Ack, Beat, Cause, NodeSpec, Place, RoundId, RunSettings
from holdfast.errors import UsageError
from holdfast.forecast.plan import DAY_S, Account, Loss, Plan
from holdfast.machine import Tick
from holdfast.rendezvous.machine import (
    Ask,
    AskFailed,
    DropLink,
    Fail,
    Finish,
    Heard,
    Leave,
    LinkUp,
    MemberEvent,
    MemberMachine,
    OpenLink,
    Replace,
    RoundBroken,
    RoundSealed,
    RunEnded,
    Say,
)
from holdfast.sim.world import World
from holdfast.wire.frames import Message

RUN = "forecast"
#: One way between a node and the coordinator, and how long workers take to stop.
LATENCY_S, STOP_S = 0.000_5, 0.05
#: The lease of a node, unless failures are noticed sooner.
LEASE_S_MIN = 0.5
#: When nothing but beats has been said for so long, nothing else will be.
QUIET_S = 0.2
_SLICE_S = 0.25
_RESTARTS_MAX = 10**9
_FOREVER_S = 1e12


@dataclass(slots=True)
class Toll:
    """What a simulation took, beside time."""

    messages: int = 0
    rounds: int = 0
    skipped_s: float = 0.0


@contextmanager
def _no_cycle_search() -> Iterator[None]:
    """Keep the garbage collector from walking through all nodes again and again: nothing here forms cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Node:
    """One life of one node."""

    def __init__(self, name: str, host: str, peer: int, plan: Plan, lease_s: float, settings: RunSettings) -> None:
        self.name = name
        self.host = host
        #: The number of its connection.
        self.peer = peer
        spec = NodeSpec(name, host, "default", plan.gpus_per_node, 20_000, lease_s=lease_s)
        self.member = MemberMachine(RUN, spec, settings, lambda: 0.5)
        self.agent = AgentMachine(AgentRules(replaces=False))
        self.alive = True
        self.timer_at: float | None = None


class Fleet:
    """A coordinator and its nodes, living through days of failures."""

    def __init__(self, plan: Plan, rng: Random, *, skip: bool = True) -> None:
        if plan.groups > 1:
            raise UsageError("the simulation with Holdfast's machines does not support replica groups")
        self.plan = plan
        self.toll = Toll()
        self.account = Account()
        self.world = World()
        self._rng = rng
        self._skip = skip
        self._lease_s = min(LEASE_S, max(plan.detect_s, LEASE_S_MIN))
        self._settings = RunSettings(plan.nodes, plan.nodes, max_restarts=_RESTARTS_MAX)
        self._coordinator = CoordinatorMachine(lambda: f"{rng.getrandbits(32):08x}")
        self._timer_at: float | None = None
        #: Live nodes by their connection.
        self._nodes: dict[int, _Node] = {}
        self._peers = 0
        #: What happens to the fleet from outside, by true time.
        self._outside: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._planned = 0
        #: When something else than a beat was last said or done, by the fleet's clocks.
        self._moved_at = 0.0
        #: Since when the job trains, and up to when its losses are accounted for, in true time.
        self._training_since: float | None = None
        self._accounted_to = 0.0
        #: How many failures have hit members of the round.
        self._hits = 0
        self._started: dict[RoundId, int] = {}

    @property
    def now(self) -> float:
        """True time: that of the fleet's clocks and what was skipped."""
        return self.world.now + self.toll.skipped_s

    def run(self, days: float) -> Account:
        """Live through so many days, from the first node's arrival."""
        with _no_cycle_search():
            self._live(days * DAY_S)
        return self.account

    def _live(self, end: float) -> None:
        for number in range(self.plan.nodes + self.plan.spares):
            self._arrive(f"node{number}", 0)
        self._plan_at(self._rng.expovariate(self.plan.rate), self._fail)
        while self.now < end:
            due = min(self._outside[0][0], end)
            if self._skip and self._is_quiet():
                self.toll.skipped_s += max(0.0, due - self.now)
            else:
                self.world.run(min(self.world.now + _SLICE_S, due - self.toll.skipped_s))
            while self._outside[0][0] <= self.now < end:
                _, _, act, args = heapq.heappop(self._outside)
                act(*args)
        self._halt(kept=True)

    def check(self) -> None:
        """Assert the invariants of all machines."""
        self._coordinator.check()
        for node in self._nodes.values():
            node.member.check()
            node.agent.check()

    def _is_quiet(self) -> bool:
        return self.world.now - self._moved_at >= QUIET_S

    def _plan_at(self, when: float, act: Callable[..., None], *args: Any) -> None:
        self._planned += 1
        heapq.heappush(self._outside, (when, self._planned, act, args))

    # -- failures and repairs --------------------------------------------------------------------------------------

    def _fail(self) -> None:
        """A node of the round fails; if none is left, one that waits."""
        self._plan_at(self.now + self._rng.expovariate(self.plan.rate), self._fail)
        round_ = self._coordinator.runs[RUN].round
        places = round_.places if round_ is not None else {}
        members = [node for node in self._nodes.values() if node.name in places]
        if not self._nodes:
            return
        node = self._rng.choice(members or list(self._nodes.values()))
        self.account.failures += 1
        self._hits += 1
        self._halt()
        if self._rng.random() < self.plan.needs_repair:
            self._crash(node)
        else:
            self._plan_at(self.now + self.plan.detect_s, self._worker_fails, node, node.agent.place)

    def _crash(self, node: _Node) -> None:
        """A host vanishes; once it is repaired, it comes back."""
        node.alive = False
        del self._nodes[node.peer]
        self._plan_at(self.now + self.plan.repair_s, self._arrive, node.host, node.peer)
        self._plan_at(self.now + self.plan.detect_s, self._vanish, node)

    def _vanish(self, node: _Node) -> None:
        """The coordinator notices that a node is gone."""
        self._moved_at = self.world.now
        self._to_coordinator(Disconnected(node.peer, "connection lost"))

    def _worker_fails(self, node: _Node, place: Place | None) -> None:
        """The agent notices that a worker has failed, unless the worker's round is over."""
        if node.alive and node.agent.stage is AgentStage.RUNNING and node.agent.place == place:
            self._to_agent(node, WorkerFailed(Cause(f"a worker of {node.name} failed", victim=False)))

    def _arrive(self, host: str, life: int) -> None:
        self._account_stall()
        self._peers += 1
        name = host if life == 0 else f"{host}.{self._peers}"
        node = self._nodes[self._peers] = _Node(name, host, self._peers, self.plan, self._lease_s, self._settings)
        self._to_agent(node, Begin())

    # -- the account ---------------------------------------------------------------------------------------------------

    def _halt(self, *, kept: bool = False) -> None:
        """Training stops, or goes on not training; `kept` at the end of the simulation."""
        if self._training_since is None:
            self._account_stall()
            return
        self.account.trained(self.now - self._training_since, self.plan, kept=kept)
        self._training_since, self._accounted_to = None, self.now

    def _account_stall(self) -> None:
        """Account for the time since the last change in which nothing was trained."""
        if self._training_since is None:
            loss = Loss.WAITING if len(self._nodes) < self.plan.nodes else Loss.RECOVERY
            self.account.lose(loss, self.now - self._accounted_to)
            self._accounted_to = self.now

    def _workers_started(self, round_id: RoundId) -> None:
        started = self._started[round_id] = self._started.get(round_id, 0) + 1
        if started == self.plan.nodes:
            self._started = {}
            self.toll.rounds += 1
            self._plan_at(self.now + self.plan.restart_s, self._train, round_id, self._hits)

    def _train(self, round_id: RoundId, hits: int) -> None:
        """The first step of a round, unless a failure came before it."""
        round_ = self._coordinator.runs[RUN].round
        if hits == self._hits and round_ is not None and round_.id == round_id and not round_.broken:
            self._account_stall()
            self._training_since = self.now

    # -- the machines --------------------------------------------------------------------------------------------------

    def _to_agent(self, node: _Node, event: AgentEvent) -> None:
        self._moved_at = self.world.now
        for effect in node.agent.handle(event, self.world.now):
            self._perform(node, effect)

    def _perform(self, node: _Node, effect: AgentEffect) -> None:
        match effect:
            case AskRound():
                ask = Ask(20_000, self.world.now + _FOREVER_S, effect.cause, effect.number)
                self._to_member(node, ask)
            case StartWorkers():
                self._workers_started(effect.place.round)
            case StopWorkers():
                self.world.after(STOP_S, self._stopped, node)
            case Fail() | Replace() | Finish() | Leave():
                self._to_member(node, effect)
            case _:
                raise AssertionError(f"the agent of {node.name} was not to do this: {effect}")

    def _stopped(self, node: _Node) -> None:
        if node.alive and node.agent.stage is AgentStage.STOPPING:
            self._to_agent(node, WorkersStopped())

    def _to_member(self, node: _Node, event: MemberEvent) -> None:
        member = node.member
        for effect in member.handle(event, self.world.now):
            if isinstance(effect, Say):
                self._say(node, effect.message)
            elif isinstance(effect, OpenLink):
                self.world.after(2 * LATENCY_S, self._link, node)
            elif isinstance(effect, RoundSealed | RoundBroken | RunEnded | AskFailed):
                if isinstance(effect, RoundBroken):
                    self._halt()
                self._to_agent(node, effect)
            elif isinstance(effect, DropLink):
                self._to_coordinator(Disconnected(node.peer, "closed"))
        wakeup = member.wakeup()
        if wakeup is not None and (node.timer_at is None or wakeup < node.timer_at):
            node.timer_at = wakeup
            self.world.at(wakeup, self._ring, node, wakeup)

    def _ring(self, node: _Node, when: float) -> None:
        if node.alive and node.timer_at == when:
            node.timer_at = None
            self._to_member(node, Tick())

    def _link(self, node: _Node) -> None:
        if node.alive:
            self._to_coordinator(Connected(node.peer, f"10.0.0.{node.peer}", "10.0.0.0"))
            self._to_member(node, LinkUp())

    def _say(self, node: _Node, message: Message) -> None:
        self.toll.messages += 1
        if type(message) is not Beat:
            self._moved_at = self.world.now
        self.world.after(LATENCY_S, self._received, node.peer, message)

    def _received(self, peer: int, message: Message) -> None:
        if peer in self._coordinator.sessions:
            self._to_coordinator(Received(peer, message))

    def _to_coordinator(self, event: Connected | Received | Disconnected | Tick) -> None:
        machine = self._coordinator
        for effect in machine.handle(event, self.world.now):
            if type(effect) is Send:
                self.toll.messages += len(effect.peers)
                if type(effect.message) is not Ack:
                    self._moved_at = self.world.now
                self.world.after(LATENCY_S, self._deliver, effect.peers, effect.message)
        wakeup = machine.wakeup()
        if wakeup is not None and (self._timer_at is None or wakeup < self._timer_at):
            self._timer_at = wakeup
            self.world.at(wakeup, self._coordinator_rings, wakeup)

    def _coordinator_rings(self, when: float) -> None:
        if self._timer_at == when:
            self._timer_at = None
            self._to_coordinator(Tick())

    def _deliver(self, peers: tuple[int, ...], message: Message) -> None:
        """Bring a message to every node that it is for; all of them hear it at the same moment."""
        for peer in peers:
            if (node := self._nodes.get(peer)) is not None:
                self._to_member(node, Heard(message))
