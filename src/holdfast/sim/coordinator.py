"""The coordinator's host: the real machine on a process that can die, and a disk that outlives it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from holdfast.coordinator.events import Note
from holdfast.coordinator.machine import Connected, CoordinatorMachine, Disconnected, Received, SaveRun, Send
from holdfast.coordinator.messages import Ack, Join, Rejected, Sealed
from holdfast.coordinator.run import RunMachine
from holdfast.coordinator.state import RunRecord, Stage
from holdfast.sim.network import Connection, Network
from holdfast.sim.process import Process
from holdfast.sim.safety import Safety
from holdfast.sim.scenario import RUN
from holdfast.sim.story import Story, words
from holdfast.sim.world import Clock, World
from holdfast.typed import learned
from holdfast.wire.frames import Message

ADDRESS = "10.0.0.1"


class CoordinatorHost(Process):
    """Where the coordinator lives, dies and comes back."""

    def __init__(
        self,
        world: World,
        clock: Clock,
        rng: Random,
        network: Network,
        safety: dict[str, Safety],
        story: Story | None,
        *,
        timers_first: bool = False,
    ) -> None:
        super().__init__(world, clock, rng, timers_first=timers_first)
        self.network = network
        #: What watches each run.
        self.safety = safety
        self.story = story
        self.life = 0
        #: Records by run, encoded: what a disk holds is bytes.
        self.disk: dict[str, bytes] = {}
        #: While set, the process dies within the next decision that saves something.
        self.dies_midway: Callable[[], None] | None = None
        self._connections: dict[int, Connection] = {}
        #: The newest connection on which each node has joined.
        self._joined: dict[str, Connection] = {}
        self.machine: CoordinatorMachine
        self.boot()

    def boot(self) -> None:
        """Start the process with whatever its disk holds."""
        self.alive = True
        self.life += 1
        self._timer_at = None
        self._ring_due = False
        for safety in self.safety.values():
            safety.restarted()
        records = {run: msgspec.json.decode(record, type=learned(RunRecord)) for run, record in self.disk.items()}
        self.machine = CoordinatorMachine(lambda: f"{self.rng.getrandbits(32):08x}", records, self.local())
        self._arm()

    def die(self, *, disk_lost: bool) -> None:
        """End the process; every connection ends with it."""
        self.kill()
        self.dies_midway = None
        if disk_lost:
            self.disk.clear()
            for safety in self.safety.values():
                safety.forget()
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            self.network.lose_coordinator(connection)

    @property
    def run(self) -> RunMachine | None:
        """The run, once a node has joined it."""
        return self.machine.runs.get(RUN)

    # -- what reaches it -------------------------------------------------------------------------------------

    @property
    def has_round(self) -> bool:
        """Whether a round runs that a newcomer would break."""
        return self.run is not None and self.run.stage is Stage.SEALED

    def connected(self, connection: Connection) -> None:
        """Take a connection in."""
        if connection.life != self.life:
            return
        self._connections[connection.id] = connection
        self.handle(Connected(connection.id, connection.node.address, ADDRESS))
        self.network.accepted(connection)

    def received(self, connection: Connection, message: Message) -> None:
        """Hear a message; one that an earlier life had not looked at yet died with it."""
        if connection.id in self._connections:
            if type(message) is Join:
                earlier = self._joined.get(message.spec.node)
                if earlier is None or earlier.id < connection.id:
                    self._joined[message.spec.node] = connection
            self.handle(Received(connection.id, message))

    def disconnected(self, connection: Connection, reason: str) -> None:
        """Notice the end of a connection."""
        if self._connections.pop(connection.id, None) is not None:
            if self.story:
                self.story.tell("coordinator", f"notices: {connection.node.id}: {reason}")
            self.handle(Disconnected(connection.id, reason))

    # -- what it does ----------------------------------------------------------------------------------------

    def carry_out(self, effects: list[Any]) -> None:
        """Send, save and note, and let the safety checks look at each."""
        if self.dies_midway is not None and any(type(effect) is SaveRun for effect in effects):
            for effect in effects[: self.rng.randint(0, len(effects))]:
                self._carry_out_one(effect)
            self.dies_midway()
            return
        for effect in effects:
            self._carry_out_one(effect)
        is_due = False
        for name, safety in self.safety.items():
            if (run := self.machine.runs.get(name)) is not None:
                safety.look(run)
                is_due = safety.is_due() or is_due
        if is_due:
            self.machine.check()

    def _carry_out_one(self, effect: Any) -> None:
        if type(effect) is Send:
            nodes = [self._connections[peer] for peer in effect.peers if peer in self._connections]
            for connection in nodes:
                node, run = connection.node, self.machine.runs.get(connection.node.run)
                if type(effect.message) is Sealed and run is not None:
                    node.safety.sealed(run, node, effect.message)
                if type(effect.message) is Rejected and run is not None:
                    node.safety.rejected(run, node)
            if self.story and nodes and type(effect.message) is not Ack:
                self.story.tell("coordinator", f"to {_names(nodes)}: {words(effect.message)}")
            for connection in nodes:
                self.network.send_down(connection, effect.message)
        elif type(effect) is SaveRun:
            self.disk[effect.run] = msgspec.json.encode(effect.record)
        elif isinstance(effect, Note):
            if self.story:
                self.story.tell("coordinator", f"* {effect.fact.sentence}")
            link = self._joined.get(str(effect.fact.data.get("node")))
            for safety in self.safety.values():
                safety.noted(effect.fact, link is not None and link.stands)


def _names(connections: list[Connection]) -> str:
    return " ".join(connection.node.id for connection in connections)
