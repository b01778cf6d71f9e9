"""The protocol between a vault and its clients, and which vaults keep whose copies. Pure.

One request at a time on a connection. A state is written as `Begin`, blocks in any order, `Commit`; it is read block by
block. Every block carries its checksum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.checkpoint.checksums import BLOCK_BYTES
from holdfast.checkpoint.keys import Key
from holdfast.wire.frames import Codec, Message
from holdfast.wire.handshake import HANDSHAKE_TYPES

#: A block and the rest of its message.
FRAME_BYTES_MAX = BLOCK_BYTES + 4096
#: The name of the service in the handshake.
KIND = "vault"


class Name(Message, frozen=True, tag=10):
    """The key of a shard."""

    step: int
    origin: str
    world: int
    shard: int

    def key(self) -> Key:
        """Return it as a `Key`; raises `UsageError`."""
        return Key(self.step, self.origin, self.world, self.shard)


class Begin(Message, frozen=True, tag=11):
    """Start to write a state of this size."""

    name: Name
    nbytes: int


class Put(Message, frozen=True, tag=12):
    """A block of the state that is being written."""

    start: int
    data: bytes
    crc: int


class Commit(Message, frozen=True, tag=13):
    """All blocks were sent: make the state visible."""


class ListShards(Message, frozen=True, tag=14):
    """List the shards."""


class Read(Message, frozen=True, tag=15):
    """Read a range of a shard: at most a block."""

    name: Name
    start: int
    stop: int


class Drop(Message, frozen=True, tag=16):
    """Delete the copy of a shard."""

    name: Name


class Done(Message, frozen=True, tag=20):
    """The request is done."""


class Shards(Message, frozen=True, tag=21):
    """The shards that are here, each with its size."""

    shards: list[tuple[Name, int]]


class Block(Message, frozen=True, tag=22):
    """A part of a shard."""

    data: bytes
    crc: int


class Failed(Message, frozen=True, tag=23):
    """The request failed, for this reason; `gone` if the shard is no longer there."""

    reason: str
    gone: bool = False


def name_of(key: Key) -> Name:
    """Return a key in the form of the protocol."""
    return Name(key.step, key.origin, key.world, key.shard)


CODEC: Codec[Message] = Codec(
    *HANDSHAKE_TYPES, Begin, Put, Commit, ListShards, Read, Drop, Done, Shards, Block, Failed, service=KIND
)


@dataclass(frozen=True, slots=True, order=True)
class VaultAddress:
    """Where a vault is: its host, its name (unique in the run) and its address."""

    host: str
    name: str
    address: str


def choose_neighbours(me: str, vaults: Iterable[VaultAddress], copies: int = 1) -> list[VaultAddress]:
    """Return the vaults for the copies of vault `me`: those that follow it in the ring of all vaults, one per host.

    Two copies share a host, or one stays on `me`'s own host, only where there are not enough hosts.
    """
    ring = sorted(vaults)
    at = next((index for index, vault in enumerate(ring) if vault.name == me), None)
    own_host = ring[at].host if at is not None else None
    following = [vault for vault in ring[(at or 0) :] + ring[: (at or 0)] if vault.name != me]
    chosen: list[VaultAddress] = []
    hosts = {own_host}
    for vault in following:
        if vault.host not in hosts:
            hosts.add(vault.host)
            chosen.append(vault)
    # Then the rest, other hosts before our own.
    rest = [vault for vault in following if vault not in chosen]
    return [*chosen, *sorted(rest, key=lambda vault: vault.host == own_host)][:copies]
