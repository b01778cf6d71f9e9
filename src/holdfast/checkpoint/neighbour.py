"""A neighbour's memory: the tier that survives a lost node. States go to the vaults of other hosts."""

from __future__ import annotations

import contextlib
import os
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from typing import TypeVar

from holdfast.checkpoint.checksums import BLOCK_BYTES, Checksums, blocks
from holdfast.checkpoint.keys import Entry, Key
from holdfast.checkpoint.memory import VAULT_VARIABLE
from holdfast.checkpoint.vault_messages import (
    CODEC,
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
    choose_neighbours,
    name_of,
)
from holdfast.errors import (
    ConnectionLostError,
    CorruptShardError,
    HoldfastError,
    PeerError,
    ShardMissingError,
    UnavailableError,
    UsageError,
)
from holdfast.facts import facts
from holdfast.wire.address import parse_endpoint
from holdfast.wire.channel import Channel
from holdfast.wire.frames import Message
from holdfast.wire.secret import find_secret
from holdfast.wire.tls import TlsFiles

CONNECT_TIMEOUT_S = 5.0
#: How long one block may take.
BLOCK_TIMEOUT_S = 60.0
#: How many blocks may be in flight at once.
WINDOW = 2
#: A vault that failed is not used for this long.
SHUN_S = 60.0

A = TypeVar("A", bound=Message)


