"""What a member has promised, and what its vote counts for when the coordinator moves. Pure.

A member follows one coordinator in a term, and none of an older term. It accepts a term with the round that a
coordinator of that term seals, or by answering that coordinator's `Elect`.
"""

from __future__ import annotations

import msgspec

from holdfast.coordinator.messages import Ack, Ballot, Elect, Heir, Pledge, RoundId, Succession, Term

#: A member counts as in touch with its coordinator if a beat that it sent less than this share of a lease ago was
#: answered: the coordinator cannot have given it up by then.
_FRESH_LEASES = 0.8


class Allegiance:
    """One member's promises."""

    def __init__(self) -> None:
        self.term = Term()
        self.heirs: tuple[Heir, ...] = ()
        self._ballots: tuple[Ballot, ...] = ()
        #: Rounds that this member was in.
        self._mine: dict[RoundId, None] = {}
        #: When the coordinator of the last round was lost; None while it was not.
        self._lost_at: float | None = None
        #: Whether this node was not in touch with a coordinator until that one ended, since its last round began.
        self._doubts = False
        #: Nodes that have left, in the last coordinator's words.
        self.gone: tuple[str, ...] = ()
        self._spent = (0, 0)
        #: When beats were sent that have not been answered yet, by their number; and the newest that was.
        self._sent: dict[int, float] = {}
        self._answered_at = float("-inf")

    def pledge(self, now: float, sure_s: float) -> Pledge:
        """Return what a coordinator is told when this node joins; sure deaths count for `sure_s` after a loss."""
        sure = self._lost_at is not None and not self._doubts and now <= self._lost_at + sure_s
        ballots = tuple(msgspec.structs.replace(each, mine=each.round in self._mine) for each in self._ballots)
        return Pledge(self.term, ballots, sure, self.gone, self._spent)

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
        self.heirs, self._ballots = succession.heirs, succession.ballots
        known = {ballot.round for ballot in succession.ballots}
        self._mine = {each: None for each in (*self._mine, round_id) if each in known}
        self._lost_at, self._doubts, self.gone = None, False, succession.gone
        self._answered_at = now

    def say_beat(self, seq: int, now: float) -> None:
        """Note when a beat was sent."""
        self._sent[seq] = now

    def hear(self, ack: Ack, round_id: RoundId | None) -> None:
        """Take in the answer to a beat."""
        if (sent := self._sent.get(ack.seq)) is not None:
            self._answered_at = max(self._answered_at, sent)
            self._sent = {seq: when for seq, when in self._sent.items() if seq > ack.seq}
        self._spent = ack.spent
        if ack.firm:
            self._ballots = tuple(
                msgspec.structs.replace(each, firm=True) for each in self._ballots if each.round == round_id
            )

    def lose(self, now: float, lease_s: float, *, ended: bool) -> None:
        """Note that the connection is gone; `ended` if the coordinator's process ended it."""
        self._sent.clear()
        if self._lost_at is None:
            self._lost_at = now
        self._doubts = self._doubts or not ended or now > self._answered_at + _FRESH_LEASES * lease_s
