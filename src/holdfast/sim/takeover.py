"""The takeover of a coordinator under faults: every node has the real member and can carry the real coordinator.

Nodes, their workers and the network between any two of them are simpler here than in `simulation`: a worker is only a
round that is said to run. What is checked is what a takeover may break: two halves that both train, a step that is
forgotten, a term with two coordinators, nodes that never find each other again.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.coordinator import machine as c
from holdfast.coordinator.messages import (
    Beat,
    Cause,
    Memory,
    NodeSpec,
    Place,
    Promise,
    RoundId,
    Seen,
    Succession,
)
from holdfast.rendezvous import machine as m
from holdfast.rendezvous.allegiance import after_seal
from holdfast.sim.process import Process
from holdfast.sim.simulation import Outcome
from holdfast.sim.story import Story
from holdfast.sim.takeover_carrier import HOME, Carrier, Wire, told
from holdfast.sim.takeover_faults import TakeoverFault, TakeoverKind, TakeoverScenario
from holdfast.sim.takeover_rules import TakeoverRules
from holdfast.sim.violation import KnownLimit, Violation
from holdfast.sim.world import Clock, World
from holdfast.wire.frames import Message

RUN = "sim"
_CAUSE = Cause("exit code 1")
_LOOK_S = 0.5
#: How long a step of the workers takes.
_STEP_S = 0.25
_CONNECT_S = 10.0


class TakeoverNode(Process):
    """One life of one node: a member, a coordinator that listens, and workers that are only said to run."""

    def __init__(self, sim: TakeoverSimulation, index: int, life: int) -> None:
        self.index, self.host = index, f"h{index}"
        self.id = f"n{index}" + (f".{life}" if life > 1 else "")
        scenario = sim.scenario
        rng = Random(f"takeover {scenario.seed} {self.id}")
        clock = Clock(scenario.rates[index], rng.uniform(0, 1e6))
        super().__init__(sim.world, clock, rng, timers_first=index % 2 == 1)
        self.sim = sim
        address = HOME if index == 0 else f"{self.id}:1"
        spec = NodeSpec(
            self.id, self.host, "trainer", 1, 0, lease_s=scenario.lease_s, standby=address, hosts_coordinator=index == 0
        )
        #: What this node knows, as it is on the host's disk; at first, what the life before this one has left there.
        self.memory = sim.disks.get(index)
        self.machine: m.MemberMachine = m.MemberMachine(RUN, spec, scenario.settings, rng.random, memory=self.memory)
        self.carrier = Carrier(sim, self, clock, address)
        if self.memory is not None and index == 0:
            self.carrier.handle(c.Lead(RUN, self.memory))
        #: The round whose workers run here.
        self.workers: RoundId | None = None
        self.place: Place | None = None
        self.ended: str | None = None
        self.wire: Wire | None = None
        self.linked = False
        self.hears_from = ""
        self._stops = 0
        self.leaving = False

    # -- the connection ----------------------------------------------------------------------------------------------

    def link_up(self, wire: Wire) -> None:
        """The connection stands."""
        if wire is self.wire and not self.linked:
            self.linked = True
            assert wire.server is not None
            if wire.server is not self.carrier:
                self.carrier.handle(c.Follow(RUN, wire.server.address))
            self.handle(m.LinkUp())

    def link_down(self, wire: Wire, reason: str, ended: bool) -> None:
        """The connection broke or could not be made."""
        if wire is self.wire:
            self.wire, self.linked = None, False
            self.handle(m.LinkDown(reason, ended=ended))

    def hear(self, wire: Wire, message: Message) -> None:
        """The coordinator said something."""
        if wire is self.wire and self.linked:
            self.handle(m.Heard(message))

    # -- the member --------------------------------------------------------------------------------------------------

    def keep(self, succession: Succession) -> None:
        """Write down what the coordinator here tells the members of a new round."""
        assert self.machine.allegiance is not None
        self.remember(after_seal(self.machine.allegiance.memory(self.id), succession))

    def remember(self, memory: Memory) -> None:
        """Keep what the next life on this host must know."""
        self.memory = self.sim.disks[self.index] = memory

    def ask(self) -> None:
        """Ask for a round."""
        self.handle(m.Ask(1, self.local() + self.sim.scenario.ask_timeout_s))

    def carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case m.Say():
                    if self.wire is not None:
                        if isinstance(effect.message, Promise):
                            self.sim.rules.promised(self, effect.message.term)
                        if self.sim.story and type(effect.message) is not Beat:
                            self.sim.tell(self.id, f"says {told(effect.message)}")
                        self.sim.send(self.wire, effect.message, up=True)
                case m.OpenLink():
                    self._open(effect)
                case m.DropLink():
                    if self.wire is not None:
                        self.sim.hang_up(self.wire)
                        if self.wire.server is not None:
                            self.carrier.handle(c.Stray(RUN, self.wire.server.address))
                    self.wire, self.linked = None, False
                case m.Remember():
                    if effect.memory is not None:
                        self.remember(effect.memory)
                case m.RoundSealed():
                    self._on_sealed(effect.place)
                case m.RoundBroken():
                    self.sim.tell(self.id, f"is told: round {effect.place.round} broke: {effect.reason}")
                    self._stop()
                case m.RunEnded() | m.AskFailed():
                    self.sim.tell(self.id, f"ends: {effect.reason}")
                    self.ended, self.workers = effect.reason, None
                case _:
                    pass
        self.machine.check()

    def _open(self, effect: m.OpenLink) -> None:
        if effect.lead:
            self.sim.tell(self.id, "carries the coordinator")
            self.carrier.handle(c.Lead(RUN, self.memory))
        elif not effect.address and self.index == 0:
            self.carrier.handle(c.Lead(RUN, self.memory))  # no other address answers: what was heard of another is void
        address = effect.address or HOME
        self.wire, self.linked = self.sim.connect(self, address, effect.timeout_s or _CONNECT_S), False

    def _on_sealed(self, place: Place) -> None:
        self.sim.tell(self.id, f"is told: round {place.round}, {place.group_rank} of {place.group_world_size}")
        self.place = place
        allegiance = self.machine.allegiance
        if allegiance is not None:
            self.sim.rules.accepted(self, allegiance.term)
        self.world.after(self.rng.random() * self.sim.scenario.start_s, self.post, self._start, place.round)

    def _start(self, round_id: RoundId) -> None:
        if self.machine.state is m.State.RUNNING and self.place is not None and self.place.round == round_id:
            self.workers = round_id
            self.sim.rules.look()

    def _stop(self) -> None:
        self._stops += 1
        self.world.after(self.rng.random() * self.sim.scenario.stop_s, self.post, self._stopped, self._stops)

    def _stopped(self, stop: int) -> None:
        if stop != self._stops or self.ended is not None:
            return
        self.workers = None
        if self.leaving:
            self.sim.gone(self)
        else:
            self.ask()

    # -- what befalls it ---------------------------------------------------------------------------------------------

    def fail(self) -> None:
        """A worker fails."""
        if self.workers is not None:
            self.handle(m.Fail(_CAUSE))
            self._stop()

    def pause(self) -> None:
        """Stop the whole process."""
        super().pause()
        self.carrier.pause()

    def resume(self) -> None:
        """Let the process go on."""
        super().resume()
        self.carrier.resume()

    def drain(self) -> None:
        """Leave politely: hand the coordinator over, stop the workers, end."""
        if self.leaving or self.ended is not None:
            return
        self.leaving = True
        self.handle(m.Leave("drained"))
        self.world.after(self.sim.scenario.delay_s * 2, self.post, self._hand_over)

    def _hand_over(self) -> None:
        self.carrier.handle(c.HandOver("its agent leaves"))
        self._stop()


class TakeoverSimulation:
    """Nodes, the network between them, and a scenario that they live through."""

    def __init__(self, scenario: TakeoverScenario, *, story: bool = False) -> None:
        self.scenario = scenario
        self.world = World()
        self.story = Story(self.world) if story else None
        self.rng = Random(f"takeover network {scenario.seed}")
        self.nodes: dict[str, TakeoverNode] = {}
        #: The present life on each host.
        self.current: dict[int, TakeoverNode] = {}
        self.rules = TakeoverRules(self)
        self.messages = 0
        self._messages_max = scenario.messages_max()
        self.counts: dict[str, int] = {}
        self._lives: dict[int, int] = {}
        self._wires = 0
        #: Hosts without power, and the groups of hosts that are cut off from the rest.
        self.dark: dict[int, None] = {}
        #: What the agents of each host have written down.
        self.disks: dict[int, Memory] = {}
        self.cuts: dict[int, tuple[int, ...]] = {}
        self._cut_number = 0
        self._paused: list[TakeoverNode] = []
        self._held: list[tuple[int, int, Callable[[], None]]] = []

    def run(self) -> Outcome:
        """Live through the whole scenario and say how it ended."""
        outcome = Outcome(self.scenario.seed)
        try:
            self._live()
        except KnownLimit as limit:
            self.tell("world", f"a known limit is met: {limit}")
        except Violation as violation:
            outcome.check, outcome.sentence = violation.check, violation.sentence
        except AssertionError as error:
            outcome.check, outcome.sentence = "the machine's own check", str(error)
            outcome.trace = traceback.format_exc()
        except Exception as error:  # noqa: BLE001 - whatever a machine raises is a finding
            outcome.check, outcome.sentence = f"no machine raises {type(error).__name__}", str(error)
            outcome.trace = traceback.format_exc()
        outcome.virtual_s, outcome.events = self.world.now, self.world.events
        outcome.messages, outcome.rounds = self.messages, len(self.rules.rounds)
        outcome.faults = self.counts
        return outcome

    def tell(self, who: str, what: str) -> None:
        """Add a line to the story."""
        if self.story:
            self.story.tell(who, what)

    def _live(self) -> None:
        scenario = self.scenario
        for index in range(scenario.size):
            self.world.at(scenario.arrivals[index], self.arrive, index)
        for fault in scenario.faults:
            self.world.at(fault.at, self._inject, fault)
        self.world.after(_STEP_S, self._step)
        self.world.run(scenario.heal_at)
        self._heal()
        deadline = self.world.now + scenario.bound_s()
        missing = self.rules.unsettled()
        while missing is not None:
            if self.world.now >= deadline:
                raise Violation(
                    "liveness", f"{self.world.now - scenario.heal_at:.0f} s after the last fault: {missing}"
                )
            self.world.run(self.world.now + _LOOK_S)
            missing = self.rules.unsettled()

    def _step(self) -> None:
        """Let the workers of a round that can train make a step."""
        for node in self.rules.look():
            node.machine.steps += 1
        self.world.after(_STEP_S, self._step)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def arrive(self, index: int) -> None:
        """Start an agent on a host."""
        self.dark.pop(index, None)
        old = self.current.get(index)
        if old is not None and old.alive and old.ended is None:
            return
        self._lives[index] = self._lives.get(index, 0) + 1
        node = TakeoverNode(self, index, self._lives[index])
        self.nodes[node.id] = self.current[index] = node
        self.tell(node.id, "starts")
        node.ask()

    def kill(self, node: TakeoverNode, *, silent: bool) -> None:
        """End a process, and its connections with it; `silent` if its host has lost power."""
        if not node.alive:
            return
        self.tell(node.id, "loses power" if silent else "is killed")
        node.kill()
        node.carrier.kill()
        node.workers = None
        if silent:
            self.dark[node.index] = None
        wires = [*node.carrier.wires.values(), *([node.wire] if node.wire is not None else [])]
        for wire in wires:
            if wire.node is node:
                wire.node_open = False
                if not silent:
                    self._end_up(wire, "the node's process ended")
            else:
                wire.server_open = False
                if not silent:
                    self._end_down(wire, "the coordinator's process ended", ended=True)

    def gone(self, node: TakeoverNode) -> None:
        """End a process that has left."""
        node.ended = "left"
        self.kill(node, silent=False)

    def _inject(self, fault: TakeoverFault) -> None:
        self.counts[str(fault.kind)] = self.counts.get(str(fault.kind), 0) + 1
        self.tell("world", f"fault: {fault}")
        if fault.kind is TakeoverKind.CUT:
            self._cut_number += 1
            self.cuts[self._cut_number] = fault.hosts
            self.world.after(fault.seconds, self._mend, self._cut_number)
            return
        for host in fault.hosts:
            node = self.current.get(host)
            if node is None or not node.alive:
                continue
            match fault.kind:
                case TakeoverKind.KILL | TakeoverKind.POWER:
                    self.kill(node, silent=fault.kind is TakeoverKind.POWER)
                    if fault.seconds:
                        self.world.after(fault.seconds, self.arrive, host)
                case TakeoverKind.DRAIN:
                    node.post(node.drain)
                    if fault.seconds:
                        self.world.after(fault.seconds + self.scenario.stop_s, self.arrive, host)
                case TakeoverKind.PAUSE:
                    node.pause()
                    self._paused.append(node)
                    self.world.after(fault.seconds, self._resume, node)
                case TakeoverKind.BREAK:
                    if node.wire is not None and node.wire.server_open:
                        self._break(node.wire)
                case TakeoverKind.FAIL:
                    node.post(node.fail)
        self.rules.look()

    def _mend(self, number: int) -> None:
        if number in self.cuts:
            self.rules.before_mend(number)
            del self.cuts[number]
            held, self._held = self._held, []
            for one, other, act in held:
                self._carry(one, other, act)

    def _heal(self) -> None:
        self.tell("world", "all faults end")
        for number in list(self.cuts):
            self._mend(number)
        self.dark.clear()
        for node in list(self._paused):
            self._resume(node)

    def _resume(self, node: TakeoverNode) -> None:
        if node in self._paused:
            self._paused.remove(node)
            node.resume()

    # -- the network ---------------------------------------------------------------------------------------------------

    def reach(self, one: int, other: int) -> bool:
        """Whether two hosts can talk to each other."""
        if self.dark and (one in self.dark or other in self.dark):
            return False
        return not self.cuts or all((one in cut) == (other in cut) for cut in self.cuts.values())

    def connect(self, node: TakeoverNode, address: str, timeout_s: float) -> Wire:
        """Begin to connect; the node hears how it went."""
        self._wires += 1
        wire = Wire(self._wires, node)
        self.world.after(self._delay(), self._knock, wire, address, self.world.now + timeout_s)
        return wire

    def at(self, address: str) -> tuple[int, Carrier | None]:
        """Return the host of an address, and what listens there."""
        if address == HOME:
            node = self.current.get(0)
            return 0, node.carrier if node is not None and node.alive else None
        name = address.partition(":")[0]
        node = self.nodes[name]
        return node.index, node.carrier if node.alive else None

    def _knock(self, wire: Wire, address: str, deadline: float) -> None:
        if not wire.node_open:
            return
        host, server = self.at(address)
        if not self.reach(wire.node.index, host):
            if self.world.now >= deadline:
                self._end_down(wire, "no answer in time", ended=False)
            else:
                self.world.after(0.2, self._knock, wire, address, deadline)
        elif server is None:
            self.world.after(self._delay(), self._end_down, wire, "connection refused")
        else:
            wire.server, wire.server_open = server, True
            server.post(server.connected, wire)
            self._carry(host, wire.node.index, lambda: wire.node.post(wire.node.link_up, wire))
            self.world.at(deadline, self._time_out, wire)

    def _time_out(self, wire: Wire) -> None:
        if wire.node_open and not (wire.node.wire is wire and wire.node.linked):
            self._end_up(wire, "the node closed the connection")
            self._end_down(wire, "no answer in time", ended=False)

    def send(self, wire: Wire, message: Message, *, up: bool) -> None:
        """Send a message on a connection; what is sent into a cut waits, as TCP does."""
        self.messages += 1
        if self.messages > self._messages_max:
            raise Violation("few messages are sent", f"{self.messages} in {self.world.now:.0f} s")
        server = wire.server
        if server is None:
            return
        when = self.world.now + self._delay()
        if up:
            when = wire.last_up = when if when > wire.last_up else wire.last_up
        else:
            when = wire.last_down = when if when > wire.last_down else wire.last_down
        self.world.at(when, self._arrive, wire, server, message, up)

    def _arrive(self, wire: Wire, server: Carrier, message: Message, up: bool) -> None:
        if self.reach(wire.node.index, server.node.index):
            if up and wire.server_open:
                server.post(server.received, wire, message)
            elif not up and wire.node_open:
                wire.node.post(wire.node.hear, wire, message)
        else:
            self._carry(wire.node.index, server.node.index, lambda: self._arrive(wire, server, message, up))

    def hang_up(self, wire: Wire) -> None:
        """The node closes a connection."""
        wire.node_open = False
        self._end_up(wire, "the node closed the connection")

    def _break(self, wire: Wire) -> None:
        self.world.after(self.rng.random() * self.scenario.lease_s / 10, self._end_up, wire, "the connection broke")
        self._end_down(wire, "the connection broke", ended=True)

    def _end_up(self, wire: Wire, reason: str) -> None:
        server = wire.server
        if server is None:
            return

        def act() -> None:
            if wire.server_open:
                wire.server_open = False
                server.post(server.disconnected, wire, reason)

        self.world.at(
            max(self.world.now + self._delay(), wire.last_up), self._carry, wire.node.index, server.node.index, act
        )

    def _end_down(self, wire: Wire, reason: str, ended: bool = True) -> None:
        def act() -> None:
            if wire.node_open:
                wire.node_open = False
                wire.node.post(wire.node.link_down, wire, reason, ended)

        if wire.server is None or not ended:
            act()
            return
        self.world.at(
            max(self.world.now + self._delay(), wire.last_down),
            self._carry,
            wire.node.index,
            wire.server.node.index,
            act,
        )

    def _carry(self, one: int, other: int, act: Callable[[], None]) -> None:
        if self.reach(one, other):
            act()
        elif one not in self.dark and other not in self.dark:
            self._held.append((one, other, act))

    def _delay(self) -> float:
        scenario = self.scenario
        delay = scenario.delay_s * (0.5 + self.rng.random())
        if scenario.straggle and self.rng.random() < scenario.straggle:
            delay += self.rng.random() * scenario.lease_s * 0.6
        return delay

    # -- what coordinators ask of each other ---------------------------------------------------------------------------

    def probe(self, carrier: Carrier, effect: c.ProbeNode) -> None:
        """Find out whether a node's process is gone."""

        def act() -> None:
            host, server = self.at(effect.address)
            if self.reach(carrier.node.index, host):
                gone = server is None or server.node.id != effect.node
                carrier.post(carrier.handle, c.Probed(effect.run, effect.node, gone))

        self.world.after(2 * self._delay(), act)

    def ask_other(self, carrier: Carrier, effect: c.AskOther) -> None:
        """Let one coordinator ask another whether it carries the run, too."""
        self.messages += 1

        def arrive() -> None:
            host, server = self.at(effect.address)
            if server is None or server is carrier or not self.reach(carrier.node.index, host):
                return
            server.post(ask, server)

        def ask(server: Carrier) -> None:
            self._wires += 1
            peer = -self._wires
            server.machine.handle(c.Connected(peer, carrier.node.host), server.local())
            effects = server.machine.handle(c.Received(peer, effect.seek), server.local())
            for each in effects:
                if isinstance(each, c.Send) and peer in each.peers and isinstance(each.message, Seen):
                    seen = each.message
                    self.world.after(self._delay(), answer, server, seen)
            server.carry_out(effects)
            server.handle(c.Disconnected(peer, "answered"))

        def answer(server: Carrier, seen: Seen) -> None:
            if self.reach(carrier.node.index, server.node.index):
                carrier.post(carrier.handle, c.Found(effect.address, seen))

        self.world.after(self._delay(), arrive)
