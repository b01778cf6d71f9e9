"""A node: the real member, and above it the real agent with workers that are only counted.

What the agent's driver does is modelled: an inbox that one loop takes events out of, and workers that take their time
to start, to stop and to import. While workers are being started the loop does nothing else, as in the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from holdfast.agent.machine import (
    AgentEffect,
    AgentEvent,
    AgentMachine,
    AgentRules,
    AskRound,
    Begin,
    End,
    Outcome,
    Preloaded,
    ReplaceWorkers,
    Signalled,
    Stage,
    StartWorkers,
    StopWorkers,
    TakePlace,
    TrainsInProcess,
    WorkerFailed,
    WorkersFinished,
    WorkersStopped,
)
from holdfast.coordinator.messages import Cause, NodeSpec, RoundId
from holdfast.machine import Tick, earliest
from holdfast.rendezvous.machine import (
    Ask,
    AskFailed,
    Close,
    Fail,
    Finish,
    Leave,
    Replace,
    RoundBroken,
    RoundSealed,
    RunEnded,
)
from holdfast.sim.members import PORT_MIN, MemberProcess
from holdfast.sim.network import Network
from holdfast.sim.safety import Safety
from holdfast.sim.scenario import RUN, NodePlan, Scenario
from holdfast.sim.story import Story, describe_place
from holdfast.sim.violation import Violation
from holdfast.sim.world import World

if TYPE_CHECKING:
    from holdfast.sim.workers import SimWorker

SIGTERM, SIGKILL = Signalled(15, "SIGTERM"), 9


class SimNode(MemberProcess):
    """One life of one node: an agent's process and its workers."""

    def __init__(
        self,
        world: World,
        plan: NodePlan,
        life: int,
        scenario: Scenario,
        network: Network,
        safety: Safety,
        story: Story | None,
        make_worker: Callable[[SimNode, int, int], SimWorker] | None = None,
    ) -> None:
        name = plan.name if life == 1 else f"{plan.name}.{life}"
        super().__init__(world, plan, Random(f"node {scenario.seed} {name}"), network, safety, story)
        self.scenario = scenario
        self.spec = NodeSpec(
            node=name,
            host=plan.host,
            role=plan.role,
            local_world_size=plan.workers,
            port=0,
            node_rank=plan.node_rank,
            lease_s=scenario.lease_s,
            hosts_coordinator=plan.hosts_coordinator,
        )
        self.join_as(name, RUN, self.spec, scenario.settings)
        self.agent = AgentMachine(AgentRules(replaces=scenario.settings.max_restarts > 0))
        #: The workers that train in process, by local rank; if there are none, workers are only counted.
        self.gang: dict[int, SimWorker] = {}
        self._make_worker = make_worker
        self._failed: list[int] = []
        #: Whether the agent has seen a worker end because the state of its training is lost.
        self.lost_training = False
        self._paused: list[SimWorker] = []
        #: Whether the agent was told to leave.
        self.leaving = False
        #: How the agent ended, once it has.
        self.outcome: Outcome | None = None
        #: Called when workers of a round die, so that others may follow.
        self.on_death: Callable[[SimNode, RoundId], None] | None = None
        #: What the agent's loop has not taken yet, and until when it is busy with a start.
        self._inbox: list[AgentEvent] = []
        self._is_looping = False
        self._busy_until = 0.0
        #: Counts stops; one under way is void once a harder one has begun.
        self._stops = 0

    # -- what the member decides -----------------------------------------------------------------------------

    def told(self, effect: Any) -> None:
        """Leave what the member tells in the agent's inbox."""
        if isinstance(effect, RoundSealed | RoundBroken | RunEnded | AskFailed):
            self._on_round(effect)

    def _on_round(self, effect: RoundSealed | RoundBroken | RunEnded | AskFailed) -> None:
        match effect:
            case RoundSealed():
                self.tell(f"is told: {describe_place(effect.place)}")
                self.safety.told(self, effect.place)
            case RoundBroken():
                self.tell(f"is told: round {effect.place.round} broke: {effect.reason}")
            case RunEnded():
                self.tell(f"is told: the run ended: {effect.reason}")
            case AskFailed():
                self.tell(f"gives up asking: {effect.reason}")
        self._put(effect)

    @property
    def ended(self) -> bool:
        """Whether the agent has nothing more to do: the run is over for it."""
        return self.outcome is not None

    # -- the agent's loop --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let the agent take part."""
        preload_s = self.plan.preload_s
        if preload_s:
            self.world.after(preload_s, self.post, self._put, Preloaded())
        self._put(Begin(preloading=preload_s > 0, busy=preload_s > 0 and self.network.coordinator.has_round))

    def _put(self, event: AgentEvent) -> None:
        """Leave an event for the agent's loop, which takes it up to a moment later."""
        self._inbox.append(event)
        delay_s = self.rng.random() * self.scenario.loop_s if self.scenario.loop_s else 0.0
        delay_s = max(delay_s, self._busy_until - self.world.now)
        if delay_s > 0:
            self.world.after(delay_s, self.post, self._loop)
        else:
            self._loop()

    def _loop(self) -> None:
        """Hand everything in the inbox to the agent; what comes meanwhile waits for its turn."""
        if self._is_looping:
            return
        self._is_looping = True
        while self._inbox and self.alive and self._busy_until <= self.world.now:
            for effect in self.agent.handle(self._inbox.pop(0), self.local()):
                self._perform(effect)
            self.agent.check()
        self._is_looping = False
        if self._inbox and self.alive:
            self.world.after(self._busy_until - self.world.now, self.post, self._loop)
        if self.alive:
            self._arm()

    def wakeup(self) -> float | None:
        """Say when the member or the agent needs a tick; one that lies in the inbox need not be asked for again."""
        mine = self.machine.wakeup()
        if self._inbox and any(isinstance(event, Tick) for event in self._inbox):
            return mine
        return earliest(mine, self.agent.wakeup())

    def handle(self, event: Any) -> None:
        """Give the member one event; time passes for the agent too."""
        super().handle(event)
        if isinstance(event, Tick) and (due := self.agent.wakeup()) is not None and self.local() >= due:
            self._put(event)
            if self.alive:
                self._arm()  # for the agent, time has passed once it finds the tick in its inbox

    def _perform(self, effect: AgentEffect) -> None:
        match effect:
            case AskRound():
                if self.machine.place is not None and not effect.aside:
                    self.rounds_left[self.machine.place.round] = None
                port = PORT_MIN + self.rng.randrange(10_000)
                self.handle(Ask(port, self.local() + self.scenario.ask_timeout_s, effect.cause, effect.number))
            case StartWorkers():
                self._check_purpose()
                self._start_workers(effect.place.round)
                if self._make_worker is not None:
                    self._after(self._busy_until - self.world.now, self._start_gang, effect.place.round)
            case TakePlace():
                self.tell(f"its workers are in round {effect.place.round} now")
                if self.workers is None:
                    self.finished = effect.place.round
                else:
                    self.workers = effect.place.round
            case StopWorkers():
                self._stops += 1
                delay_s = 0.0 if effect.number == SIGKILL else self.rng.random() * self.scenario.stop_s
                self._after(delay_s, self._stopped, self._stops)
            case ReplaceWorkers():
                self._check_purpose()
                self.tell("replaces a worker; the others go on")
                failed, self._failed = self._failed, []
                for local in failed:
                    self._after(self.rng.random() * self.scenario.start_s, self._start_worker, local)
            # The member may be in the next round already when its agent learns of a failure: that one is charged then.
            case Fail():
                if self.plan.gives_up:
                    if self.machine.place is not None:
                        self.safety.failed(self.machine.place.round, effect.cause)
                    self.handle(effect)
            case Replace():
                if self.machine.place is not None:
                    self.safety.outlived(self.machine.place.round, effect.cause)
                self.handle(effect)
            case Finish() | Leave():
                self.handle(effect)
            case End():
                self.tell(f"ends: {effect.outcome.reason}")
                self.outcome = effect.outcome
                self.handle(Leave("its agent has ended"))

    def _check_purpose(self) -> None:
        if self.lost_training:
            raise Violation("no worker is started for a training that is lost", f"{self.id} starts or replaces one")

    def _start_workers(self, round_id: RoundId) -> None:
        self.tell(f"starts workers of round {round_id}")
        self.safety.workers_start(self, round_id)
        self.workers, self.finished, self.in_process = round_id, None, False
        self._busy_until = self.world.now + self.rng.random() * self.scenario.start_s
        if self.scenario.in_process:
            self._after(self._busy_until - self.world.now, self._train_in_process, round_id)

    def _train_in_process(self, round_id: RoundId) -> None:
        if self.workers == round_id and self.agent.stage is Stage.RUNNING:
            self.in_process = True
            self._inbox.insert(0, TrainsInProcess())  # the loop looks for this before it takes anything out
            self._loop()

    def _stopped(self, stop: int) -> None:
        if stop != self._stops or self.agent.stage is not Stage.STOPPING:
            return
        self._kill_gang(silent=False)
        if self.workers is not None:
            self.tell(f"has stopped the workers of round {self.workers}")
            self.workers, self.in_process = None, False
        self._put(WorkersStopped())

    # -- workers that train in process -------------------------------------------------------------------------

    def _start_gang(self, round_id: RoundId) -> None:
        if self.workers == round_id and self.agent.stage is Stage.RUNNING:
            for local in range(self.plan.workers):
                self._start_worker(local)

    def _start_worker(self, local: int) -> None:
        place = self.machine.place
        if self._make_worker is None or self.workers is None or place is None or self.agent.stage is not Stage.RUNNING:
            return
        worker = self.gang[local] = self._make_worker(self, local, place.first_rank + local)
        worker.on_exit = lambda exited: self.post(self._worker_gone, local, exited)
        worker.begin()

    def _worker_gone(self, local: int, worker: SimWorker) -> None:
        """The agent notices that a worker's process has ended."""
        if self.gang.get(local) is not worker:
            return
        if not worker.ended_well:
            self._failed.append(local)
            self.lost_training = self.lost_training or worker.lost_training
            self._on_failure(self.workers, Cause(f"{worker.id} ended", ends_job=worker.ends_job))
        elif all(each.ended_well for each in self.gang.values()):
            self._on_finish()

    def crash_worker(self) -> None:
        """A worker's process dies; its agent lives."""
        live = [(local, worker) for local, worker in self.gang.items() if worker.alive and not worker.ended]
        if live:
            local, worker = self.rng.choice(live)
            worker.crash(silent=False)
            self.post(self._worker_gone, local, worker)

    def _kill_gang(self, *, silent: bool) -> None:
        gang, self.gang, self._failed = self.gang, {}, []
        for worker in gang.values():
            worker.crash(silent=silent)

    def _a_worker(self) -> SimWorker | None:
        live = [worker for worker in self.gang.values() if worker.alive and not worker.ended]
        return self.rng.choice(live) if live else None

    def cut_ring(self) -> None:
        """Let nothing through between a worker here and the others of its round any more."""
        if (worker := self._a_worker()) is not None:
            worker.cut_ring()

    def pause(self) -> None:
        """Stop the agent and its workers."""
        super().pause()
        for worker in self.gang.values():
            worker.pause()
            self._paused.append(worker)

    def resume(self) -> None:
        """Let the agent and its workers go on."""
        super().resume()
        paused, self._paused = self._paused, []
        for worker in paused:
            worker.resume()

    def _after(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        self.world.after(seconds, self.post, act, *args)

    # -- what befalls it -------------------------------------------------------------------------------------

    def worker_fails(self, sentence: str, *, victim: bool) -> None:
        """A worker of this node dies, and the agent notices."""
        if self._make_worker is not None:
            if (worker := self._a_worker()) is not None:
                worker.fail_next()
            return
        self.post(self._on_failure, self.workers, Cause(sentence, victim))

    def _on_failure(self, round_id: RoundId | None, cause: Cause) -> None:
        if round_id is None or self.workers != round_id or self.agent.stage is not Stage.RUNNING:
            return
        self.tell(f"a worker fails: {cause.sentence}")
        self.safety.failed(round_id, cause)
        if self.on_death is not None and not cause.victim:
            self.on_death(self, round_id)
        self._put(WorkerFailed(cause))

    def finish(self) -> None:
        """All workers here finish well."""
        self.post(self._on_finish)

    def _on_finish(self) -> None:
        if self.workers is not None and self.agent.stage is Stage.RUNNING:
            self.tell(f"the workers of round {self.workers} finish")
            self.finished, self.workers = self.workers, None
            self._put(WorkersFinished(hosting=self.plan.hosts_coordinator))

    def leave(self) -> None:
        """The node's agent is sent SIGTERM: it leaves, and stops its workers."""
        self.leaving = True
        self.post(self._put, SIGTERM)

    def close(self, reason: str) -> None:
        """The agent ends the run for all nodes."""
        self.closing = True
        self.post(self.handle, Close(reason))

    def crash(self, *, silent: bool) -> None:
        """The process dies and its workers with it; `silent` when the whole host is gone."""
        if not self.alive:
            return
        self.tell("crashes" + (" without a sound" if silent else ""))
        self.kill()
        self._kill_gang(silent=silent)
        round_id, self.workers = self.workers, None
        if self._link is not None:
            self.network.lose_node(self._link, silent=silent)
        if round_id is not None and self.on_death is not None:
            self.on_death(self, round_id)
