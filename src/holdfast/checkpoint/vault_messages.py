"""What is said between a vault and those who keep states there. Pure.

One question at a time on a connection. A state goes in as `Begin`, blocks in any order, `Commit`; it comes out block by
block. Every block carries its checksum.
"""

from __future__ import annotations

from holdfast.checkpoint.keys import Key
from holdfast.checkpoint.sums import BLOCK_BYTES
from holdfast.wire.frames import Codec, Message
from holdfast.wire.handshake import HANDSHAKE_TYPES

#: A block and what is said around it.
FRAME_BYTES_MAX = BLOCK_BYTES + 4096
#: What a vault says it is when it is asked who it is.
KIND = "vault"


class Name(Message, frozen=True, tag=10):
    """A shard's key."""

    step: int
    origin: str
    world: int
    shard: int

    def key(self) -> Key:
        """Return it as what the rest of the room uses; raises `UsageError` for what is no key."""
        return Key(self.step, self.origin, self.world, self.shard)


class Begin(Message, frozen=True, tag=11):
    """Make room for a state of so many bytes."""

    name: Name
    nbytes: int


class Put(Message, frozen=True, tag=12):
    """A part of the state that was begun."""

    start: int
    data: bytes
    crc: int


class Commit(Message, frozen=True, tag=13):
    """All of it is there."""


class ListShards(Message, frozen=True, tag=14):
    """Which shards are here?"""


class Read(Message, frozen=True, tag=15):
    """A range of a shard, please: at most a block."""

    name: Name
    start: int
    stop: int


class Drop(Message, frozen=True, tag=16):
    """Forget the copy of a shard."""

    name: Name


class Done(Message, frozen=True, tag=20):
    """It is done."""


class Shards(Message, frozen=True, tag=21):
    """The shards that are here, each with its size."""

    shards: list[tuple[Name, int]]


class Block(Message, frozen=True, tag=22):
    """A part of a shard."""

    data: bytes
    crc: int


class Failed(Message, frozen=True, tag=23):
    """It cannot be done, for this reason; `gone` where the shard is no longer here."""

    reason: str
    gone: bool = False


def name_of(key: Key) -> Name:
    """Return a key as it is said on the wire."""
    return Name(key.step, key.origin, key.world, key.shard)


CODEC: Codec[Message] = Codec(
    *HANDSHAKE_TYPES, Begin, Put, Commit, ListShards, Read, Drop, Done, Shards, Block, Failed, service=KIND
)
