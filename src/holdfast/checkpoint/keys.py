"""The name of one shard of a checkpoint, in memory, on the wire and as a file name. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from holdfast.errors import UsageError

STEP_MAX = 10**12 - 1
#: The shard of a worker that has the whole state.
ALONE = (0, 1)
SHARDS_MAX = 10**6
ORIGIN_CHARACTERS_MAX = 100
#: Length of the checksum that keeps ids apart that look the same as file names.
CHECKSUM_CHARACTERS = 32
_STEM = re.compile(r"shard-(\d{5,7})-of-(\d{5,7})\.([A-Za-z0-9_.=-]{1,100})")
_FOLDER = re.compile(r"step-(\d{12})")


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One worker's part of one checkpoint.

    `origin` says in which round of which run it was made. Shards make one checkpoint only with others of the same
    origin: a step that was done before and after a restart is never mixed from both.
    """

    step: int
    origin: str
    world: int
    shard: int

    def __post_init__(self) -> None:
        if not 0 <= self.step <= STEP_MAX:
            raise UsageError(f"a step is a number from 0 to {STEP_MAX}, not {self.step}")
        if not 0 <= self.shard < self.world <= SHARDS_MAX:
            raise UsageError(
                f"shard {self.shard} of {self.world} cannot be: shards count from 0 (at most {SHARDS_MAX})"
            )

    @property
    def folder(self) -> str:
        """The name of the folder that holds all shards of the step."""
        return f"step-{self.step:012d}"

    @property
    def stem(self) -> str:
        """The name of the shard's files, without their ending."""
        return f"shard-{self.shard:05d}-of-{self.world:05d}.{self.origin}"

    def as_data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"step": self.step, "origin": self.origin, "world": self.world, "shard": self.shard}


def parse_key(folder: str, stem: str) -> Key | None:
    """Return the key for a shard's folder and file name, or None if they are not ours."""
    step, names = _FOLDER.fullmatch(folder), _STEM.fullmatch(stem)
    if step is None or names is None:
        return None
    shard, world, origin = names.groups()
    if not 0 <= int(shard) < int(world) <= SHARDS_MAX:
        return None
    return Key(int(step[1]), origin, int(world), int(shard))


def parse_step(folder: str) -> int | None:
    """Return the step of a folder's name, or None if it is not ours."""
    found = _FOLDER.fullmatch(folder)
    return int(found[1]) if found else None


def make_origin(run_id: str, round_number: str) -> str:
    """Return the origin for a round of a run, as a valid and unique part of a file name."""
    text = f"{run_id}.{round_number}"
    clean = re.sub(r"[^A-Za-z0-9_.-]", "-", text)
    if clean != text or len(clean) > ORIGIN_CHARACTERS_MAX:
        checksum = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:CHECKSUM_CHARACTERS]
        clean = f"{clean[: ORIGIN_CHARACTERS_MAX - 1 - CHECKSUM_CHARACTERS]}={checksum}"
    return clean


@dataclass(frozen=True, slots=True)
class Entry:
    """A shard in a tier: its key, its size, the tier, and the place in words."""

    key: Key
    nbytes: int
    tier: str
    place: str = ""
