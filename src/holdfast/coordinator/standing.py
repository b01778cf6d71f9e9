"""Whether a coordinator may seal a round: its term, and which nodes have promised to follow it. Pure.

Only where the coordinator can move (`RunSettings.takeover`). The rules:

1. A member that accepted a round, or answered an `Elect`, follows that term and nothing older; it follows one
   coordinator in a term.
2. A coordinator seals with the votes of a quorum of the rounds that count (see `quorum`), all of them promised to its
   term. One that has no term yet asks for a new one once a quorum is connected to it, never before: so a node that was
   cut off does not disturb the others when it is back.
3. A coordinator that hears of a higher term, or of the same term under another coordinator, is deposed: it seals
   nothing any more, and its nodes look for the other one. One that has itself asked for a higher term seals in that
   term only: a node that has promised it accepts no older one, and its answer may still be on the way.
4. A round that all its members have accepted is firm. Until then the rounds before it count as well. Until a step was
   made in it, one member of the last round in which there was one must vote, too: only those have the state.
5. An agent that was started again is no member of its predecessor's rounds, but it tells them, and stands for its
   predecessor where every member must be accounted for.
6. Rounds of another launch of the run count as well if a live member tells of them, unless this launch is larger. They
   count on until a round that was sealed with a quorum of them, too, is firm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from holdfast.coordinator.messages import Ballot, Claim, Elect, Heir, Memory, Pledge, RoundId, Succession, Term
from holdfast.coordinator.quorum import MAJORITY, NAMES_MAX, Votes, counting, has_quorum
from holdfast.coordinator.state import Node, Round
from holdfast.wire.address import Endpoint

#: So many agents are told to every node as those that may carry the coordinator next.
HEIRS_MAX = 16
#: So many launches that a round descends from are told.
LAUNCHES_MAX = 16
#: A coordinator of agents that were started again waits for so long before it believes that no process of the run is
#: left where connections are refused: another that carries the run asks here several times meanwhile.
TRIED_S = 1.5


class Standing:
    """One coordinator's standing in one run."""

    def __init__(self, leader: str, rule: str = MAJORITY) -> None:
        #: The name of this coordinator.
        self.leader = leader
        self.rule = rule
        #: The least and the most nodes of the run.
        self.limits = (1, 1 << 30)
        #: The term in which this coordinator acts; number 0 while it has none.
        self.term = Term()
        #: The highest number of a term that was heard of, or asked for here.
        self.highest = 0
        #: Whether another coordinator has taken over.
        self.deposed = False
        #: Whether the run's first round was sealed here.
        self.begun_here = False
        #: How many nodes the largest round had that was sealed here.
        self._size = 0
        self._ballots: dict[RoundId, Ballot] = {}
        #: Rounds of another launch, and those of them that the last seal had a quorum of.
        self._foreign: dict[RoundId, Ballot] = {}
        self._absorbed: dict[RoundId, None] = {}
        #: The members of each round, as far as they are known.
        self._members: dict[RoundId, dict[str, None]] = {}
        #: The term that each live node has promised.
        self._promised: dict[str, Term] = {}
        #: Live nodes that were not in touch with their last coordinator until it ended.
        self._unsure: dict[str, None] = {}
        #: By live node, the processes whose place it has taken.
        self._replaces: dict[str, tuple[str, ...]] = {}
        #: From when on refused connections count for agents that were started again.
        self._tried_at = float("inf")
        #: Nodes that are surely gone: they left, or their host says that their process is not there.
        self.dead: dict[str, None] = {}
        #: Nodes that fell silent while they were members here: they may follow another coordinator.
        self._silent: dict[str, None] = {}
        #: Whether sure deaths count here, and this coordinator was never late since: it sealed the last round, or found
        #: every member here or dead in time.
        self._sure_here = False
        #: Until when sure deaths count for a coordinator that took over; later, another one may have sealed.
        self.sure_until = float("-inf")
        #: Which members of the last round have accepted it.
        self._accepted: dict[str, None] = {}
        #: Whether the workers count their steps, and whether they train in process: then a node's steps may be ones
        #: that it makes without the others, until they have taken its state.
        self._counts_steps = False
        self.in_process = False
        #: By member of the last round, the fewest steps that it has told in it, and which members have made more.
        self._steps: dict[str, int] = {}
        self._stepped: dict[str, None] = {}
        self._poll = 0
        #: The term that is asked for, and which nodes have answered the present poll.
        self._candidate: Term | None = None
        self._answered: dict[str, None] = {}
        #: Where the agents of the last round may carry the coordinator, in the order of succession.
        self.addresses: dict[str, str] = {}
        #: Those of them that were in earlier rounds only, which still count.
        self._former: dict[str, None] = {}

    # -- what is heard ----------------------------------------------------------------------------------------------

    def recall(self, memory: Memory, now: float) -> None:
        """Take in what the agent knows that carries this coordinator.

        Its own node may be the last one to join, and a node that was in no round the first: that one would begin anew.
        """
        self.addresses.update({heir.node: heir.address for heir in memory.heirs})
        self._take_in(memory.ballots)
        self._tried_at = now + TRIED_S
        self._hear_term(memory.term)

    def hear(self, name: str, pledge: Pledge, now: float) -> None:
        """Take in what a node says when it joins."""
        self._silent.pop(name, None)
        self.dead.pop(name, None)
        self._promised[name] = pledge.term
        mine = [ballot for ballot in pledge.ballots if ballot.mine]
        if pledge.ballots:
            self._tried_at = min(self._tried_at, now + TRIED_S)
        if pledge.replaces:
            self._replaces[name] = pledge.replaces
            for heir in pledge.heirs:
                self.addresses.setdefault(heir.node, heir.address)
        # What an agent that was started again knows of another launch does not hold up one that has begun.
        self._take_in(pledge.ballots if mine or not self._size else self._related(pledge.ballots))
        for ballot in mine:
            if ballot.round in self._members:
                self._members[ballot.round][name] = None
        if not mine or pledge.sure or any(ballot.term == self.term.number for ballot in mine):
            self._unsure.pop(name, None)
        else:
            self._unsure[name] = None
        self._counts_steps = self._counts_steps or pledge.counts_steps
        self.dead.update(dict.fromkeys(pledge.gone))
        self._hear_term(pledge.term)

    def _take_in(self, ballots: Iterable[Ballot]) -> None:
        related = dict.fromkeys(ballot.round for ballot in self._related(ballots))
        for ballot in ballots:
            if ballot.round not in related and self.begun_here and ballot.size <= self._size:
                continue  # from an earlier launch, which this one has replaced
            known = self._ballots if ballot.round in related else self._foreign
            before = known.get(ballot.round, ballot)
            firm, stepped = ballot.firm or before.firm, ballot.stepped or before.stepped
            known[ballot.round] = msgspec.structs.replace(ballot, mine=False, firm=firm, stepped=stepped)
            # A member that has not heard yet of its round has a vote in it all the same.
            self._members.setdefault(ballot.round, {}).update(dict.fromkeys(ballot.names))

    def _related(self, ballots: Iterable[Ballot]) -> list[Ballot]:
        """Return the rounds of this launch."""
        own = {launch: None for ballot in self._ballots.values() for launch in ballot.launches}
        return [ballot for ballot in ballots if not own or any(launch in own for launch in ballot.launches)]

    def hear_promise(self, name: str, poll: int, term: Term) -> None:
        """Take in the answer to a poll."""
        self._promised[name] = term
        self._hear_term(term)
        if poll == self._poll and self._candidate is not None and term == self._candidate:
            self._answered[name] = None

    def accept(self, name: str, round_: Round) -> bool:
        """Note that a member has accepted the present round; return whether others must hear that it is firm now."""
        if name in self._accepted or round_.id not in self._ballots:
            return False
        self._accepted[name] = None
        if len(self._accepted) != round_.size or not all(each in self._accepted for each in round_.places):
            return False
        had_others = len(self.ballots) > 1
        self._foreign = {each: ballot for each, ballot in self._foreign.items() if each not in self._absorbed}
        self._mark(round_.id, stepped=not self._counts_steps)
        return had_others

    def step(self, name: str, steps: int, round_: Round) -> bool:
        """Note how many steps a member has counted; return whether others must hear that one was made in this round."""
        self._counts_steps = self._counts_steps or steps > 0
        if steps > self._steps.setdefault(name, steps):
            self._stepped[name] = None
        self._steps[name] = min(self._steps[name], steps)  # fewer than before: its workers were started anew
        if not self.is_firm(round_.id) or self.is_stepped(round_.id) or not self._stepped:
            return False
        if self.in_process and len(self._stepped) < round_.size:
            return False
        had_others = len(self.ballots) > 1
        self._mark(round_.id, stepped=True)
        return had_others

    def _mark(self, round_id: RoundId, *, stepped: bool) -> None:
        """Note that a round is firm, and perhaps that a step was made in it; earlier rounds count no more then."""
        ballot = self._ballots[round_id]
        self._ballots[round_id] = msgspec.structs.replace(ballot, firm=True, stepped=stepped or ballot.stepped)
        self._ballots = {each.round: each for each in counting(self._ballots.values())}
        self._members = {each: self._members.get(each, {}) for each in (*self._ballots, *self._foreign)}
        named = {name: None for each in self.ballots for name in each.names}
        over = {name: None for name in self._former if name not in named}
        self._former = {name: None for name in self._former if name in named}
        self.addresses = {name: where for name, where in self.addresses.items() if name not in over}

    def see_spares(self, round_id: RoundId | None, spares: int) -> int:
        """Note how many nodes stand by while a round runs, and return it."""
        ballot = self._ballots.get(round_id) if round_id is not None else None
        if ballot is not None and spares > ballot.spares:
            self._ballots[ballot.round] = msgspec.structs.replace(ballot, spares=spares)
        return spares

    def is_firm(self, round_id: RoundId | None) -> bool:
        """Return whether all members are known to have accepted a round."""
        return round_id in self._ballots and self._ballots[round_id].firm

    def is_stepped(self, round_id: RoundId | None) -> bool:
        """Return whether the members of a round have made a step in it, as far as steps are counted."""
        return round_id in self._ballots and self._ballots[round_id].stepped

    def lose(self, name: str, *, silent: bool) -> None:
        """Forget a node that is not live any more; one that fell silent may follow another coordinator."""
        self._promised.pop(name, None)
        self._unsure.pop(name, None)
        self._replaces.pop(name, None)
        self._answered.pop(name, None)
        if silent:
            self._silent[name] = None

    def leave(self, name: str) -> None:
        """Note that a node has left for good."""
        self.dead[name] = None

    def is_late(self) -> None:
        """Note that this coordinator was stopped for so long that its nodes may have followed another one."""
        self._sure_here = False

    def _hear_term(self, term: Term) -> None:
        self.highest = max(self.highest, term.number)
        if self._candidate is not None and term != self._candidate and term.number >= self._candidate.number:
            self._candidate = None  # asked for again, with a higher number
        if 0 < self.term.number < term.number and term.leader != self.leader:
            self.deposed = True

    @property
    def heirs(self) -> tuple[Heir, ...]:
        """The agents that may carry the coordinator next, for a node that is in no round."""
        return tuple(Heir(name, where) for name, where in self.addresses.items())[:HEIRS_MAX]

    @property
    def polls(self) -> int:
        """How many polls there were."""
        return self._poll

    # -- what follows -----------------------------------------------------------------------------------------------

    @property
    def ballots(self) -> list[Ballot]:
        """The rounds that count."""
        return [*self._foreign.values(), *counting(self._ballots.values())]

    def may_seal(self, chosen: Collection[str], now: float) -> bool:
        """Return whether a round with these nodes may be sealed now."""
        if self.deposed:
            return False
        if any(self._is_another_s(name) for name in chosen):
            return False
        if not self._ballots:
            return True
        votes = [name for name in chosen if self._promised.get(name) == self.term]
        return self.term.number >= max(self.highest, 1) and self._is_quorum(votes, now)

    def poll(self, present: Collection[str], now: float) -> Elect | None:
        """Ask for the term that a seal needs, if those who are present would be a quorum; None if they are not."""
        if self.deposed or not self._is_quorum(present, now):
            return None
        if self._candidate is None:
            mine = self.term.number >= max(self.highest, 1) and not any(self._is_another_s(name) for name in present)
            self._candidate = self.term if mine else Term(self.highest + 1, self.leader)
            self.highest = self._candidate.number
            self._poll += 1
            self._answered = {}
        return Elect(self._poll, self._candidate)

    def _is_another_s(self, name: str) -> bool:
        """Whether a node follows another coordinator in a term that is not older than ours."""
        term = self._promised.get(name, Term())
        return term.leader not in ("", self.leader) and term.number >= max(self.term.number, 1)

    def poll_again(self) -> None:
        """Begin another poll, for a permission that must be newer than the last one."""
        self._candidate = None

    def is_polling(self, name: str) -> Elect | None:
        """Return what a node has not answered yet."""
        if self._candidate is None or name in self._answered or self.deposed:
            return None
        return Elect(self._poll, self._candidate)

    def concluded(self, present: Collection[str], now: float) -> bool:
        """Return whether the present poll has a quorum; its term is ours then."""
        if self._candidate is None or self.deposed:
            return False
        if not self._is_quorum([name for name in present if name in self._answered], now):
            return False
        self.term, self._candidate = self._candidate, None
        return True

    def awaits_proof(self, present: Collection[str], now: float) -> bool:
        """Return whether the fate of missing members is to be found out while it counts; it counts on if all is known.

        Workers may take longer to stop than another coordinator takes to seal a round without their node. But once all
        that live are here, and none of them follows another coordinator, no other can: the dead stay dead.
        """
        if self._sure_here or self.deposed or now > self.sure_until or not self._ballots:
            return False
        ballots = self.ballots
        if any(len(each.names) != each.size for each in ballots):
            return False
        named = {name: None for each in ballots for name in each.names}
        here = [name for name in named if name in present]
        latest = max(each.term for each in ballots)
        promised = [self._promised.get(name, Term()) for name in here]
        if any(term.number > latest and term.leader != self.leader for term in promised):
            return False  # to a coordinator that may have sealed a round with others
        if not here or any(name in self._unsure for name in here):
            return False
        self._sure_here = all(name in present or (name in self.dead and name not in self._silent) for name in named)
        return not self._sure_here

    def missing(self, present: Collection[str]) -> dict[str, str]:
        """Return the members whose fate would help to know, and where they listened."""
        named = {name: None for ballot in self.ballots for name in ballot.names}
        return {
            name: self.addresses[name]
            for name in named
            if name not in present and name not in self.dead and name not in self._silent and name in self.addresses
        }

    def dead_of(self, round_id: RoundId) -> tuple[list[str], str]:
        """Return the members of a round that are surely gone, and which one carried the coordinator."""
        ballot = self._ballots.get(round_id)
        if ballot is None:
            return [], ""
        return [name for name in ballot.names if name in self.dead], ballot.tie

    def is_settled(self, present: Collection[str], now: float) -> bool:
        """Return whether this coordinator has a term and a quorum of live nodes that follow it."""
        if self.deposed or not self.term.number:
            return False
        return self._is_quorum([name for name in present if self._promised.get(name) == self.term], now)

    def claim(self, present: Collection[str], now: float) -> Claim:
        """Say how good the claim of this coordinator is."""
        last = self.ballots[-1:]
        members = self._members.get(last[0].round, {}) if last else {}
        here = sum(1 for name in present if name in members)
        return Claim(self.term.number, self.is_settled(present, now), here, self.leader)

    def _is_quorum(self, nodes: Collection[str], now: float) -> bool:
        votes = Votes(
            nodes,
            [each for name in nodes for each in self._replaces.get(name, ())],
            [name for name in self.dead if name not in self._silent],
            self._sure_here or (now <= self.sure_until and not any(name in self._unsure for name in nodes)),
            now >= self._tried_at,
        )
        return has_quorum(self.ballots, self._members, votes, self.limits, self.rule)

    # -- a new round ------------------------------------------------------------------------------------------------

    def seal(self, round_id: RoundId, nodes: Iterable[Node], address_of: dict[str, str], spares: int = 0) -> Succession:
        """Note a round that is sealed now, and return what its members are told."""
        members = list(nodes)
        self.begun_here = self.begun_here or not self._ballots
        if not self.term.number:
            self.term = Term(self.highest + 1, self.leader)
        self.highest = self.term.number
        names = tuple(node.spec.node for node in members)
        carrier = next((node.spec.node for node in members if node.spec.hosts_coordinator), "")
        self._size = max(self._size, len(names))
        basis = self.ballots
        launches = dict.fromkeys(launch for each in reversed(basis) for launch in each.launches)
        # A node that was there once may come back, on the other side of a cut.
        replaced = {name: None for each in self._replaces.values() for name in each}
        once = {name: None for each in basis for name in each.names if name not in names and name not in replaced}
        spares = max([spares, len(once), *(each.size + each.spares - len(names) for each in basis)])
        ballot = Ballot(
            round_id,
            self.term.number,
            len(names),
            carrier,
            names if len(names) <= NAMES_MAX else (),
            launches=tuple(launches)[:LAUNCHES_MAX] or (round_id.nonce,),
            spares=spares,
        )
        self._ballots = {each.round: each for each in (*basis, ballot) if each.round not in self._foreign}
        self._absorbed = dict.fromkeys(self._foreign)
        self._members = {each.round: self._members.get(each.round, {}) for each in basis}
        self._members[round_id] = dict.fromkeys(names)
        for name in names:
            self._promised[name] = self.term
            self._unsure.pop(name, None)
        named = {name: None for each in (*basis, ballot) for name in each.names}
        self.dead = {name: None for name in self.dead if name in named}
        self._silent = {name: None for name in self._silent if name in named}
        self._accepted, self._steps, self._stepped = {}, {}, {}
        self._sure_here, self.sure_until, self._candidate = True, float("-inf"), None
        heirs = [Heir(name, address_of[name]) for name in names if name in address_of and name != carrier]
        if carrier in address_of:
            heirs.append(Heir(carrier, address_of[carrier]))
        told = tuple(heirs[:HEIRS_MAX])
        missed = [name for each in basis for name in each.names if name not in names and name not in self.dead]
        former = tuple(Heir(name, self.addresses[name]) for name in dict.fromkeys(missed) if name in self.addresses)
        self._former = dict.fromkeys(heir.node for heir in former)
        self.addresses = {heir.node: heir.address for heir in (*told, *heirs[-1:], *former)}
        return Succession(self.term, (*basis, ballot), told, tuple(self.dead), former)


def standby_address(node: Node, address: str) -> str:
    """Return where a node's agent would carry the coordinator; empty if it would not."""
    standby = node.spec.standby
    if not standby.startswith(":"):
        return standby
    return str(Endpoint(address, int(standby[1:])))
