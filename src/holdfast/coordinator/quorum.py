"""Which survivors of a round may go on without the rest. Pure.

A round is sealed only with the votes of a quorum of the members of the round before it, so that of two halves at most
one goes on. The rounds that count are the last one that is *firm*, which means that all its members accepted it, and
all that were sealed after it. A vote is that of a live member. If no step was made in the firm round yet, one member of
the last round in which there was one must vote, too: those who joined later do not have the state of the training.

There is a quorum in a round if

1. more than half of its members vote; or
2. exactly half of them do, and the one that carried the coordinator is among them; or
3. every member votes, has been *replaced*, or is surely dead. A member is replaced if its process ended and an agent in
   its place, which knows what the member knew, votes. It is surely dead if its host is alive and says that no process
   listens where the member did, or if it left; silence proves nothing. Sure deaths count only if all that vote were in
   touch with the coordinator until its process ended, or if a member that was replaced tells what it knew; or
4. so many nodes of any kind are there that the others cannot be a round: MIN of them if MIN is more than half of MAX,
   else MAX, one of them a member. This counts on no more than MAX nodes being started, besides those that stood by.

With the rule `any` all survivors go on: that is for those who know that their network does not fall apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from holdfast.coordinator.messages import Ballot, RoundId

MAJORITY, ANY = "majority", "any"
RULES = (MAJORITY, ANY)
#: The members of a round are named up to this many; of larger rounds only a majority can go on.
NAMES_MAX = 16


@dataclass(frozen=True, slots=True)
class Votes:
    """Those that would go on, and what became of the others."""

    #: The nodes that vote, members or not.
    nodes: Collection[str]
    #: Members whose place one of them has taken.
    replaced: Collection[str] = ()
    #: Members that are surely dead.
    dead: Collection[str] = ()
    #: Whether all that vote were in touch with their coordinator until its process ended.
    sure: bool = False
    #: Whether refused connections had the time to be disproved by a coordinator that works.
    tried: bool = False


def order(ballot: Ballot) -> tuple[int, int]:
    """Say which of two rounds is the later one."""
    return (ballot.term, ballot.round.number)


def counting(ballots: Iterable[Ballot]) -> list[Ballot]:
    """Return the rounds that count, of all that were heard of, in their order.

    Those are the last firm one and all after it, and the last one in which a step was made.
    """
    known = sorted(ballots, key=order)
    if len(known) < 2:
        return known
    firm = max((index for index, ballot in enumerate(known) if ballot.firm), default=0)
    stepped = max((index for index, ballot in enumerate(known[: firm + 1]) if ballot.stepped), default=firm)
    return [*known[stepped : stepped + 1], *known[firm:]] if stepped < firm else known[firm:]


def has_quorum(
    ballots: Iterable[Ballot],
    members: Mapping[RoundId, Collection[str]],
    votes: Votes,
    limits: tuple[int, int],
    rule: str = MAJORITY,
) -> bool:
    """Return whether these votes are a quorum in every round that counts; `limits` are MIN and MAX."""
    known = list(ballots)
    return rule == ANY or all(
        (bool(voting) and _is_followed(ballot, known))
        or _leaves_too_few(ballot, voting, votes, *limits)
        or _is_enough(ballot, voting, votes)
        for ballot in known
        for voting in [[name for name in votes.nodes if name in members.get(ballot.round, ())]]
    )


def _is_followed(ballot: Ballot, known: list[Ballot]) -> bool:
    """Return whether a later round is firm: then this one counts only for the state that its members have."""
    return any(
        other.firm and order(other) > order(ballot) and any(launch in ballot.launches for launch in other.launches)
        for other in known
    )


def _leaves_too_few(ballot: Ballot, voting: list[str], votes: Votes, min_nodes: int, max_nodes: int) -> bool:
    most = max(max_nodes, ballot.size + ballot.spares)
    if 2 * min_nodes > most:
        return len(votes.nodes) >= min_nodes
    return bool(voting) and len(votes.nodes) >= most


def _is_enough(ballot: Ballot, voting: list[str], votes: Votes) -> bool:
    if 2 * len(voting) > ballot.size or (2 * len(voting) == ballot.size and ballot.tie in voting):
        return True
    replaced = [name for name in votes.replaced if name in ballot.names]
    if len(ballot.names) != ballot.size or not (voting or replaced):
        return False
    counts_dead = votes.sure or (bool(replaced) and votes.tried)
    return all(name in voting or name in replaced or (counts_dead and name in votes.dead) for name in ballot.names)
