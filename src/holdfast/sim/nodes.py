"""A node: the real member, and above it a model of an agent that starts and stops workers.

The agent keeps its side of the contract and nothing more: it starts workers only in a sealed round, takes its time,
asks again only when they have stopped, and goes on running them while the coordinator is out of reach.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.coordinator.messages import Beat, Cause, NodeSpec, Place, RoundId
from holdfast.rendezvous.machine import (
    Ask,
    AskFailed,
    Close,
    DropLink,
    FactHeard,
    Fail,
    Finish,
    Heard,
    Leave,
    LinkDown,
    LinkUp,
    MemberMachine,
    OpenLink,
    RoundBroken,
    RoundSealed,
    RunEnded,
    Say,
    State,
)
from holdfast.sim.network import Connection, Network
from holdfast.sim.process import Process
from holdfast.sim.safety import Safety
from holdfast.sim.scenario import RUN, NodePlan, Scenario
from holdfast.sim.story import Story, describe_place, words
from holdfast.sim.world import Clock, World
from holdfast.wire.frames import Message

PORT_MIN = 20_000


class SimNode(Process):
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
    ) -> None:
        self.id = plan.name if life == 1 else f"{plan.name}.{life}"
        rng = Random(f"node {scenario.seed} {self.id}")
        super().__init__(world, Clock(plan.clock_rate, plan.clock_offset_s), rng, timers_first=plan.timers_first)
        self.plan = plan
        self.name = plan.name
        self.address = f"10.0.1.{plan.host}"
        self.network = network
        self.safety = safety
        self.story = story
        self.scenario = scenario
        self.spec = NodeSpec(
            node=self.id,
            host=plan.host,
            role=plan.role,
            local_world_size=plan.workers,
            port=0,
            node_rank=plan.node_rank,
            lease_s=scenario.lease_s,
            hosts_coordinator=plan.hosts_coordinator,
        )
        self.machine: MemberMachine = MemberMachine(RUN, self.spec, scenario.settings, rng.random)
        #: The round whose workers run here, by the agent's own doing.
        self.workers: RoundId | None = None
        #: The round whose workers have all finished well.
        self.finished: RoundId | None = None
        #: The rounds that this node has been in and has given up.
        self.rounds_left: dict[RoundId, None] = {}
        #: Whether the agent has nothing more to do: the run is over for it.
        self.ended = False
        #: Whether the agent has asked for the end of the run.
        self.closing = False
        #: Called when workers of a round die, so that others may follow.
        self.on_death: Callable[[SimNode, RoundId], None] | None = None
        self._link: Connection | None = None
        self._linked = False
        #: Counts what the agent does with its workers; a start or stop under way is void once it has moved on.
        self._doing = 0
        self._cause: Cause | None = None
        self._leaving: str | None = None

    # -- the connection --------------------------------------------------------------------------------------

    def link_up(self, connection: Connection) -> None:
        """The connection stands."""
        if connection is self._link and not self._linked:
            self._linked = True
            self.handle(LinkUp())

    def link_down(self, connection: Connection, reason: str) -> None:
        """The connection broke or could not be made."""
        if connection is self._link:
            self._link, self._linked = None, False
            self.handle(LinkDown(reason))

    def hear(self, connection: Connection, message: Message) -> None:
        """The coordinator said something."""
        if connection is self._link and self._linked:
            self.handle(Heard(message))

    def is_linked(self, connection: Connection) -> bool:
        """Whether this is the connection that stands."""
        return connection is self._link and self._linked

    @property
    def link(self) -> Connection | None:
        """The connection, standing or being made."""
        return self._link

    # -- what the member decides -----------------------------------------------------------------------------

    def carry_out(self, effects: list[Any]) -> None:
        """Send what the member says, and act as an agent on what it tells."""
        for effect in effects:
            match effect:
                case Say():
                    if self._link is not None:
                        if self.story and type(effect.message) is not Beat:
                            self.story.tell(self.id, f"says {words(effect.message)}")
                        self.network.send_up(self._link, effect.message)
                case OpenLink():
                    self._link, self._linked = self.network.connect(self), False
                case DropLink():
                    if self._link is not None:
                        self.network.hang_up(self._link)
                    self._link, self._linked = None, False
                case FactHeard():
                    self.safety.heard(self, effect.fact)
                case RoundSealed():
                    self._on_sealed(effect.place)
                case RoundBroken():
                    self._tell(f"is told: round {effect.place.round} broke: {effect.reason}")
                    self._stop_workers(self._ask)
                case RunEnded():
                    self._tell(f"is told: the run ended: {effect.reason}")
                    self.ended = True
                    self._stop_workers(None)
                case AskFailed():
                    self._tell(f"gives up asking: {effect.reason}")
                    self.ended = True
        self.safety.look_at_member(self)

    def _on_sealed(self, place: Place) -> None:
        self._tell(f"is told: {describe_place(place)}")
        self.safety.told(self, place)
        self._cause = None
        self.finished = None
        self._later(self.scenario.start_s, self._start_workers, place.round)

    # -- the agent -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let the agent ask for its first round."""
        self._ask()

    def _ask(self) -> None:
        if self.machine.place is not None:
            self.rounds_left[self.machine.place.round] = None
        port = PORT_MIN + self.rng.randrange(10_000)
        cause, self._cause = self._cause, None
        self.handle(Ask(port, self.local() + self.scenario.ask_timeout_s, cause))

    def _start_workers(self, round_id: RoundId) -> None:
        self._tell(f"starts workers of round {round_id}")
        self.safety.workers_start(self, round_id)
        self.workers = round_id

    def _stop_workers(self, then: Callable[[], None] | None) -> None:
        """Stop the workers, which takes a while, and only then go on."""
        self._later(self.scenario.stop_s, self._stopped, then)

    def _stopped(self, then: Callable[[], None] | None) -> None:
        if self.workers is not None:
            self._tell(f"has stopped the workers of round {self.workers}")
            self.workers = None
        if self._leaving is not None and not self.ended:
            self._tell(f"leaves: {self._leaving}")
            self.ended = True
            self.handle(Leave(self._leaving))
        elif then is not None:
            then()

    def _later(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        self._doing += 1
        self.world.after(self.rng.random() * seconds, self.post, self._if_still, self._doing, act, args)

    def _if_still(self, doing: int, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        if doing == self._doing:
            act(*args)

    def _tell(self, what: str) -> None:
        if self.story:
            self.story.tell(self.id, what)

    # -- what befalls it -------------------------------------------------------------------------------------

    def worker_fails(self, sentence: str, *, victim: bool) -> None:
        """A worker of this node dies: the agent notices, stops the others and asks again."""
        if self.workers is not None and self.machine.state is State.RUNNING:
            self.post(self._on_failure, self.workers, Cause(sentence, victim))

    def _on_failure(self, round_id: RoundId, cause: Cause) -> None:
        if self.workers != round_id or self.machine.state is not State.RUNNING or self._cause is not None:
            return
        self._tell(f"a worker fails: {cause.sentence}")
        self.safety.failed(round_id, cause)
        if self.on_death is not None and not cause.victim:
            self.on_death(self, round_id)
        if self.plan.gives_up:
            self.handle(Fail(cause))
        self._cause = cause
        self._stop_workers(self._ask)

    def finish(self) -> None:
        """All workers here finish well."""
        self.post(self._on_finish)

    def _on_finish(self) -> None:
        if self.workers is not None and self.machine.state is State.RUNNING:
            self._tell(f"the workers of round {self.workers} finish")
            self.finished, self.workers = self.workers, None
            self.handle(Finish())

    def leave(self, reason: str) -> None:
        """The node is asked to go: it stops its workers and leaves politely."""
        if not self.ended:
            self._leaving = reason
            self.post(self._stop_workers, None)

    def close(self, reason: str) -> None:
        """The agent ends the run for everybody."""
        self.closing = True
        self.post(self.handle, Close(reason))

    def crash(self, *, silent: bool) -> None:
        """The process dies and its workers with it; `silent` when the whole host is gone."""
        if not self.alive:
            return
        self._tell("crashes" + (" without a sound" if silent else ""))
        self.kill()
        round_id, self.workers = self.workers, None
        if self._link is not None:
            self.network.lose_node(self._link, silent=silent)
        if round_id is not None and self.on_death is not None:
            self.on_death(self, round_id)
