"""What a run is told and what it answers with. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.coordinator.messages import Beat, Fail, Join, Replace, RoundId
from holdfast.coordinator.state import RunRecord
from holdfast.facts import Fact
from holdfast.machine import Tick
from holdfast.wire.frames import Message

# -- events --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A `Join` arrived from `address`; `reached_as` is the coordinator's own address on that connection."""

    join: Join
    address: str
    reached_as: str = ""


@dataclass(frozen=True, slots=True)
class NodeBeat:
    """A node gave proof of life."""

    node: str
    beat: Beat


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A node cannot go on with the round because of a failure."""

    node: str
    fail: Fail


@dataclass(frozen=True, slots=True)
class NodeReplacedWorker:
    """A worker of a node failed and is being replaced; its round goes on."""

    node: str
    replace: Replace


@dataclass(frozen=True, slots=True)
class NodeFinished:
    """A node's workers have all finished well."""

    node: str
    seq: int
    round: RoundId


@dataclass(frozen=True, slots=True)
class NodeLeaves:
    """A node leaves on purpose."""

    node: str
    seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeDropped:
    """A node's connection is gone."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class CloseAsked:
    """A node ends the run for all nodes."""

    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class SealAllowed:
    """The answer to `WantSeal`: at this moment a round may be sealed."""


RunEvent = (
    NodeJoined
    | NodeBeat
    | NodeFailed
    | NodeReplacedWorker
    | NodeFinished
    | NodeLeaves
    | NodeDropped
    | CloseAsked
    | SealAllowed
    | Tick
)


# -- effects -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to nodes."""

    nodes: tuple[str, ...]
    message: Message


@dataclass(frozen=True, slots=True)
class Note:
    """Publish a fact."""

    fact: Fact


@dataclass(frozen=True, slots=True)
class Save:
    """Make the record durable before any effect behind this one is carried out."""

    record: RunRecord


@dataclass(frozen=True, slots=True)
class DropRound:
    """Forget the store keys of a round that is over."""

    round: RoundId


@dataclass(frozen=True, slots=True)
class WantSeal:
    """A round is ready, and this coordinator must be allowed to seal it; answered by `SealAllowed`."""


RunEffect = Tell | Note | Save | DropRound | WantSeal
