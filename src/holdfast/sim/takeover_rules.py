"""What must hold while the coordinator moves, whatever goes wrong, and what must come about afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.coordinator.messages import Ballot, RoundId, Sealed, Term
from holdfast.coordinator.quorum import order
from holdfast.coordinator.state import Hold
from holdfast.rendezvous.machine import State
from holdfast.sim.violation import KnownLimit, Violation

if TYPE_CHECKING:
    from holdfast.sim.takeover import TakeoverNode, TakeoverSimulation
    from holdfast.sim.takeover_carrier import Carrier

RUN = "sim"


class TakeoverRules:
    """Watches one simulation and raises `Violation` at the first thing that is wrong."""

    def __init__(self, sim: TakeoverSimulation) -> None:
        self._sim = sim
        #: The members of every round that was sealed, and the term in which it was.
        self.rounds: dict[RoundId, tuple[str, ...]] = {}
        self._terms: dict[RoundId, int] = {}
        #: Which process sealed in a term.
        self._sealers: dict[int, str] = {}
        self._promises: dict[str, Term] = {}
        #: The last round whose members could all train together.
        self._trained: RoundId | None = None

    # -- what coordinators and nodes do --------------------------------------------------------------------------------

    def sealed(self, carrier: TakeoverNode, node: TakeoverNode, message: Sealed) -> None:
        """Look at a place as it is sent to its node."""
        succession = message.succession
        if succession is None:
            raise Violation("every round brings the order of succession", f"{node.id} was sent {message}")
        term, round_id = succession.term.number, message.place.round
        if round_id not in self.rounds and not self._is_remembered():
            self._sealers.clear()  # no process lives that was ever in a round: this is another launch
            self._trained = None
        if round_id not in self.rounds:
            self._look_for_unknown(carrier, succession.ballots[:-1])
        if self._sealers.get(term, carrier.id) != carrier.id and not self._is_in(term):
            del self._sealers[term]  # it is known to no process that lives
        before = self._sealers.setdefault(term, carrier.id)
        if before != carrier.id:
            raise Violation("a term has one coordinator", f"{before} and {carrier.id} both seal in term {term}")
        if round_id not in self.rounds:
            run = carrier.carrier.machine.runs[RUN]
            assert run.round is not None
            self.rounds[round_id] = tuple(run.round.places)
            self._terms[round_id] = term
        if node.id not in self.rounds[round_id]:
            raise Violation("one membership per round", f"{node.id} has no place in {round_id}")

    def _look_for_unknown(self, carrier: TakeoverNode, basis: tuple[Ballot, ...]) -> None:
        """End the simulation at a limit that is known: agents that were started again cannot know who joined later.

        All members of the rounds that they know of are dead, and a member of a later one lives elsewhere.
        """
        members = [self._sim.nodes[name] for ballot in basis for name in ballot.names]
        if not members or any(node.alive for node in members):
            return
        newest, here = max(order(ballot) for ballot in basis), carrier.carrier.machine.runs[RUN].nodes
        for node in self._sim.current.values():
            place = node.machine.place
            if place is None or not node.alive or node.ended is not None or node.id in here:
                continue
            if (self._terms[place.round], place.round.number) > newest:
                raise KnownLimit(f"{carrier.id} cannot know of {node.id} in {self._describe(place.round)}")

    def promised(self, node: TakeoverNode, term: Term) -> None:
        """Look at a promise as it is given."""
        before = self._promises.get(node.id, Term())
        if term.number < before.number or (term.number == before.number and term != before):
            raise Violation("a promise is given once in a term", f"{node.id} promised {before}, then {term}")
        self._promises[node.id] = term

    def accepted(self, node: TakeoverNode, term: Term) -> None:
        """Look at the term of a round that a node takes its place in."""
        self.promised(node, term)

    # -- what trains ---------------------------------------------------------------------------------------------------

    def look(self) -> list[TakeoverNode]:
        """Look which round can make a step now, as all its members run it and reach each other, and return these."""
        found: dict[RoundId, None] = {}
        for node in self._sim.current.values():
            if node.workers is not None and node.alive:
                found[node.workers] = None
        training = [each for each in found if self._can_step(each)]
        if len(training) > 1:
            raise Violation("never two halves", f"{[self._describe(each) for each in training]} all train")
        for round_id in training:
            self._check_history(round_id)
        return [self._sim.nodes[name] for round_id in training for name in self.rounds[round_id]]

    def _is_remembered(self) -> bool:
        return any(node.alive and node.ended is None and node.machine.place for node in self._sim.nodes.values())

    def _is_in(self, term: int) -> bool:
        """Whether a process lives that was in a round of this term."""
        names = {name: None for each, number in self._terms.items() if number == term for name in self.rounds[each]}
        return any(self._sim.nodes[name].alive and self._sim.nodes[name].ended is None for name in names)

    def _can_step(self, round_id: RoundId) -> bool:
        members = [self._sim.nodes[name] for name in self.rounds[round_id]]
        if not all(node.alive and not node.leaving and node.workers == round_id for node in members):
            return False
        if not self._sim.dark and not self._sim.cuts:
            return True  # each reaches each
        return all(self._sim.reach(one.index, other.index) for one in members for other in members)

    def _check_history(self, round_id: RoundId) -> None:
        """A round that trains continues what the last one did: with a member of it, or an agent in the place of one.

        That agent knows what the member knew, so it goes on only if the others could not have. Else all must be dead.
        """
        last = self._trained
        # Once all processes that were in its rounds are dead, a term deposes no coordinator: none can know of it.
        if last is not None and self._terms[last] > self._terms[round_id] and self._is_in(self._terms[last]):
            raise Violation(
                "a coordinator that was deposed seals nothing",
                f"{self._describe(round_id)} trains after {self._describe(last)}",
            )
        if last is not None and last != round_id:
            members = self.rounds[last]
            here = [self._sim.nodes[name].index for name in self.rounds[round_id]]
            alive = [name for name in members if self._sim.nodes[name].alive and not self._sim.nodes[name].leaving]
            if alive and not any(self._sim.nodes[name].index in here for name in members):
                raise Violation(
                    "what was trained is not forgotten",
                    f"{self._describe(round_id)} trains, but {alive} of {self._describe(last)} live",
                )
        self._trained = round_id

    def before_mend(self, number: int) -> None:
        """Look at a cut that ends: nodes that could not train with the rest of their round have stopped long ago."""
        scenario = self._sim.scenario
        fault = next(
            (each for each in scenario.faults if each.hosts == self._sim.cuts[number] and each.kind == "cut"), None
        )
        if fault is None or self._sim.world.now < fault.at + scenario.stop_bound_s() or len(self._sim.cuts) > 1:
            return
        for node in self._sim.current.values():
            if node.workers is None or not node.alive or node._pauses:
                continue
            members = [self._sim.nodes[name] for name in self.rounds[node.workers]]
            if any((node.index in fault.hosts) != (other.index in fault.hosts) for other in members):
                since = self._sim.world.now - scenario.stop_bound_s()
                if not any(each.ends_at > since for each in scenario.faults if each is not fault):
                    raise Violation("a minority stops", f"{node.id} still runs {self._describe(node.workers)}")

    def _describe(self, round_id: RoundId) -> str:
        return f"round {round_id} of term {self._terms[round_id]} with {' '.join(self.rounds[round_id])}"

    # -- what must come about ------------------------------------------------------------------------------------------

    def unsettled(self) -> str | None:
        """Say what is missing until all that can be together are, or None."""
        self.look()
        nodes = [node for node in self._sim.current.values() if node.alive and node.ended is None]
        if not nodes:
            return None
        nodes = [node for node in nodes if self._knows_others(node)]
        carriers = [node.carrier for node in nodes if self._carries(node.carrier)]
        if not nodes:
            return None
        if not carriers:
            return "no agent carries the coordinator"
        if len(carriers) > 1:
            return f"{[each.node.id for each in carriers]} all carry the coordinator"
        [carrier] = carriers
        run = carrier.machine.runs[RUN]
        if run.stage == "sealed" and run.recovery is None and run.round is not None:
            is_full = run.round.size == self._sim.scenario.settings.max_nodes
            for node in nodes:
                stands_by = is_full and node.id in run.nodes and node.machine.state is State.WAITING
                if node.workers != run.round.id and not stands_by:
                    return f"{node.id} runs {node.workers}, not {run.round.id}"
            return None
        holdup = run.holdup(carrier.local())
        if holdup is not None and holdup.why is Hold.MORE and len(nodes) < self._sim.scenario.settings.min_nodes:
            return None
        away = [node.id for node in nodes if node.machine.state is not State.WAITING or node.id not in run.nodes]
        if away:
            return f"{away} do not wait at {carrier.node.id}"
        if holdup is None or holdup.why is not Hold.QUORUM:
            return f"the next round waits for {holdup}"
        return self._unjust(carrier)

    def _knows_others(self, node: TakeoverNode) -> bool:
        """Whether a node and others can find each other: one knows the address of the other.

        Agents that were started again listen elsewhere than before; where all began, perhaps none does any more.
        """
        home = self._sim.current.get(0)
        if home is not None and home.alive:
            return True
        others = [each for each in self._sim.current.values() if each is not node and each.alive]
        if not others:
            return node.machine.place is not None
        return self._is_known(node, others) or any(self._is_known(each, [node]) for each in others)

    def _is_known(self, node: TakeoverNode, others: list[TakeoverNode]) -> bool:
        agents = node.machine.allegiance.agents if node.machine.allegiance is not None else ()
        return any(agent.node == each.id for agent in agents for each in others)

    def _carries(self, carrier: Carrier) -> bool:
        run = carrier.machine.runs.get(RUN)
        return run is not None and bool(run.nodes)

    def _unjust(self, carrier: Carrier) -> str | None:
        """Say why a wait for a quorum is wrong: enough members of a round that counts are there."""
        run = carrier.machine.runs[RUN]
        assert run.standing is not None
        if all(self._is_just(ballot.round) for ballot in run.standing.ballots):
            return f"a quorum lives, but {carrier.node.id} does not go on"
        return None

    def _is_just(self, round_id: RoundId) -> bool:
        """Whether the members of a round that live, or whose hosts have an agent again, are a quorum for certain."""
        members = [self._sim.nodes[name] for name in self.rounds[round_id]]
        alive = [node for node in members if node.alive and node.ended is None]
        hosts = [self._sim.current[node.index] for node in members]
        return 2 * len(alive) > len(members) or all(node.alive and node.ended is None for node in hosts)
