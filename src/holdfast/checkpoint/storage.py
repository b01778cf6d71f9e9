"""Storage: the tier that survives everything; a folder, or any URL that fsspec knows.

    step-000000001000/
      shard-00000-of-00004.<origin>~<nonce>.state     the bytes
      shard-00000-of-00004.<origin>.json              the manifest: written last, names the bytes and their checksums

A shard is there when its manifest is, and a checkpoint when all its shards are. Nothing that was published is ever
written to again; a shard that is saved once more gets a new file, and its manifest changes in one move.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.backends import Backend, backend_of
from holdfast.checkpoint.checksums import BLOCK_BYTES, Checksums
from holdfast.checkpoint.choose import Group, group_up, oldest_kept
from holdfast.checkpoint.keys import Entry, Key, parse_key, parse_step
from holdfast.checkpoint.snapshot import PIECE_BYTES, for_each, fresh_memory
from holdfast.checkpoint.tier import KEEP, Shard
from holdfast.errors import CorruptShardError, ShardMissingError, UsageError
from holdfast.facts import facts

FORMAT = 1
MANIFEST, STATE = ".json", ".state"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a shard's manifest."""

    key: Key
    data: str
    sums: Checksums

    def to_bytes(self) -> bytes:
        """Write it as JSON."""
        told = {
            "holdfast": FORMAT,
            **self.key.as_data(),
            "data": self.data,
            "nbytes": self.sums.nbytes,
            "block_bytes": self.sums.block_bytes,
            "crc32": list(self.sums.crcs),
        }
        return json.dumps(told, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes, key: Key) -> Manifest:
        """Read it; raises `CorruptShardError` if it is not a whole manifest of this shard."""
        try:
            told: dict[str, Any] = json.loads(data)
            if told["holdfast"] > FORMAT:
                raise CorruptShardError(f"its manifest was written by a newer holdfast (format {told['holdfast']})")
            found = Key(told["step"], told["origin"], told["world"], told["shard"])
            sums = Checksums(told["nbytes"], tuple(told["crc32"]), told["block_bytes"])
            name = told["data"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptShardError(f"its manifest cannot be read ({type(error).__name__}: {error})") from None
        blocks = -(-sums.nbytes // sums.block_bytes) if sums.block_bytes > 0 else -1
        if found != key or "/" in name or not name.startswith(f"{key.stem}~") or blocks != len(sums.crcs):
            raise CorruptShardError("its manifest does not belong to it")
        return cls(found, name, sums)


class StorageTier:
    """Keeps shards in storage, the newest `keep` complete checkpoints of them; `keep=None` keeps all."""

    name = "storage"

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        keep: int | None = KEEP,
        every: int = 1,
        name: str = "storage",
        **options: Any,
    ) -> None:
        if keep is not None and keep < 1:
            raise UsageError(f"keep={keep} would keep nothing: keep at least 1, or None to keep all")
        self.name = name
        self.url = os.fspath(url)
        self.keep = keep
        self.every = every
        self._backend: Backend = backend_of(url, **options)

    def save(self, key: Key, state: memoryview, sums: Checksums) -> None:
        """Write a shard, then its manifest; the worker of shard 0 deletes old checkpoints."""
        manifest = f"{key.folder}/{key.stem}{MANIFEST}"
        before = self._data_of(key) if self._exists(key) else None
        data = f"{key.stem}~{secrets.token_hex(4)}{STATE}"
        self._backend.write(f"{key.folder}/{data}", state)
        self._backend.publish(manifest, Manifest(key, data, sums).to_bytes())
        if before is not None:
            self._backend.remove(f"{key.folder}/{before}")
        if key.shard == 0 and self.keep is not None:
            self._prune_quietly(self.keep)

    def entries(self, after: int | None = None) -> list[Entry]:
        """List every shard that has a manifest, or those of steps after `after`, the oldest first."""
        found: list[Entry] = []
        for step, folder in self._steps():
            if after is None or step > after:
                found += self._list_folder(folder)
        return found

    def open(self, entry: Entry) -> StoredShard:
        """Open a shard; raises `ShardMissingError` if there is none, `CorruptShardError` if it is not whole."""
        key = entry.key
        manifest = self._read_manifest(key)
        path = f"{key.folder}/{manifest.data}"
        size = self._backend.sizes(key.folder).get(manifest.data)
        if size is None:
            raise CorruptShardError(f"{path} is missing, though its manifest is there")
        if size != manifest.sums.nbytes:
            raise CorruptShardError(f"{path} has {size} bytes, not the {manifest.sums.nbytes} of its manifest")
        return StoredShard(self._backend, path, manifest.sums)

    def drop(self, key: Key) -> None:
        """Delete a shard: first its manifest, so that a partial shard is never visible."""
        self._backend.remove(f"{key.folder}/{key.stem}{MANIFEST}")
        for name in self._backend.sizes(key.folder):
            if name.startswith(f"{key.stem}~"):
                self._backend.remove(f"{key.folder}/{name}")
        self._backend.remove_folder(key.folder)

    def close(self) -> None:
        """Do nothing: there are no connections to close."""

    # -- looking after what is there -----------------------------------------------------------------------------------

    def prune(self, keep: int) -> list[int]:
        """Delete all steps older than the `keep` newest complete checkpoints; return them."""
        oldest = oldest_kept([entry.key for entry in self.entries()], keep)
        old = [(step, folder) for step, folder in self._steps() if oldest is not None and step < oldest]
        for _, folder in old:
            # Manifests first: a partial checkpoint is never visible.
            for name in sorted(self._backend.sizes(folder), key=lambda name: not name.endswith(MANIFEST)):
                self._backend.remove(f"{folder}/{name}")
            self._backend.remove_folder(folder)
        return [step for step, _ in old]

    def groups(self) -> list[Group]:
        """Return every checkpoint that has at least one shard, the newest first."""
        return group_up(self.entries())

    def unfinished(self) -> list[int]:
        """Return the steps that hold files but no shard."""
        return [step for step, folder in self._steps() if self._backend.sizes(folder) and not self._list_folder(folder)]

    def written_at(self, key: Key) -> float | None:
        """Return when a shard was published, in seconds since the epoch, where the storage can tell."""
        return self._backend.age_of(f"{key.folder}/{key.stem}{MANIFEST}")

    def verify(self, key: Key) -> None:
        """Read all of a shard; raises `CorruptShardError` or `ShardMissingError` if it is not as it was written."""
        shard = self.open(Entry(key, 0, self.name))
        for start in range(0, shard.nbytes, 16 * BLOCK_BYTES):
            shard.read(start, min(start + 16 * BLOCK_BYTES, shard.nbytes))

    # -- inside ----------------------------------------------------------------------------------------------------

    def _prune_quietly(self, keep: int) -> None:
        """Delete old checkpoints; a failure is reported and does not affect the save."""
        try:
            self.prune(keep)
        except OSError as error:
            facts.warn("checkpoint_prune_failed", f"old checkpoints in {self.url} could not be removed: {error}")

    def _steps(self) -> list[tuple[int, str]]:
        found = [(parse_step(name), name) for name in self._backend.folders()]
        return sorted((step, name) for step, name in found if step is not None)

    def _list_folder(self, folder: str) -> list[Entry]:
        sizes = self._backend.sizes(folder)
        entries = []
        for name in sorted(sizes):
            key = parse_key(folder, name.removesuffix(MANIFEST)) if name.endswith(MANIFEST) else None
            if key is not None:
                held = [size for other, size in sizes.items() if other.startswith(f"{key.stem}~")]
                entries.append(Entry(key, max(held, default=0), self.name, self.url))
        return entries

    def _exists(self, key: Key) -> bool:
        return f"{key.stem}{MANIFEST}" in self._backend.sizes(key.folder)

    def _data_of(self, key: Key) -> str | None:
        try:
            return self._read_manifest(key).data
        except (CorruptShardError, ShardMissingError):
            return None

    def _read_manifest(self, key: Key) -> Manifest:
        try:
            data = self._backend.read(f"{key.folder}/{key.stem}{MANIFEST}")
        except FileNotFoundError:
            raise ShardMissingError(
                f"{self.url} holds no shard {key.shard} of {key.world} of step {key.step}"
            ) from None
        return Manifest.from_bytes(data, key)


class StoredShard(Shard):
    """A shard in storage, open for reading; every block is checked on its way."""

    def __init__(self, backend: Backend, path: str, sums: Checksums) -> None:
        self._backend = backend
        self._path = path
        self._sums = sums
        #: The blocks that were read last: neighbouring small arrays share them.
        self._last: tuple[int, memoryview] = (0, memoryview(b""))

    @property
    def nbytes(self) -> int:
        return self._sums.nbytes

    def read(self, start: int, stop: int) -> memoryview:
        """Return a range of its bytes; raises `CorruptShardError` if they are not as they were written."""
        at, data = self._last
        if not (at <= start and stop <= at + len(data)):
            at, end = self._sums.around(start, stop)
            data = self._read_blocks(at, end)
            self._last = (at, data)
        return data[start - at : stop - at]

    def _read_blocks(self, start: int, stop: int) -> memoryview:
        """Read whole blocks and check each while it is still in the processor's cache."""
        data = fresh_memory(stop - start)
        piece_bytes = max(PIECE_BYTES // self._sums.block_bytes, 1) * self._sums.block_bytes

        def read_piece(at: int) -> None:
            piece = data[at - start : at - start + piece_bytes]
            count = self._backend.read_into(self._path, at, piece)
            if count < len(piece):
                raise CorruptShardError(f"it is cut off after {at + count} of {self.nbytes} bytes")
            self._sums.check(at, piece)

        try:
            for_each(range(start, stop, piece_bytes), read_piece, stop - start)
        except FileNotFoundError:
            raise ShardMissingError(f"{self._path} was removed while it was read") from None
        except CorruptShardError as torn:
            raise CorruptShardError(f"{self._path}: {torn}") from None
        return data

    def close(self) -> None:
        """Release the blocks that were read last."""
        self._last = (0, memoryview(b""))
