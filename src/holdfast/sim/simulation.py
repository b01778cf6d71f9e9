"""One simulation from its first event to its verdict.

Safety phase: faults happen, nothing may be wrong. Liveness phase: all faults end, and within a bounded time everything
must come to rest rightly, and then stay at rest.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from random import Random

import msgspec

from holdfast.coordinator.messages import RoundId
from holdfast.sim import liveness
from holdfast.sim.coordinator import CoordinatorHost
from holdfast.sim.faults import Faults
from holdfast.sim.network import Network
from holdfast.sim.nodes import SimNode
from holdfast.sim.safety import Safety
from holdfast.sim.scenario import RUN, WORKERS_RUN, NodePlan, Scenario, Weather
from holdfast.sim.story import Story
from holdfast.sim.training import Disk, TrainingSafety
from holdfast.sim.violation import Violation
from holdfast.sim.workers import SimWorker
from holdfast.sim.world import Clock, World

#: How often the liveness phase looks whether all is at rest.
_LOOK_S = 0.5
#: For so many leases nothing may change once all is at rest.
_REST_LEASES = 2.5
CALM = Weather()
#: A node and the coordinator may say so much to each other for each second of a simulation, and this much more.
_MESSAGES_PER_S = 20
_MESSAGES_MIN = 200


@dataclass(slots=True)
class Outcome:
    """What became of one simulation."""

    seed: int
    #: The name of the check that failed and what it says; None when all is well.
    check: str | None = None
    sentence: str = ""
    trace: str = ""
    virtual_s: float = 0.0
    events: int = 0
    messages: int = 0
    rounds: int = 0
    faults: dict[str, int] = field(default_factory=dict)


class Simulation:
    """A coordinator, its nodes and the network between them, living through a scenario."""

    def __init__(self, scenario: Scenario, *, story: bool = False) -> None:
        self.scenario = scenario
        self.world = World()
        self.story = Story(self.world) if story else None
        #: Every life of every node that ever was, by its id.
        self.nodes: dict[str, SimNode] = {}
        #: The present life of every node, by its name.
        self.current: dict[str, SimNode] = {}
        self.plans: dict[str, NodePlan] = {plan.name: plan for plan in scenario.nodes}
        self.disk = Disk(self.world)
        self.safety = Safety(self.nodes, len(scenario.nodes))
        #: Every life of every worker that trains in process, by its id, and what watches them.
        self.workers: dict[str, SimWorker] = {}
        self.training = self._make_training()
        self.network = Network(self.world, scenario.weather, Random(f"network {scenario.seed}"))
        self.coordinator = CoordinatorHost(
            self.world,
            Clock(scenario.coordinator_rate, scenario.coordinator_offset_s),
            Random(f"coordinator {scenario.seed}"),
            self.network,
            {RUN: self.safety} if self.training is None else {RUN: self.safety, WORKERS_RUN: self.training},
            self.story,
            timers_first=scenario.timers_first,
        )
        self.network.coordinator = self.coordinator
        if scenario.nodes:
            lasts_s = scenario.heal_at + scenario.bound_s()
            talkers = len(scenario.nodes) + (scenario.training.workers if scenario.training is not None else 0)
            self.network.messages_max = int(talkers * (lasts_s * _MESSAGES_PER_S + _MESSAGES_MIN))
        self.faults = Faults(self)
        self._lives: dict[str, int] = {}

    # -- nodes -----------------------------------------------------------------------------------------------

    def arrive(self, name: str) -> None:
        """Start a node's process: a new life with a new id."""
        self._lives[name] = self._lives.get(name, 0) + 1
        node = self._make_node(self.plans[name], self._lives[name])
        self.nodes[node.id] = self.current[name] = node
        node.begin()

    def _make_node(self, plan: NodePlan, life: int) -> SimNode:
        make_worker = None if self.training is None else self._make_worker
        node = SimNode(self.world, plan, life, self.scenario, self.network, self.safety, self.story, make_worker)
        node.on_death = self._spread
        return node

    def _make_training(self) -> TrainingSafety | None:
        scenario = self.scenario
        if scenario.training is None:
            return None
        rng = Random(f"collectives {scenario.seed}")
        return TrainingSafety(self.workers, scenario.training.workers, self.world, rng, self.disk)

    def _make_worker(self, node: SimNode, local: int, rank: int) -> SimWorker:
        """Start a worker of a node; its connections take the node's way."""
        assert self.training is not None
        life = self._lives[f"{node.id}/{local}"] = self._lives.get(f"{node.id}/{local}", 0) + 1
        name = f"{node.id}/{local}" + (f".{life}" if life > 1 else "")
        plan = msgspec.structs.replace(node.plan, workers=1, node_rank=rank, hosts_coordinator=False)
        worker = self.workers[name] = SimWorker(
            self.world, name, plan, self.scenario, self.network, self.training, self.story, self.disk
        )
        return worker

    def _spread(self, source: SimNode, round_id: RoundId) -> None:
        """Let the workers of other nodes fail because those of one node have died."""
        contagion = self.scenario.contagion
        if not contagion or self.world.now >= self.scenario.heal_at:
            return
        for node in self.current.values():
            if node is not source and node.workers == round_id and node.rng.random() < contagion:
                delay = node.rng.random() * self.scenario.lease_s
                self.world.after(delay, self._infect, node, round_id, source.id)

    def _infect(self, node: SimNode, round_id: RoundId, source: str) -> None:
        outlives = node.in_process  # workers that train in process do not die of a lost peer
        if node.workers == round_id and not outlives and self.world.now < self.scenario.heal_at:
            node.worker_fails(f"lost its peer on {source}", victim=True)

    # -- the two phases --------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Live through the whole scenario and say how it ended."""
        outcome = Outcome(self.scenario.seed)
        try:
            self._live()
        except Violation as violation:
            outcome.check, outcome.sentence = violation.check, violation.sentence
        except AssertionError as error:
            outcome.check, outcome.sentence = "the machine's own check", str(error)
            outcome.trace = traceback.format_exc()
        except Exception as error:  # noqa: BLE001 - whatever a machine raises is a finding
            outcome.check, outcome.sentence = f"no machine raises {type(error).__name__}", str(error)
            outcome.trace = traceback.format_exc()
        if outcome.check is not None and self.story:
            self.story.tell("FAILED", f"{outcome.check}: {outcome.sentence}")
        outcome.virtual_s = self.world.now
        outcome.events = self.world.events
        outcome.messages = self.network.messages
        outcome.rounds = len(self.safety.rounds)
        outcome.faults = self.faults.counts
        return outcome

    def _live(self) -> None:
        scenario = self.scenario
        for plan in scenario.nodes:
            self.world.at(plan.arrives_at, self.arrive, plan.name)
        for fault in scenario.faults:
            self.world.at(fault.at, self.faults.inject, fault)
        self.world.run(scenario.heal_at)
        self.heal()
        self._settle(self.world.now + scenario.bound_s())

    def heal(self) -> None:
        """End every fault."""
        if self.story:
            self.story.tell("world", "all faults end")
        self.network.weather = CALM
        self.faults.end_all()

    def unsettled(self) -> str | None:
        """Say what has not come to rest yet."""
        nodes = [node for node in self.current.values() if node.alive]
        if self.training is not None:
            return liveness.unfinished(self.training, list(self.workers.values()), nodes)
        return liveness.unsettled(self.coordinator, nodes)

    def _settle(self, deadline: float) -> None:
        """Run until all has been at rest, in one and the same round, for a few leases."""
        rest_s = _REST_LEASES * self.scenario.lease_s
        since, rest = self.world.now, self._at_rest()
        missing = self.unsettled()
        while missing is not None or self.world.now < since + rest_s:
            if self.world.now >= deadline + rest_s:
                healed_s = self.world.now - self.scenario.heal_at
                raise Violation("liveness", f"{healed_s:.0f} s after the last fault: {missing or 'it broke again'}")
            self.world.run(self.world.now + min(_LOOK_S, self.scenario.lease_s / 2))
            missing = self.unsettled()
            if missing is not None or self._at_rest() != rest:
                since, rest = self.world.now, self._at_rest()

    def _at_rest(self) -> tuple[object, ...]:
        run = self.coordinator.run
        if run is None:
            return ()
        return (run.stage, run.round.id if run.round is not None else None, run.restarts_used)


def simulate(scenario: Scenario) -> Outcome:
    """Run a scenario without telling its story."""
    return Simulation(scenario).run()
