"""How a run gets the votes that a seal needs where the coordinator can move. Pure.

It asks the nodes for their promise as soon as those that are there would be a quorum; while they are too few it finds
out what became of the others.
"""

from __future__ import annotations

from abc import abstractmethod

from holdfast.coordinator.events import Confirmed, Probe, RunEffect
from holdfast.coordinator.messages import Phase
from holdfast.coordinator.standing import Standing
from holdfast.coordinator.state import Node
from holdfast.wire.frames import Message

#: How often members that are missing for a quorum are looked for.
PROBE_S = 1.0


class Voting:
    """The part of a run that gathers votes."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        #: The live nodes, as the roster keeps them.
        self.nodes = nodes
        #: Whether another agent may take over, and so each seal needs a quorum; None until a node joins that says so.
        self.standing: Standing | None = None
        #: Whether a run under this one's guard waits for a quorum of this one's nodes.
        self._confirming = False
        self._probe_at: float | None = None
        #: Whether a round is ready but for the votes of a quorum.
        self._awaits_votes = False
        self._out: list[RunEffect] = []

    @abstractmethod
    def _tell(self, nodes: tuple[str, ...], message: Message) -> None:
        """Send a message to nodes."""

    def confirm(self, now: float) -> list[RunEffect]:
        """Find out whether a quorum follows this coordinator now, for a run under this one's guard: `Confirmed`."""
        if self.standing is not None and not self.standing.deposed and not self._confirming:
            self._confirming = True
            self.standing.poll_again()
            self._settle_confirmation(self.standing, now)
        effects, self._out = self._out, []
        return effects

    def _watch_deaths(self, standing: Standing, now: float) -> None:
        """Find out which members are surely dead while that counts, though the others may still stop their workers."""
        if standing.awaits_proof(self.nodes, now):
            self._probe(standing, now)

    def _settle_confirmation(self, standing: Standing, now: float) -> None:
        if not standing.ballots or standing.concluded(self.nodes, now):
            self._confirming = False
            self._out.append(Confirmed())
        else:
            self._ask_nodes(standing, tuple(self.nodes), now)

    def _has_votes(self, standing: Standing, now: float) -> bool:
        """Return whether a quorum follows this coordinator, asking for what is missing."""
        waiting = tuple(name for name, node in self.nodes.items() if node.phase is Phase.WAITING)
        standing.concluded(waiting, now)
        self._awaits_votes = not standing.may_seal(waiting, now)
        if self._awaits_votes:
            self._ask_nodes(standing, waiting, now)
        else:
            self._probe_at = None
        return not self._awaits_votes

    def _ask_nodes(self, standing: Standing, names_: tuple[str, ...], now: float) -> None:
        """Ask nodes for their promise, once; while they are too few, find out what became of the others."""
        before = standing.polls
        elect = standing.poll(names_, now)
        if elect is None:
            self._probe(standing, now)
        elif standing.polls != before:
            self._probe_at = None
            self._tell(names_, elect)

    def _probe(self, standing: Standing, now: float) -> None:
        """Find out which of the missing members are surely gone, every now and then."""
        if self._probe_at is None or now >= self._probe_at:
            self._probe_at = now + PROBE_S
            self._out += [Probe(name, address) for name, address in standing.missing(self.nodes).items()]
