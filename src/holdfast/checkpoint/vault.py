"""The vault: keeps copies of other hosts' states in this host's memory, and serves the states of this host.

It runs in the agent; the run id names its folder, which it removes when the agent ends. Workers of this host write
their states there directly and map what they need; workers of other hosts connect with the secret of the run. The
memory for other hosts is bounded, and so is the memory of one connection.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import ssl
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from holdfast.checkpoint.checksums import BLOCK_BYTES
from holdfast.checkpoint.keys import Key
from holdfast.checkpoint.memory import (
    FOLDER_VARIABLE,
    GENERATIONS,
    VAULT_VARIABLE,
    Shelf,
    make_folder,
    open_slot,
    remove_folder,
    run_folder,
    sweep,
    user_folder,
)
from holdfast.checkpoint.slots import Slot, SlotReader, scan
from holdfast.checkpoint.vault_messages import (
    CODEC,
    FRAME_BYTES_MAX,
    KIND,
    Begin,
    Block,
    Commit,
    Done,
    Drop,
    Failed,
    ListShards,
    Put,
    Read,
    Shards,
    VaultAddress,
    name_of,
)
from holdfast.errors import HoldfastError, InternalError, ShardMissingError, UsageError
from holdfast.facts import DEBUG, Fact, facts
from holdfast.private import PrivateFolder
from holdfast.store.api import Store
from holdfast.wire.address import Endpoint
from holdfast.wire.frames import Message
from holdfast.wire.listener import Limits, Listener, Peer
from holdfast.wire.loop import io_thread

#: The keys of the run's store with the addresses of vaults.
BOOK_PREFIX = "vaults/"
#: The share of the host's memory that copies for others may take.
MEMORY_SHARE = 0.25
OPEN_TIMEOUT_S = 10.0


@dataclass
class _Session:
    """The state of one connection."""

    slot: Slot | None = None
    key: Key | None = None
    nbytes: int = 0
    reader: SlotReader | None = None


class Vault:
    """One host's vault: `open` it, `announce` it, give `environ` to the workers, `close` it."""

    def __init__(
        self,
        run_id: str,
        *,
        secret: bytes,
        folder: Path | None = None,
        bytes_max: int | None = None,
        name: str | None = None,
        host: str | None = None,
    ) -> None:
        self.name = name or secrets.token_hex(8)
        self.host = host or socket.gethostname()
        self.folder = folder or run_folder(run_id)
        self.endpoint: Endpoint | None = None
        self._bytes_max = int(psutil.virtual_memory().total * MEMORY_SHARE) if bytes_max is None else bytes_max
        self._listener: Listener[Message] = Listener(
            self,
            CODEC,
            secret,
            Limits(frame_bytes_max=FRAME_BYTES_MAX, pending_bytes_max=4 * FRAME_BYTES_MAX),
            KIND,
            run=run_id,
            share=0.25,
        )
        self._shelves: dict[tuple[int, int], Shelf] = {}
        #: The folder, locked so that no sweep of another agent removes it.
        self._held: PrivateFolder | None = None

    # -- for the agent ---------------------------------------------------------------------------------------------

    def open(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> Endpoint:
        """Make the folder and listen; port 0 takes any free one. Raises `UnavailableError`."""
        self._held = make_folder(self.folder)
        if self.folder.parent == user_folder():
            sweep(self.folder.parent)
        self.endpoint = io_thread().wait(self._listener.open(endpoint, tls), OPEN_TIMEOUT_S)
        facts.publish(Fact("vault_opened", f"states are kept in {self.folder}", {"folder": str(self.folder)}, DEBUG))
        return self.endpoint

    def environ(self) -> dict[str, str]:
        """Return the variables for workers of this host."""
        return {FOLDER_VARIABLE: str(self.folder), VAULT_VARIABLE: self.name}

    def announce(self, store: Store, address: str) -> None:
        """Publish the address of this vault in the run's store; to be done in every round."""
        if self.endpoint is None:
            raise InternalError("a vault is announced once it is open")
        here = {"host": self.host, "address": str(Endpoint(address, self.endpoint.port))}
        store.set(f"{BOOK_PREFIX}{self.name}", json.dumps(here))

    def close(self, store: Store | None = None) -> None:
        """Stop, and remove all states of the run from this host."""
        if store is not None:
            with contextlib.suppress(HoldfastError):  # a vault that does not answer is skipped anyway
                store.delete_key(f"{BOOK_PREFIX}{self.name}")
        if self.endpoint is not None:
            io_thread().wait(self._close(), OPEN_TIMEOUT_S)
            self.endpoint = None
        remove_folder(self.folder)
        if self._held is not None:
            self._held.close()
            self._held = None

    async def _close(self) -> None:
        await self._listener.close()
        for shelf in self._shelves.values():
            shelf.close(remove=True)
        self._shelves = {}

    # -- called by the listener, on the loop's thread ----------------------------------------------------------------

    def opened(self, peer: Peer[Any]) -> None:
        """A worker has proven the secret."""
        peer.session = _Session()

    def received(self, peer: Peer[Any], message: Any) -> None:
        """Answer one request; an error is sent to the client."""
        try:
            answer = self._answer(peer.session, message)
        except ShardMissingError as gone:
            answer = Failed(str(gone), gone=True)
        except (UsageError, OSError) as error:
            answer = Failed(str(error))
        if answer is None:
            peer.refuse(f"a vault is not told {type(message).__name__}")
        else:
            peer.send(answer)

    def closed(self, peer: Peer[Any], reason: str) -> None:
        """Drop a state that was not committed."""
        del reason
        session: _Session = peer.session
        if session.slot is not None:
            session.slot.held = False
        session.slot = session.reader = None

    def _answer(self, session: _Session, message: Any) -> Message | None:
        match message:
            case Begin(name, nbytes):
                return self._begin(session, name.key(), nbytes)
            case Put(start, data, crc):
                return self._put(session, start, data, crc)
            case Commit():
                return self._commit(session)
            case ListShards():
                return Shards([(name_of(record.key), record.nbytes) for record in scan(self.folder).values()])
            case Read(name, start, stop):
                return self._read(session, name.key(), start, stop)
            case Drop(name):
                for shelf in self._shelves.values():
                    shelf.drop(name.key())
                return Done()
        return None

    # -- taking in -------------------------------------------------------------------------------------------------

    def _begin(self, session: _Session, key: Key, nbytes: int) -> Message:
        if nbytes < 0:
            raise UsageError(f"a state cannot have {nbytes} bytes")
        if session.slot is not None:
            session.slot.held = False
            session.slot = None
        shelf = self._shelves.get((key.shard, key.world))
        if shelf is None:
            # Memory is taken block by block as they arrive: announcing a large state costs nothing.
            shelf = self._shelves[key.shard, key.world] = Shelf(self.folder, slots_max=GENERATIONS, populate=False)
        others = sum(other.nbytes for other in self._shelves.values() if other is not shelf)
        if others + min(len(shelf.slots) + 1, GENERATIONS) * nbytes > self._bytes_max:
            raise UsageError(
                f"the vault on {self.host} holds {others} bytes for others and has no room for {nbytes} more "
                f"(its limit is {self._bytes_max})"
            )
        slot = shelf.take(nbytes)
        if slot is None:
            raise UsageError(f"shard {key.shard} is being written to the vault on {self.host} by another worker")
        slot.held = True
        session.slot, session.key, session.nbytes = slot, key, nbytes
        return Done()

    def _put(self, session: _Session, start: int, data: bytes, crc: int) -> Message:
        if session.slot is None or not 0 <= start <= start + len(data) <= session.nbytes:
            raise UsageError("a block arrived that belongs to no state")
        if zlib.crc32(data) != crc:
            raise UsageError(f"the block at {start} was damaged on its way")
        session.slot.write(start, data)
        return Done()

    def _commit(self, session: _Session) -> Message:
        if session.slot is None or session.key is None:
            raise UsageError("there is no state to commit")
        key = session.key
        shelf = self._shelves.get((key.shard, key.world))
        if shelf is None:
            raise UsageError(f"step {key.step} arrived too late: the vault already keeps newer ones")
        shelf.commit(session.slot, key, session.nbytes)
        session.slot.held = False
        session.slot = None
        self._forget_old(session.key)
        facts.publish(
            Fact(
                "checkpoint_kept",
                f"keeps shard {session.key.shard} of {session.key.world} of step {session.key.step} for another host",
                {**session.key.as_data(), "bytes": session.nbytes},
                DEBUG,
            )
        )
        return Done()

    def _forget_old(self, key: Key) -> None:
        """Delete shards that are no longer updated, once they are older than both generations of this one."""
        ours = self._shelves[key.shard, key.world].newest_first
        oldest = ours[-1].record if len(ours) >= GENERATIONS else None
        if oldest is None:
            return
        for name, shelf in list(self._shelves.items()):
            newest = next(iter(shelf.newest_first), None)
            if newest is not None and newest.record is not None and newest.record.key.step < oldest.key.step:
                shelf.close(remove=True)
                del self._shelves[name]

    # -- giving out ------------------------------------------------------------------------------------------------

    def _read(self, session: _Session, key: Key, start: int, stop: int) -> Message:
        if not 0 <= start <= stop or stop - start > BLOCK_BYTES:
            raise UsageError(f"a range of at most {BLOCK_BYTES} bytes can be read at once")
        if session.reader is None or session.reader.key != key:
            session.reader = open_slot(self.folder, key)
        try:
            data = bytes(session.reader.read(start, min(stop, session.reader.nbytes)))
            # Its owner may be writing the next state into it at this moment.
            session.reader.check()
            is_over = stop >= session.reader.nbytes
        except ShardMissingError:
            session.reader = None
            raise
        if is_over:  # a mapped state takes memory even after it was deleted
            session.reader = None
        return Block(data, zlib.crc32(data))


def read_book(store: Store) -> list[VaultAddress]:
    """Return the vaults of a run, as they have announced themselves."""
    found = []
    keys = store.list_keys(BOOK_PREFIX)
    for key, value in zip(keys, store.multi_get(keys) if keys else [], strict=True):
        told = json.loads(value)
        found.append(VaultAddress(str(told["host"]), key.removeprefix(BOOK_PREFIX), str(told["address"])))
    return found
