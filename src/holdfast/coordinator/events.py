"""The events and effects of a run. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.coordinator.messages import (
    Beat,
    Close,
    Fail,
    Finish,
    Heir,
    Join,
    Leave,
    Memory,
    Promise,
    Replace,
    RoundId,
    Succession,
)
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
class NodeSaid:
    """A node that has joined sent this message."""

    node: str
    message: Beat | Fail | Replace | Finish | Leave | Close | Promise


@dataclass(frozen=True, slots=True)
class NodeDropped:
    """A node's connection is gone."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class SealAllowed:
    """The answer to `WantSeal`: at this moment a round may be sealed."""


@dataclass(frozen=True, slots=True)
class Leads:
    """This coordinator takes over; these are the agents of the last round, as its own agent knows them."""

    heirs: tuple[Heir, ...] = ()
    #: What the process before this one knew of the run, if it was in it.
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class NodeProbed:
    """The answer to `Probe`; `gone` if the node's host is alive and the node's process is not."""

    node: str
    gone: bool


RunEvent = NodeJoined | NodeSaid | NodeDropped | SealAllowed | Leads | NodeProbed | Tick


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
class Keep:
    """Make what the members of a new round are told durable before any effect behind this one is carried out."""

    succession: Succession


@dataclass(frozen=True, slots=True)
class DropRound:
    """Forget the store keys of a round that is over."""

    round: RoundId


@dataclass(frozen=True, slots=True)
class WantSeal:
    """A round is ready, and this coordinator must be allowed to seal it; answered by `SealAllowed`.

    The record has the round's number as reserved: whatever becomes of this coordinator, no other uses it.
    """

    record: RunRecord


@dataclass(frozen=True, slots=True)
class Probe:
    """Find out whether a node's process is surely gone; answered by `NodeProbed`."""

    node: str
    address: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A quorum of the run's nodes follows this coordinator at this moment; so runs under its guard may seal."""


@dataclass(frozen=True, slots=True)
class Deposed:
    """Another coordinator has taken over."""

    reason: str


RunEffect = Tell | Note | Save | Keep | DropRound | WantSeal | Probe | Confirmed | Deposed
