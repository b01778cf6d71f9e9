"""Which survivors of a round may go on without the rest. Pure.

A round is sealed only with the votes of a quorum of the members of the round before it, so that of two halves at most
one goes on. The rounds that count are the last one that is *firm*, which means that all its members accepted it, and
all that were sealed after it. A vote is that of a live member.

There is a quorum in a round if

1. more than half of its members vote; or
2. exactly half of them do, and the one that carried the coordinator is among them; or
3. every member either votes or is surely dead, and all that vote were in touch with the coordinator until its process
   ended. A member is surely dead if its host is alive and says that no process listens where the member did; or if it
   left. Silence proves nothing.

With the rule `any` all survivors go on: that is for those who know that their network does not fall apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from holdfast.coordinator.messages import Ballot, RoundId

MAJORITY, ANY = "majority", "any"
RULES = (MAJORITY, ANY)
#: The members of a round are named up to this many; of larger rounds only a majority can go on.
NAMES_MAX = 16


def order(ballot: Ballot) -> tuple[int, int]:
    """Say which of two rounds is the later one."""
    return (ballot.term, ballot.round.number)


def counting(ballots: Iterable[Ballot]) -> list[Ballot]:
    """Return the rounds that count, of all that were heard of: the last firm one and those after it, in their order."""
    known = sorted(ballots, key=order)
    firm = [index for index, ballot in enumerate(known) if ballot.firm]
    return known[firm[-1] :] if firm else known


def has_quorum(
    ballots: Iterable[Ballot],
    members: Mapping[RoundId, Collection[str]],
    votes: Collection[str],
    dead: Collection[str],
    *,
    sure: bool,
    rule: str = MAJORITY,
) -> bool:
    """Return whether these votes are a quorum in every round that counts; `sure` if the third way is open."""
    return rule == ANY or all(
        _is_enough(ballot, members.get(ballot.round, ()), votes, dead if sure else None) for ballot in ballots
    )


def _is_enough(ballot: Ballot, members: Collection[str], votes: Collection[str], dead: Collection[str] | None) -> bool:
    voting = [name for name in votes if name in members]
    if 2 * len(voting) > ballot.size or (2 * len(voting) == ballot.size and ballot.tie in voting):
        return True
    if dead is None or len(ballot.names) != ballot.size:
        return False
    return all(name in voting or name in dead for name in ballot.names)
