"""Where a member looks for the coordinator, and in which order. Pure.

It begins where it last found one, unless that one fell silent; then come the agents that take over, in their order. One
that fell silent is tried once more before this node's own agent carries the coordinator. An agent that does not carry
it answers where it follows one; the member looks there, and then goes on with its places. A node that has not been in a
round yet knows only what it was told while it waited: its own agent does not carry the coordinator, since it knows of
no round that counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.coordinator.messages import Heir, NodeSpec

#: The address that this node was started with; its driver knows it.
HOME = ""
#: How long a connection may take to be made while there are other places to look.
CONNECT_S = 1.0
#: The same for a coordinator that fell silent: where it is only this node that slept, it answers at once.
AGAIN_S = 0.4


class Search:
    """The places that one member has still to try."""

    def __init__(self, guide: str = HOME, known: tuple[str, ...] = ()) -> None:
        #: This node's own agent, which knows where the coordinator is, or carries it.
        self.guide = guide
        #: Where the member looks at present, or is connected to.
        self.at = HOME
        #: The places that are left in this pass over all of them, and those where it has looked.
        self._left: list[str] = []
        self._tried: dict[str, None] = {}
        #: The agents that take over; those of the process before this one until there are others.
        self._heirs = known
        #: Where a coordinator was that asked for this node.
        self._hint = HOME
        #: The place of the coordinator that fell silent last; it is not waited for long.
        self._again: str | None = None

    def learn(self, heirs: Sequence[Heir], own: NodeSpec) -> None:
        """Take over the order of succession; one of the heirs may be this node's own agent."""
        self._heirs = tuple(heir.address for heir in heirs)
        self.guide = next((heir.address for heir in heirs if heir.node == own.node), own.standby)

    def suggest(self, heirs: Sequence[Heir]) -> None:
        """Take over where the coordinator may be carried next, for a node that waits."""
        self._heirs = tuple(heir.address for heir in heirs)

    def be_sought(self, address: str) -> None:
        """Note where a coordinator is that looks for this node, too; it is tried after all other places."""
        self._hint = address

    @property
    def leads(self) -> bool:
        """Whether the place where the member looks is its own agent."""
        return self.at != HOME and self.at == self.guide

    def begin(self, *, silent: bool) -> None:
        """Look for the coordinator: it is gone, or has fallen silent."""
        self._start_pass(here_first=not silent)
        self._again = None
        if silent and self.guide in self._left and self.guide != self.at:
            self._again = self.at
            self._left.remove(self.at)
            self._left.insert(self._left.index(self.guide), self.at)
        self._look_at(self._left[0])

    @property
    def connect_s(self) -> float | None:
        """How long a connection may take to be made; None for as long as the driver thinks right."""
        if not self.is_elsewhere:
            return None
        return AGAIN_S if self.at == self._again else CONNECT_S

    def was_tried(self, address: str) -> bool:
        """Return whether the member has looked at an address in this pass."""
        return address in self._tried

    def go(self, address: str) -> None:
        """Look at an address that another agent has named, then at the places that are left."""
        self._look_at(address)

    def go_anew(self, address: str) -> None:
        """Look at an address that the coordinator has named, then everywhere."""
        self._start_pass(here_first=False)
        self._look_at(address)

    def fail(self) -> bool:
        """Note that no coordinator is where the member looked; return whether another place is left in this pass."""
        is_left = bool(self._left)
        if not is_left:
            self._start_pass(here_first=False)
        self._look_at(self._left[0])
        return is_left

    @property
    def is_elsewhere(self) -> bool:
        """Whether there is more than one place to look."""
        return bool(self._heirs or self.guide or self._hint) or self.at != HOME

    def _start_pass(self, *, here_first: bool) -> None:
        self._left, self._tried = self._places(here_first=here_first), {}

    def _look_at(self, address: str) -> None:
        self._left = [place for place in self._left if place != address]
        self._tried[address] = None
        self.at = address

    def _places(self, *, here_first: bool) -> list[str]:
        others = [each for each in (*self._heirs, self._hint, self.guide or self.at, HOME) if each != self.at]
        places = [self.at, *others] if here_first else [*others, self.at]
        return list(dict.fromkeys(places))
