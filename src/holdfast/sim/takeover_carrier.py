"""The coordinator that every simulated agent can carry, and the connections to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.coordinator import machine as c
from holdfast.coordinator.messages import Elect, Out, Promise, Sealed, Term
from holdfast.rendezvous import machine as m
from holdfast.sim.process import Process
from holdfast.sim.story import words
from holdfast.sim.world import Clock
from holdfast.wire.frames import Message

if TYPE_CHECKING:
    from holdfast.sim.takeover import TakeoverNode, TakeoverSimulation

#: Where all nodes look for the coordinator first.
HOME = "home"


class Wire:
    """One connection between a member and a coordinator."""

    __slots__ = ("id", "last_down", "last_up", "node", "node_open", "server", "server_open")

    def __init__(self, number: int, node: TakeoverNode) -> None:
        self.id = number
        self.node = node
        self.server: Carrier | None = None
        self.node_open = True
        self.server_open = False
        self.last_up = self.last_down = 0.0


class Carrier(Process):
    """The coordinator of one agent's process: it carries a run, or only says where that is carried."""

    def __init__(self, sim: TakeoverSimulation, node: TakeoverNode, clock: Clock, address: str) -> None:
        super().__init__(sim.world, clock, node.rng, timers_first=node.index % 2 == 0)
        self.sim, self.node, self.address = sim, node, address
        self.machine: c.CoordinatorMachine = c.CoordinatorMachine(
            lambda: f"{self.rng.getrandbits(32):08x}",
            now=self.local(),
            address=address,
            home=HOME if node.index else "",
        )
        self.wires: dict[int, Wire] = {}

    def connected(self, wire: Wire) -> None:
        """Take a connection in."""
        self.wires[wire.id] = wire
        self.handle(c.Connected(wire.id, wire.node.host))

    def received(self, wire: Wire, message: Message) -> None:
        """Hear a message."""
        if wire.id in self.wires:
            self.handle(c.Received(wire.id, message))

    def disconnected(self, wire: Wire, reason: str) -> None:
        """Notice the end of a connection."""
        if self.wires.pop(wire.id, None) is not None:
            self.handle(c.Disconnected(wire.id, reason))

    def carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case c.Send():
                    for peer in effect.peers:
                        self._send(peer, effect.message)
                case c.ProbeNode():
                    self.sim.probe(self, effect)
                case c.AskOther():
                    self.sim.ask_other(self, effect)
                case c.Sought():
                    self.node.post(self.node.handle, m.Sought(effect.address))
                case c.KeepSuccession():
                    self.node.keep(effect.succession)
                case _:
                    pass
        self.machine.check()

    def _send(self, peer: Any, message: Message) -> None:
        wire = self.wires.get(peer)
        if wire is None:
            return
        if isinstance(message, Sealed):
            self.sim.rules.sealed(self.node, wire.node, message)
        if self.sim.story and isinstance(message, Sealed | Elect | Out):
            self.sim.tell(f"c@{self.node.id}", f"to {wire.node.id}: {told(message)}")
        self.sim.send(wire, message, up=False)


def told(message: Message) -> str:
    """Describe a message."""
    match message:
        case Promise():
            return f"Promise of term {_term(message.term)}"
        case Elect():
            return f"Elect, term {_term(message.term)}"
        case Out():
            return f"Out, to {message.address or 'anywhere'}: {message.reason}"
        case _:
            return words(message)


def _term(term: Term) -> str:
    return f"{term.number} of {term.leader}"
