"""The events of a member, from its owner and its connection, and its effects. Pure.

What is made for every beat is a struct, which takes a fraction of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from holdfast.coordinator.messages import Cause, Memory, Place, ToldFact
from holdfast.machine import Tick
from holdfast.wire.frames import Message

# -- events from the owner -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ask:
    """No workers run here now; ask for a round. `port` is held for rank 0, `cause` says what ended the last round."""

    port: int
    deadline: float
    cause: Cause | None = None
    #: Chosen by the owner, to know the answer by.
    number: int = 0


@dataclass(frozen=True, slots=True)
class Fail:
    """The round cannot continue because of a failure here."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Replace:
    """A worker here failed and is being replaced; the round continues."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Finish:
    """All workers here have finished well."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave the run; the others regroup at once."""

    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """End the run for all nodes; `failed` if its work cannot be done any more."""

    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class PeerCall:
    """Ask every other node of the round something; each that answers is reported as `PeerReplied`."""

    call: int
    topic: str
    body: str


@dataclass(frozen=True, slots=True)
class PeerReply:
    """Answer the call of another node."""

    caller: str
    call: int
    body: str


# -- events from the connection ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The connection stands; `fixed` if that coordinator never moves."""

    fixed: bool = False


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The connection broke, or could not be made. `final` when trying again cannot help."""

    reason: str
    final: bool = False
    #: Whether the other side's process ended the connection, or is not there; silence proves neither.
    ended: bool = False


class Heard(msgspec.Struct, frozen=True):
    """The coordinator sent this message."""

    message: Message


@dataclass(frozen=True, slots=True)
class Sought:
    """A coordinator of the run at this address asks this node's agent whether it carries the run, too."""

    address: str


MemberEvent = (
    Ask | Fail | Replace | Finish | Leave | Close | PeerCall | PeerReply | LinkUp | LinkDown | Heard | Sought | Tick
)

# -- effects -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenLink:
    """Try to connect; the outcome is reported as `LinkUp` or `LinkDown`."""

    #: Where; empty for the address that the node was started with.
    address: str = ""
    #: Whether that is this node's own agent, which carries the coordinator from now on.
    lead: bool = False
    #: How long it may take; None for as long as the driver thinks right.
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class DropLink:
    """Close the connection, or stop trying, once what was sent is out; not reported.

    The end of a `silent` one is not said for certain: heard late, it would look like the end of this process.
    """

    silent: bool = False


class Say(msgspec.Struct, frozen=True):
    """Send a message on the connection."""

    message: Message


@dataclass(frozen=True, slots=True)
class Remember:
    """Keep this on disk before any effect behind this one is carried out; None once the run is over."""

    memory: Memory | None


@dataclass(frozen=True, slots=True)
class RoundSealed:
    """The answer to the latest ask, told by its number: this node's place."""

    place: Place
    number: int = 0


@dataclass(frozen=True, slots=True)
class RoundBroken:
    """The round that this node is in is over; stop its workers."""

    place: Place
    reason: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over for this node: it was closed, or this node may not take part."""

    reason: str
    failed: bool
    rejected: bool = False
    cause: Cause | None = None
    crash_loop: bool = False


@dataclass(frozen=True, slots=True)
class AskFailed:
    """The ask ran into its deadline, or the coordinator will never be reached; `final` where it turned us away."""

    reason: str
    connected: bool
    final: bool = False


@dataclass(frozen=True, slots=True)
class CoordinatorAway:
    """The coordinator has been out of reach for a while, in the midst of a round; the sentence says what happens."""

    sentence: str


@dataclass(frozen=True, slots=True)
class CoordinatorBack:
    """The coordinator answers again, after `CoordinatorAway`."""

    away_s: float


@dataclass(frozen=True, slots=True)
class NewcomersWait:
    """The number of nodes that wait to be admitted to the running round."""

    nodes_waiting: int


@dataclass(frozen=True, slots=True)
class FactHeard:
    """Something happened to the run; each fact is heard once, in order."""

    fact: ToldFact


@dataclass(frozen=True, slots=True)
class PeerCalled:
    """Another node of the round asks something; answered with `PeerReply`."""

    caller: str
    call: int
    topic: str
    body: str


@dataclass(frozen=True, slots=True)
class PeerReplied:
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
