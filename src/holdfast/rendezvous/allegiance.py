"""What a member has promised, and what its vote counts for when the coordinator moves. Pure.

A member follows one coordinator in a term, and none of an older term. It accepts a term with the round that a
coordinator of that term seals, or by answering that coordinator's `Elect`. Both are kept on disk: an agent that is
started again in the same place knows what the one before it has promised.
"""

from __future__ import annotations

import msgspec

from holdfast.coordinator.messages import Ack, Ballot, Elect, Heir, Memory, Pledge, RoundId, Succession, Term
from holdfast.coordinator.quorum import counting

#: A member counts as in touch with its coordinator if a beat that it sent less than this share of a lease ago was
#: answered: the coordinator cannot have given it up by then.
_FRESH_LEASES = 0.8
#: So many processes that were in this node's place are remembered.
_REPLACED_MAX = 16


class Allegiance:
    """One member's promises; `memory` is that of the process in whose place this one was started."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.term = memory.term if memory is not None else Term()
        self.heirs: tuple[Heir, ...] = ()
        self._ballots: tuple[Ballot, ...] = memory.ballots if memory is not None else ()
        #: Members of earlier rounds that count, and where they were.
        self._former: tuple[Heir, ...] = ()
        #: The processes that this one replaces, as long as their votes are missed, and the agents that they knew.
        self._replaces: tuple[str, ...] = memory.nodes if memory is not None else ()
        self._known_heirs: tuple[Heir, ...] = memory.heirs if memory is not None else ()
        #: Rounds that this member was in.
        self._mine: dict[RoundId, None] = {}
        #: When the coordinator of the last round was lost; None while it was not.
        self._lost_at: float | None = None
        #: Whether this node was not in touch with a coordinator until that one ended, since its last round began.
        self._doubts = False
        #: Nodes that have left, in the last coordinator's words.
        self.gone: tuple[str, ...] = ()
        #: Whether the workers here have ever counted a step.
        self.counts_steps = False
        self._spent = (0, 0)
        #: When beats were sent that have not been answered yet, by their number; and the newest that was.
        self._sent: dict[int, float] = {}
        self._answered_at = float("-inf")

    def pledge(self, now: float, sure_s: float) -> Pledge:
        """Return what a coordinator is told when this node joins; sure deaths count for `sure_s` after a loss."""
        sure = self._lost_at is not None and not self._doubts and now <= self._lost_at + sure_s
        ballots = tuple(msgspec.structs.replace(each, mine=each.round in self._mine) for each in self._ballots)
        return Pledge(
            self.term, ballots, sure, self.gone, self._spent, self._replaces, self._known_heirs, self.counts_steps
        )

    def memory(self, node: str) -> Memory:
        """Return what must outlive this process, which is known by this name."""
        agents = self.agents or self._known_heirs
        return Memory((node, *self._replaces)[:_REPLACED_MAX], self.term, self._ballots, agents)

    @property
    def agents(self) -> tuple[Heir, ...]:
        """Where the members of all rounds that count are, or were."""
        return (*self.heirs, *self._former)

    def follows(self, term: Term) -> bool:
        """Return whether this node may follow a coordinator of this term."""
        return term.number > self.term.number or term == self.term

    def promise(self, elect: Elect) -> Term:
        """Promise to follow a term unless a higher one, or another coordinator in it, was promised before."""
        if self.follows(elect.term):
            self.term = elect.term
        return self.term

    def accept(self, round_id: RoundId, succession: Succession, now: float) -> None:
        """Accept a round, and with it its coordinator's term."""
        self.term = succession.term
        self.heirs, self._former, self._ballots = succession.heirs, succession.former, succession.ballots
        known = {ballot.round for ballot in succession.ballots}
        self._mine = {each: None for each in (*self._mine, round_id) if each in known}
        named = {name for ballot in succession.ballots for name in ballot.names}
        self._replaces = tuple(name for name in self._replaces if name in named)
        self._known_heirs = self.agents if self._replaces else ()
        self._lost_at, self._doubts, self.gone = None, False, succession.gone
        self._answered_at = now

    def say_beat(self, seq: int, now: float, steps: int = 0) -> None:
        """Note when a beat was sent, and whether the workers count steps."""
        self._sent[seq] = now
        self.counts_steps = self.counts_steps or steps > 0

    def hear(self, ack: Ack, round_id: RoundId | None) -> bool:
        """Take in the answer to a beat; return whether it changes what must outlive this process."""
        if (sent := self._sent.get(ack.seq)) is not None:
            self._answered_at = max(self._answered_at, sent)
            self._sent = {seq: when for seq, when in self._sent.items() if seq > ack.seq}
        self._spent = ack.spent
        known = next((each for each in self._ballots if each.round == round_id), None)
        if known is None:
            return False
        firm, stepped = known.firm or ack.firm, known.stepped or (ack.firm and ack.stepped)
        if (firm, stepped) == (known.firm, known.stepped) and ack.spares <= known.spares:
            return False  # as after almost every beat
        now = msgspec.structs.replace(known, firm=firm, stepped=stepped, spares=max(known.spares, ack.spares))
        before = self._ballots
        self._ballots = tuple(now if each.round == round_id else each for each in before)
        if ack.firm:
            self._ballots = tuple(counting(self._ballots))
            named = {name for each in self._ballots for name in each.names}
            self._former = tuple(heir for heir in self._former if heir.node in named)
        return self._ballots != before

    def lose(self, now: float, lease_s: float, *, ended: bool) -> None:
        """Note that the connection is gone; `ended` if the coordinator's process ended it."""
        self._sent.clear()
        if self._lost_at is None:
            self._lost_at = now
        self._doubts = self._doubts or not ended or now > self._answered_at + _FRESH_LEASES * lease_s


def after_seal(memory: Memory, succession: Succession) -> Memory:
    """Return what an agent knows that carries the coordinator and seals a round, before its own node hears of it."""
    term = max(succession.term, memory.term, key=lambda each: each.number)
    agents = (*succession.heirs, *succession.former)
    return Memory(memory.nodes, term, succession.ballots, agents)