class NeighbourTier:
    """Keeps copies of states in the vaults of other hosts.

    `book` returns all vaults; `me` is the one of this host, whose copies go to those that follow it.
    """

    name = "neighbour"

    def __init__(
        self,
        book: Callable[[], list[VaultAddress]],
        me: str = "",
        *,
        secret: bytes,
        run_id: str = "",
        tls: ssl.SSLContext | None = None,
        copies: int = 1,
        every: int = 1,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        if copies < 1:
            raise UsageError(f"copies={copies} would keep none: give at least 1")
        self._book = book
        self._me = me
        self._secret = secret
        self._run = run_id
        self._tls = tls
        self._copies = copies
        self.every = every
        self._on_close = on_close
        #: By vault and purpose: the background thread sends states, the caller's thread does all else.
        self._channels: dict[tuple[str, str], Channel[Message]] = {}
        self._shunned: dict[str, float] = {}

    def save(self, key: Key, state: memoryview, sums: Checksums) -> None:
        """Send a state to the next vaults; if one fails, the one after it is used."""
        troubles: list[str] = []
        kept = 0
        for vault in choose_neighbours(self._me, self._book(), copies=1 << 30):
            if kept == self._copies:
                break
            if self._shunned.get(vault.name, 0.0) > time.monotonic():
                troubles.append(f"{vault.host}: failed a moment ago")
                continue
            try:
                self._send(vault, key, state, sums)
                kept += 1
            except (HoldfastError, OSError) as error:
                self._part_with(vault, "send")
                if isinstance(error, UnavailableError | PeerError):
                    self._shunned[vault.name] = time.monotonic() + SHUN_S
                troubles.append(f"{vault.host}: {error}")
        if kept < self._copies:
            why = "; ".join(troubles) or "no other vault is there"
            raise UnavailableError(f"{kept} of {self._copies} copies could be placed with neighbours ({why})")

    def entries(self) -> list[Entry]:
        """List the shards of every vault but our own, whose folder we can read; one that does not answer is skipped."""
        found: list[Entry] = []
        for vault in self._book():
            if vault.name == self._me:
                continue
            try:
                told = self._ask(vault, ListShards(), Shards)
                found += [Entry(name.key(), nbytes, self.name, vault.name) for name, nbytes in told.shards]
            except (HoldfastError, OSError) as error:
                self._part_with(vault, "ask")
                facts.warn("vault_unreachable", f"the vault on {vault.host} does not answer: {error}", host=vault.host)
        return found

    def open(self, entry: Entry) -> RemoteShard:
        """Open a shard in the vault that the entry names."""
        vault = next((vault for vault in self._book() if vault.name == entry.place), None)
        if vault is None:
            raise ShardMissingError(f"the vault {entry.place} is no longer there")
        return RemoteShard(
            lambda start, stop: self._ask(vault, Read(name_of(entry.key), start, stop), Block), entry.nbytes, vault.host
        )

    def drop(self, key: Key) -> None:
        """Delete the copies in all vaults."""
        for vault in self._book():
            with contextlib.suppress(HoldfastError, OSError):
                self._ask(vault, Drop(name_of(key)), Done)

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            channel.close()
        self._channels = {}
        if self._on_close is not None:
            self._on_close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _send(self, vault: VaultAddress, key: Key, state: memoryview, sums: Checksums) -> None:
        """Send a state; one block is sent while the vault stores the one before."""
        assert sums.block_bytes == BLOCK_BYTES
        channel = self._channel(vault, "send")
        self._done(channel.ask(Begin(name_of(key), len(state)), _deadline()))
        unanswered = 0
        for (start, block), crc in zip(blocks(state), sums.crcs, strict=True):
            channel.send(Put(start, bytes(block), crc), _deadline())
            unanswered += 1
            if unanswered == WINDOW:
                self._done(channel.receive(_deadline()))
                unanswered -= 1
        for _ in range(unanswered):
            self._done(channel.receive(_deadline()))
        self._done(channel.ask(Commit(), _deadline()))

    @staticmethod
    def _done(answer: Message) -> None:
        if isinstance(answer, Failed):
            raise UnavailableError(answer.reason)

    def _ask(self, vault: VaultAddress, question: Message, expected: type[A]) -> A:
        try:
            answer = self._channel(vault, "ask").ask(question, _deadline())
        except ConnectionLostError:
            self._part_with(vault, "ask")
            raise
        if isinstance(answer, Failed):
            raise ShardMissingError(answer.reason) if answer.gone else UnavailableError(answer.reason)
        if not isinstance(answer, expected):
            self._part_with(vault, "ask")
            raise PeerError(f"the vault on {vault.host} answered {type(answer).__name__}")
        return answer

    def _channel(self, vault: VaultAddress, purpose: str) -> Channel[Message]:
        channel = self._channels.get((vault.name, purpose))
        if channel is None:
            channel = Channel.connect(
                parse_endpoint(vault.address),
                CODEC,
                self._secret,
                run=self._run,
                timeout_s=CONNECT_TIMEOUT_S,
                tls=self._tls,
            )
            self._channels[vault.name, purpose] = channel
        return channel

    def _part_with(self, vault: VaultAddress, purpose: str) -> None:
        channel = self._channels.pop((vault.name, purpose), None)
        if channel is not None:
            channel.close()


def _deadline() -> float:
    return time.monotonic() + BLOCK_TIMEOUT_S


class RemoteShard:
    """A shard in another host's memory, open for reading."""

    def __init__(self, ask: Callable[[int, int], Block], nbytes: int, host: str) -> None:
        self._ask = ask
        self._host = host
        self.nbytes = nbytes

    def read(self, start: int, stop: int) -> memoryview:
        """Fetch a range of its bytes, block by block."""
        data = bytearray(stop - start)
        for at in range(start, stop, BLOCK_BYTES):
            end = min(at + BLOCK_BYTES, stop)
            block = self._ask(at, end)
            if len(block.data) != end - at or zlib.crc32(block.data) != block.crc:
                raise CorruptShardError(f"the vault on {self._host} sent bytes that are not those of the state")
            data[at - start : end - start] = block.data
        return memoryview(data)

    def close(self) -> None:
        """Do nothing: the connection is shared and stays open."""


def from_environ(environ: Mapping[str, str] | None = None, *, copies: int = 1, every: int = 1) -> NeighbourTier | None:
    """Return the tier as this worker's agent has set it up, or None if it has no vault."""
    from holdfast.coordinator.machine import run_space
    from holdfast.store.environ import ENDPOINT_VARIABLE
    from holdfast.store.environ import from_environ as store_from_environ

    environ = os.environ if environ is None else environ
    me, endpoint = environ.get(VAULT_VARIABLE), environ.get(ENDPOINT_VARIABLE)
    if not me or not endpoint:
        return None
    from holdfast.checkpoint.vault import read_book

    run = environ.get("TORCHELASTIC_RUN_ID", "none")
    store = store_from_environ(environ, timeout=CONNECT_TIMEOUT_S).within(run_space(run))
    tls = TlsFiles.from_environ(environ)
    return NeighbourTier(
        lambda: read_book(store),
        me,
        secret=find_secret(environ=environ).key,
        run_id=run,
        tls=tls.client_context() if tls else None,
        copies=copies,
        every=every,
        on_close=store.close,
    )
