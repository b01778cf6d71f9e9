"""Elections through etcd under virtual time: the real election machine in several processes, and a model of the rest.

Each process looks for the carrier whenever it has none, follows it while it can be reached, and, as the carrier, seals
a round now and then. The checks: a term is given once; of two carriers one is closed, stopped or dead; no carrier seals
once a later one has; round numbers grow. Once faults end, one process carries and all others follow it.
"""

from __future__ import annotations

import traceback
from random import Random
from typing import Any

from holdfast.rendezvous import election_events as e
from holdfast.rendezvous.election import TRUST_S, ElectionMachine, Stage
from holdfast.sim.etcd import SimEtcd
from holdfast.sim.process import Process
from holdfast.sim.simulation import Outcome
from holdfast.sim.story import Story
from holdfast.sim.violation import Violation
from holdfast.sim.world import Clock, World

RUN = "run"
HEAL_AT, FAULTS_MAX = 60.0, 14
#: A node that cannot reach its carrier notices after so long, or at once when the carrier closes.
NODE_LEASE_S = 3.0
_LOOK_S = 0.4
#: Within so long a carrier that runs has noticed that etcd trusts it no longer, whatever its clock.
NOTICED_S = TRUST_S / 0.9 + 0.5
#: Within so long after the last fault there is one carrier again, and it seals: a lease, questions that time out.
BOUND_S = 40.0


class Candidate(Process):
    """One life of a process that may carry the coordinator."""

    machine: ElectionMachine

    def __init__(self, simulation: Election, name: str, life: int, rng: Random) -> None:
        rate = rng.choice([1.0, rng.uniform(0.9, 1.1)])
        clock = Clock(rate, rng.uniform(0, 1e5))
        super().__init__(simulation.world, clock, rng, timers_first=rng.random() < 0.5)
        self.simulation = simulation
        self.name = name
        self.address = f"{name}:{life}"
        self.machine = ElectionMachine(self.address)
        #: Whether a coordinator is open here, and how many rounds it knows.
        self.is_open = False
        self.number = 0
        #: The process that this one follows.
        self.carrier: Candidate | None = None
        self._lost_since: float | None = None
        #: Since when it has run without being stopped.
        self.ran_since = simulation.world.now
        self._asked = False
        self._looks = False

    def live(self) -> None:
        """Look after the connection, and want to seal."""
        if not self.alive:
            return
        self.post(self._look_after)
        self.world.after(_LOOK_S * (0.5 + self.rng.random()), self.live)

    def resume(self) -> None:
        """Go on."""
        self.ran_since = self.world.now
        super().resume()

    @property
    def is_paused(self) -> bool:
        """Whether the process is stopped."""
        return self._pauses > 0

    def _look_after(self) -> None:
        if self.is_open:
            if not self._asked and self.rng.random() < _LOOK_S / self.simulation.seal_s:
                self._asked = True
                self.handle(e.AskPermit(RUN, str(self.number + 1).encode()))
            return
        carrier = self.carrier
        if carrier is not None and carrier.alive and carrier.is_open:
            if not carrier.is_paused and not self.simulation.are_cut(self, carrier):
                self._lost_since = None
                return
            self._lost_since = self.world.now if self._lost_since is None else self._lost_since
            if self.world.now < self._lost_since + NODE_LEASE_S:
                return
        self.carrier, self._lost_since = None, None
        if not self._looks:
            self._looks = True
            self.handle(e.Look())

    # -- effects -----------------------------------------------------------------------------------------------------

    def carry_out(self, effects: list[Any]) -> None:
        """Do what the machine says, in order."""
        for effect in effects:
            self._carry_out_one(effect)
        self.machine.check()

    def _carry_out_one(self, effect: Any) -> None:
        simulation = self.simulation
        match effect:
            case e.ReadKey() | e.Stand() | e.Renew() | e.Write() | e.Revoke():
                simulation.etcd.ask(self.name, effect, self.address, self.machine.candidate, self._answer)
            case e.Knock():
                target = simulation.find(effect.address)
                closed = target is None or not (target.alive and target.is_open)
                gone = closed and not (target is not None and simulation.are_cut(self, target))
                self.world.after(0.2, self._answer, e.Knocked(effect.ask, gone))
            case e.Carry():
                self._on_carry(effect)
            case e.Follow():
                self._looks = False
                self.carrier = simulation.find(effect.address)
                if self.carrier is not None and self.carrier.is_open and not simulation.are_cut(self, self.carrier):
                    self.post(self.handle, e.Reached())
            case e.LookFailed():
                self._looks = False
            case e.StepDown():
                self.tell(f"steps down: {effect.reason}")
                self.is_open = self._asked = False
            case e.Permit(allowed=False):
                self._asked = False
            case e.Permit():
                self._asked = False
                self.number += 1
                simulation.sealed(self)
                self.handle(e.KeepRecord(RUN, str(self.number).encode()))

    def _answer(self, event: Any) -> None:
        self.post(self.handle, event)

    def _on_carry(self, carry: e.Carry) -> None:
        self._looks = False
        if self.is_open:
            return
        self.tell(f"carries in term {carry.term}")
        self.is_open, self.number = True, int(dict(carry.records).get(RUN, b"0"))
        self.simulation.carries(self)

    def break_off(self) -> None:
        """End the coordinator, as after a mistake of its own, and go on."""
        if self.is_open:
            self.tell("loses its coordinator")
            self.is_open = self._asked = False
            self.handle(e.CarriedAway())

    def resign(self) -> None:
        """Leave in peace."""
        self.tell("resigns")
        self.is_open = False
        self.handle(e.Resign())
        self.kill()

    def crash(self) -> None:
        """Die at once."""
        self.tell("dies")
        self.is_open = False
        self.kill()

    def tell(self, what: str) -> None:
        """Add a line to the story."""
        if self.simulation.story:
            self.simulation.story.tell(self.address, what)


