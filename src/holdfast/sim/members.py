"""A process with the real member in it: it keeps the connection to the coordinator and sends what the member says."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from holdfast.coordinator.messages import Beat, RoundId, RunSettings
from holdfast.rendezvous import machine as member
from holdfast.sim.process import Process
from holdfast.sim.story import Story, words
from holdfast.sim.world import Clock, World
from holdfast.wire.frames import Message

if TYPE_CHECKING:
    from holdfast.coordinator.messages import NodeSpec
    from holdfast.sim.network import Connection, Network
    from holdfast.sim.safety import Safety
    from holdfast.sim.scenario import NodePlan

PORT_MIN = 20_000


class MemberProcess(Process):
    """One life of a node, or of a worker that is a node of the workers' run."""

    machine: member.MemberMachine

    def __init__(
        self, world: World, plan: NodePlan, rng: Random, network: Network, safety: Safety, story: Story | None
    ) -> None:
        super().__init__(world, Clock(plan.clock_rate, plan.clock_offset_s), rng, timers_first=plan.timers_first)
        self.plan = plan
        #: Cuts lie on the way of a name.
        self.name = plan.name
        self.address = f"10.0.1.{plan.host}"
        self.network = network
        self.safety = safety
        self.story = story
        self.id: str
        self.run: str
        #: The round whose workers run here.
        self.workers: RoundId | None = None
        #: Whether these workers train in process, and so outlive their round.
        self.in_process = False
        #: The round whose workers have all finished well.
        self.finished: RoundId | None = None
        #: The rounds that this node has been in and has given up.
        self.rounds_left: dict[RoundId, None] = {}
        #: Whether it has asked for the end of the run.
        self.closing = False
        self._link: Connection | None = None
        self._linked = False

    def join_as(self, name: str, run: str, spec: NodeSpec, settings: RunSettings) -> None:
        """Take part in a run under a name of its own."""
        self.id, self.run = name, run
        self.machine = member.MemberMachine(run, spec, settings, self.rng.random)

    # -- the connection ----------------------------------------------------------------------------------------------

    def link_up(self, connection: Connection) -> None:
        """The connection stands."""
        if connection is self._link and not self._linked:
            self._linked = True
            self.handle(member.LinkUp())

    def link_down(self, connection: Connection, reason: str) -> None:
        """The connection broke or could not be made."""
        if connection is self._link:
            self._link, self._linked = None, False
            self.handle(member.LinkDown(reason))

    def hear(self, connection: Connection, message: Message) -> None:
        """The coordinator said something."""
        if connection is self._link and self._linked:
            self.handle(member.Heard(message))

    def is_linked(self, connection: Connection) -> bool:
        """Whether this is the connection that stands."""
        return connection is self._link and self._linked

    @property
    def link(self) -> Connection | None:
        """The connection, standing or being made."""
        return self._link

    # -- what the member decides ---------------------------------------------------------------------------------------

    def carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case member.Say():
                    if self._link is not None:
                        if self.story and type(effect.message) is not Beat:
                            self.story.tell(self.id, f"says {words(effect.message)}")
                        self.network.send_up(self._link, effect.message)
                case member.OpenLink():
                    self._link, self._linked = self.network.connect(self), False
                case member.DropLink():
                    if self._link is not None and effect.silent:
                        self.network.lose_node(self._link, silent=True)
                    elif self._link is not None:
                        self.network.hang_up(self._link)
                    self._link, self._linked = None, False
                case member.FactHeard():
                    self.safety.heard(self, effect.fact)
                case _:
                    self.told(effect)
        self.safety.look_at_member(self)

    @property
    def ended(self) -> bool:
        """Whether the process has nothing more to do."""
        raise NotImplementedError

    def told(self, effect: Any) -> None:
        """Hear what the member tells its owner."""
        raise NotImplementedError

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        if self.story:
            self.story.tell(self.id, what)
