"""The events and effects of a run; structs because one of each is made for every beat of every node. Pure."""

from __future__ import annotations

import msgspec

from holdfast.coordinator.messages import (
    Beat,
    Close,
    Fail,
    Finish,
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


class NodeJoined(msgspec.Struct, frozen=True):
    """A `Join` arrived from `address`; `reached_as` is the coordinator's own address on that connection."""

    join: Join
    address: str
    reached_as: str = ""


class NodeSaid(msgspec.Struct, frozen=True):
    """A node that has joined sent this message."""

    node: str
    message: Beat | Fail | Replace | Finish | Leave | Close | Promise


class NodeDropped(msgspec.Struct, frozen=True):
    """A node's connection is gone."""

    node: str
    reason: str


class SealAllowed(msgspec.Struct, frozen=True):
    """The answer to `WantSeal`: at this moment a round may be sealed."""


class Leads(msgspec.Struct, frozen=True):
    """This coordinator takes over; `memory` is what its own agent knows of the run."""

    memory: Memory


class NodeProbed(msgspec.Struct, frozen=True):
    """The answer to `Probe`; `gone` if the node's host is alive and the node's process is not."""

    node: str
    gone: bool


RunEvent = NodeJoined | NodeSaid | NodeDropped | SealAllowed | Leads | NodeProbed | Tick


# -- effects -------------------------------------------------------------------------------------------------


class Tell(msgspec.Struct, frozen=True):
    """Send a message to nodes."""

    nodes: tuple[str, ...]
    message: Message


class Note(msgspec.Struct, frozen=True):
    """Publish a fact."""

    fact: Fact


class Save(msgspec.Struct, frozen=True):
    """Make the record durable before any effect behind this one is carried out."""

    record: RunRecord


class Keep(msgspec.Struct, frozen=True):
    """Make what the members of a new round are told durable before any effect behind this one is carried out."""

    succession: Succession


class DropRound(msgspec.Struct, frozen=True):
    """Forget the store keys of a round that is over."""

    round: RoundId


class WantSeal(msgspec.Struct, frozen=True):
    """A round is ready, and this coordinator must be allowed to seal it; answered by `SealAllowed`.

    The record has the round's number as reserved: whatever becomes of this coordinator, no other uses it.
    """

    record: RunRecord


class Probe(msgspec.Struct, frozen=True):
    """Find out whether a node's process is surely gone; answered by `NodeProbed`."""

    node: str
    address: str


class Confirmed(msgspec.Struct, frozen=True):
    """A quorum of the run's nodes follows this coordinator at this moment; so runs under its guard may seal."""


class Deposed(msgspec.Struct, frozen=True):
    """Another coordinator has taken over."""

    reason: str


RunEffect = Tell | Note | Save | Keep | DropRound | WantSeal | Probe | Confirmed | Deposed