class Election:
    """A few processes, one etcd, and faults."""

    def __init__(self, seed: int, *, story: bool = False) -> None:
        self.seed = seed
        self.world = World()
        self.story = Story(self.world) if story else None
        self.rng = Random(f"election {seed}")
        rng = self.rng
        delay_s = rng.choice([0.002, 0.02, 0.15])
        etcd_clock = Clock(rng.choice([1.0, rng.uniform(0.95, 1.05)]))
        self.etcd = SimEtcd(self.world, etcd_clock, Random(f"etcd {seed}"), delay_s, rng.choice([0.0, 0.02, 0.1]))
        self.names = [f"n{index}" for index in range(rng.randint(2, 5))]
        self.current: dict[str, Candidate] = {}
        self._lives: dict[str, int] = {}
        self._all: dict[str, Candidate] = {}
        self._cuts: dict[frozenset[str], int] = {}
        self.faults: dict[str, int] = {}
        self._ends: list[Any] = []
        #: How far apart a carrier's seals are: a carrier that seals often finds out soon that it is deposed.
        self.seal_s = rng.choice([1.0, 1.0, 30.0])
        self._lease_lost_at = float("-inf")
        self.last_term = self.last_number = 0
        self.seals = 0
        self.sealed_at = 0.0

    def find(self, address: str) -> Candidate | None:
        """Return the process at an address."""
        return self._all.get(address)

    def are_cut(self, one: Candidate, other: Candidate) -> bool:
        """Whether two processes cannot reach each other."""
        return one.name != other.name and self._cuts.get(frozenset((one.name, other.name)), 0) > 0

    # -- the checks --------------------------------------------------------------------------------------------------

    def carries(self, process: Candidate) -> None:
        """Look at a process that has just opened a coordinator."""
        beside = [
            other.address
            for other in self.current.values()
            if other is not process and other.alive and other.is_open and not other.is_paused
        ]
        if not beside:
            return
        if self.world.now > self._lease_lost_at + NOTICED_S:
            raise Violation("one carrier at a time", f"{process.address} carries beside {beside}")
        for address in beside:  # etcd itself has lost the lease; the next renewal shows that
            self.world.after(NOTICED_S, self._check_deposed, self._all[address], self._all[address].machine.term)

    def _check_deposed(self, process: Candidate, term: int) -> None:
        still = process.alive and process.is_open and process.machine.term == term
        if still and not process.is_paused and process.ran_since <= self.world.now - NOTICED_S:
            raise Violation("a deposed carrier steps down", f"{process.address} still carries in term {term}")

    def sealed(self, process: Candidate) -> None:
        """Look at a seal."""
        if self.story:
            self.story.tell(process.address, f"seals round {process.number} in term {process.machine.term}")
        term, number = process.machine.term, process.number
        if term < self.last_term:
            raise Violation(
                "never two carriers seal", f"{process.address} seals in term {term}, after term {self.last_term}"
            )
        if number <= self.last_number:
            raise Violation("a round number is used once", f"{process.address} seals {number} after {self.last_number}")
        self.last_term, self.last_number = term, number
        self.seals += 1
        self.sealed_at = self.world.now

    # -- faults ------------------------------------------------------------------------------------------------------

    def _inject(self) -> None:
        rng = self.rng
        kind = rng.choice(
            ["crash", "crash", "resign", "pause", "pause", "cut etcd", "cut peers", "outage", "lose lease", "break"]
        )
        self.faults[kind] = self.faults.get(kind, 0) + 1
        seconds = rng.choice([rng.uniform(0.05, 1), rng.uniform(1, 8), rng.uniform(4, 20)])
        carriers = [name for name, each in self.current.items() if each.is_open]
        name = rng.choice(carriers) if carriers and rng.random() < 0.7 else rng.choice(self.names)
        if self.story:
            self.story.tell("world", f"fault: {kind} {name} for {seconds:.2f} s")
        process = self.current[name]
        match kind:
            case "crash" | "resign":
                if process.alive:
                    process.crash() if kind == "crash" else process.resign()
                self._end_after(seconds, lambda: self._start(name))
            case "pause":
                process.pause()
                self._end_after(seconds, process.resume)
            case "cut etcd":
                self.etcd.cuts[name] = self.etcd.cuts.get(name, 0) + 1
                self._end_after(seconds, lambda: self._mend_etcd(name))
            case "cut peers":
                for other in self.names:
                    pair = frozenset((name, other))
                    self._cuts[pair] = self._cuts.get(pair, 0) + 1
                self._end_after(seconds, lambda: self._mend_peers(name))
            case "outage":
                self.etcd.outages += 1
                self._end_after(seconds, self._end_outage)
            case "lose lease":
                self._lease_lost_at = self.world.now
                self.etcd.lose_lease()
            case "break":
                process.post(process.break_off)

    def _mend_etcd(self, name: str) -> None:
        self.etcd.cuts[name] -= 1

    def _mend_peers(self, name: str) -> None:
        for other in self.names:
            self._cuts[frozenset((name, other))] -= 1

    def _end_outage(self) -> None:
        self.etcd.outages -= 1

    def _end_after(self, seconds: float, end: Any) -> None:
        self._ends.append(end)
        self.world.after(seconds, self._end, end)

    def _end(self, end: Any) -> None:
        if end in self._ends:
            self._ends.remove(end)
            end()

    def _start(self, name: str) -> None:
        before = self.current.get(name)
        if before is not None and before.alive:
            return
        life = self._lives[name] = self._lives.get(name, 0) + 1
        process = Candidate(self, name, life, Random(f"candidate {self.seed} {name} {life}"))
        self.current[name] = self._all[process.address] = process
        process.live()

    # -- from the beginning to the end -------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Live through all faults and say how it ended."""
        outcome = Outcome(self.seed)
        try:
            self._live()
        except Violation as violation:
            outcome.check, outcome.sentence = violation.check, violation.sentence
        except AssertionError as error:
            outcome.check, outcome.sentence = "the machine's own check", str(error)
            outcome.trace = traceback.format_exc()
        outcome.virtual_s, outcome.events = self.world.now, self.world.events
        outcome.rounds, outcome.faults = self.seals, self.faults
        return outcome

    def _live(self) -> None:
        for name in self.names:
            self.world.at(self.rng.uniform(0, 3), self._start, name)
        self.world.run(3.0)
        for _ in range(self.rng.randint(2, FAULTS_MAX)):
            self.world.at(self.rng.uniform(4, HEAL_AT), self._inject)
        self.world.run(HEAL_AT)
        if self.story:
            self.story.tell("world", "all faults end")
        ends, self._ends = self._ends, []
        for end in ends:
            end()
        self.etcd.loss, self.seal_s = 0.0, 1.0
        for name in self.names:
            self._start(name)
        self.world.run(HEAL_AT + BOUND_S)
        self._check_rest()

    def _check_rest(self) -> None:
        carriers = [each for each in self.current.values() if each.is_open]
        if len(carriers) != 1:
            raise Violation("liveness", f"{len(carriers)} processes carry: {[each.address for each in carriers]}")
        [carrier] = carriers
        lost = [each.address for each in self.current.values() if each is not carrier and each.carrier is not carrier]
        if lost:
            raise Violation("liveness", f"{lost} do not follow {carrier.address}")
        if carrier.machine.stage is not Stage.CARRYING or self.sealed_at < self.world.now - BOUND_S / 2:
            raise Violation("liveness", f"{carrier.address} has not sealed since {self.sealed_at:.1f}")


def simulate_election(seed: int) -> Outcome:
    """Run one seed without telling its story."""
    return Election(seed).run()
