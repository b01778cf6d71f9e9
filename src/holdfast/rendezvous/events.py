"""The events of a member, from its owner and its connection, and its effects. Pure.

They are structs, which take a fraction of a dataclass's time: to make one for every beat, and to define them all when
an agent starts.
"""

from __future__ import annotations

import msgspec

from holdfast.coordinator.messages import Cause, Memory, Place, ToldFact
from holdfast.machine import Tick
from holdfast.wire.frames import Message

# -- events from the owner -----------------------------------------------------------------------------------


class Ask(msgspec.Struct, frozen=True):
    """No workers run here now; ask for a round. `port` is held for rank 0, `cause` says what ended the last round."""

    port: int
    deadline: float
    cause: Cause | None = None
    #: Chosen by the owner, to know the answer by.
    number: int = 0


class Fail(msgspec.Struct, frozen=True):
    """The round cannot continue because of a failure here."""

    cause: Cause


class Replace(msgspec.Struct, frozen=True):
    """A worker here failed and is being replaced; the round continues."""

    cause: Cause


class Finish(msgspec.Struct, frozen=True):
    """All workers here have finished well."""


class Leave(msgspec.Struct, frozen=True):
    """Leave the run; the others regroup at once."""

    reason: str


class Close(msgspec.Struct, frozen=True):
    """End the run for all nodes; `failed` if its work cannot be done any more."""

    reason: str
    failed: bool = False


class PeerCall(msgspec.Struct, frozen=True):
    """Ask every other node of the round something; each that answers is reported as `PeerReplied`."""

    call: int
    topic: str
    body: str


class PeerReply(msgspec.Struct, frozen=True):
    """Answer the call of another node."""

    caller: str
    call: int
    body: str


# -- events from the connection ------------------------------------------------------------------------------


class LinkUp(msgspec.Struct, frozen=True):
    """The connection stands; `fixed` if that coordinator never moves."""

    fixed: bool = False


class LinkDown(msgspec.Struct, frozen=True):
    """The connection broke, or could not be made. `final` when trying again cannot help."""

    reason: str
    final: bool = False
    #: Whether the other side's process ended the connection, or is not there; silence proves neither.
    ended: bool = False


class Heard(msgspec.Struct, frozen=True):
    """The coordinator sent this message."""

    message: Message


class Sought(msgspec.Struct, frozen=True):
    """A coordinator of the run at this address asks this node's agent whether it carries the run, too."""

    address: str


MemberEvent = (
    Ask | Fail | Replace | Finish | Leave | Close | PeerCall | PeerReply | LinkUp | LinkDown | Heard | Sought | Tick
)

# -- effects -------------------------------------------------------------------------------------------------


class OpenLink(msgspec.Struct, frozen=True):
    """Try to connect; the outcome is reported as `LinkUp` or `LinkDown`."""

    #: Where; empty for the address that the node was started with.
    address: str = ""
    #: Whether that is this node's own agent, which carries the coordinator from now on.
    lead: bool = False
    #: How long it may take; None for as long as the driver thinks right.
    timeout_s: float | None = None


class DropLink(msgspec.Struct, frozen=True):
    """Close the connection, or stop trying, once what was sent is out; not reported.

    The end of a `silent` one is not said for certain: heard late, it would look like the end of this process.
    """

    silent: bool = False


class Say(msgspec.Struct, frozen=True):
    """Send a message on the connection."""

    message: Message


class Remember(msgspec.Struct, frozen=True):
    """Keep this on disk before any effect behind this one is carried out; None once the run is over."""

    memory: Memory | None


class RoundSealed(msgspec.Struct, frozen=True):
    """The answer to the latest ask, told by its number: this node's place."""

    place: Place
    number: int = 0


class RoundBroken(msgspec.Struct, frozen=True):
    """The round that this node is in is over; stop its workers."""

    place: Place
    reason: str


class RunEnded(msgspec.Struct, frozen=True):
    """The run is over for this node: it was closed, or this node may not take part."""

    reason: str
    failed: bool
    rejected: bool = False
    cause: Cause | None = None
    crash_loop: bool = False


class AskFailed(msgspec.Struct, frozen=True):
    """The ask ran into its deadline, or the coordinator will never be reached; `final` where it turned us away."""

    reason: str
    connected: bool
    final: bool = False


class CoordinatorAway(msgspec.Struct, frozen=True):
    """The coordinator has been out of reach for a while, in the midst of a round; the sentence says what happens."""

    sentence: str


class CoordinatorBack(msgspec.Struct, frozen=True):
    """The coordinator answers again, after `CoordinatorAway`."""

    away_s: float


class NewcomersWait(msgspec.Struct, frozen=True):
    """The number of nodes that wait to be admitted to the running round."""

    nodes_waiting: int


class FactHeard(msgspec.Struct, frozen=True):
    """Something happened to the run; each fact is heard once, in order."""

    fact: ToldFact


class PeerCalled(msgspec.Struct, frozen=True):
    """Another node of the round asks something; answered with `PeerReply`."""

    caller: str
    call: int
    topic: str
    body: str


class PeerReplied(msgspec.Struct, frozen=True):
    """A node of the round, by its rank, has answered a `PeerCall`."""

    call: int
    group_rank: int
    body: str


MemberEffect = (
    OpenLink
    | DropLink
    | Say
    | Remember
    | RoundSealed
    | RoundBroken
    | RunEnded
    | AskFailed
    | CoordinatorAway
    | CoordinatorBack
    | NewcomersWait
    | FactHeard
    | PeerCalled
    | PeerReplied
)
