"""Storage: complete or invisible, checked on the way in and out, and never without the newest complete one."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.checksums import BLOCK_BYTES, checksum
from holdfast.checkpoint.keys import Entry, Key
from holdfast.checkpoint.storage import StorageTier
from holdfast.errors import CorruptShardError, ShardMissingError, UsageError

pytest.importorskip("fsspec")


@pytest.fixture(params=["path", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The same storage by path, by file:// and as an object store."""
    if request.param == "memory":
        import fsspec

        name = f"memory://{secrets.token_hex(4)}/run"
        yield name
        fsspec.filesystem("memory").store.clear()
    else:
        yield f"file://{tmp_path / 'run'}" if request.param == "file" else str(tmp_path / "run")


def save(tier: StorageTier, step: int, data: bytes = b"state", shard: int = 0, world: int = 1, run: str = "r.0") -> Key:
    key = Key(step, run, world, shard)
    tier.save(key, memoryview(data), checksum(memoryview(data)))
    return key


def read(tier: StorageTier, key: Key) -> bytes:
    shard = tier.open(Entry(key, 0, "storage"))
    return bytes(shard.read(0, shard.nbytes))


def data_file(folder: Path) -> Path:
    (found,) = folder.rglob("*.state")
    return found


def test_what_was_saved_is_listed_and_read_back(url: str) -> None:
    tier = StorageTier(url)
    keys = [save(tier, step, secrets.token_bytes(1000), shard, 2) for step in (5, 10) for shard in (0, 1)]

    again = StorageTier(url)

    assert [entry.key for entry in again.entries()] == keys
    assert [entry.nbytes for entry in again.entries()] == [1000] * 4
    assert [entry.key for entry in again.entries(after=5)] == keys[2:]
    assert len({read(again, key) for key in keys}) == 4


def test_nothing_is_listed_where_nothing_is(url: str) -> None:
    assert StorageTier(url).entries() == []
    assert StorageTier(url).groups() == []


def test_a_range_is_read_and_checked_by_its_blocks(url: str) -> None:
    data = secrets.token_bytes(2 * BLOCK_BYTES + 1000)
    tier = StorageTier(url)
    shard = tier.open(Entry(save(tier, 1, data), 0, "storage"))

    for start, stop in ((0, 10), (BLOCK_BYTES - 5, BLOCK_BYTES + 5), (2 * BLOCK_BYTES + 990, len(data)), (7, 7)):
        assert bytes(shard.read(start, stop)) == data[start:stop]


def test_a_shard_saved_again_replaces_the_first_in_one_move(url: str) -> None:
    tier = StorageTier(url)
    key = save(tier, 1, b"first")
    before = tier.open(Entry(key, 0, "storage"))
    save(tier, 1, b"second")

    assert read(tier, key) == b"second"
    assert len(tier.entries()) == 1
    with pytest.raises(ShardMissingError):
        before.read(0, 5)


def test_the_newest_complete_checkpoints_are_kept(url: str) -> None:
    tier = StorageTier(url, keep=2)
    for step in range(1, 6):
        save(tier, step)

    assert [entry.key.step for entry in tier.entries()] == [4, 5]


def test_an_incomplete_newer_step_does_not_push_out_the_newest_complete_one(url: str) -> None:
    tier = StorageTier(url, keep=1)
    for shard in (1, 0):
        save(tier, 1, shard=shard, world=2)
    for step in (2, 3, 4):
        save(tier, step, shard=0, world=2)

    assert [group.step for group in tier.groups() if group.is_complete] == [1]
    assert {entry.key.step for entry in tier.entries()} == {1, 2, 3, 4}


def test_a_shard_is_dropped_with_all_its_files(url: str) -> None:
    tier = StorageTier(url)
    key, other = save(tier, 1, run="run.1"), save(tier, 1, run="run.1.2")
    tier.drop(key)

    assert [entry.key for entry in tier.entries()] == [other]
    assert read(tier, other) == b"state"
    with pytest.raises(ShardMissingError):
        read(tier, key)


@pytest.mark.parametrize("where", [0, 4_000_000, BLOCK_BYTES + 1, -1])
def test_one_flipped_bit_is_found_and_named(tmp_path: Path, where: int) -> None:
    tier = StorageTier(tmp_path)
    key = save(tier, 1, bytes(BLOCK_BYTES + 100))
    file = data_file(tmp_path)
    data = bytearray(file.read_bytes())
    data[where] ^= 1
    file.write_bytes(data)

    with pytest.raises(CorruptShardError, match=r"shard-00000-of-00001.*damaged"):
        tier.verify(key)


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    tier = StorageTier(tmp_path)
    key = save(tier, 1, b"x" * 1000)
    os.truncate(data_file(tmp_path), 999)

    with pytest.raises(CorruptShardError, match="has 999 bytes, not the 1000"):
        read(tier, key)


def test_a_manifest_without_its_file_is_refused(tmp_path: Path) -> None:
    tier = StorageTier(tmp_path)
    key = save(tier, 1)
    data_file(tmp_path).unlink()

    with pytest.raises(CorruptShardError, match="is missing, though its manifest is there"):
        read(tier, key)


@pytest.mark.parametrize(
    "change",
    [
        lambda told: "{",
        lambda told: "[]",
        lambda told: json.dumps({**told, "step": 2}),
        lambda told: json.dumps({**told, "data": "../../etc/passwd"}),
        lambda told: json.dumps({**told, "crc32": []}),
        lambda told: json.dumps({**told, "block_bytes": 0}),
        lambda told: json.dumps({**told, "holdfast": 99}),
        lambda told: json.dumps({name: value for name, value in told.items() if name != "nbytes"}),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(tmp_path: Path, change: Callable[[Any], str]) -> None:
    tier = StorageTier(tmp_path)
    key = save(tier, 1)
    (manifest,) = tmp_path.rglob("*.json")
    manifest.write_text(change(json.loads(manifest.read_text())))

    with pytest.raises(CorruptShardError, match="manifest"):
        read(tier, key)


def test_other_peoples_files_are_left_alone(tmp_path: Path) -> None:
    tier = StorageTier(tmp_path, keep=1)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-abc").mkdir()
    for step in (1, 2):
        save(tier, step)

    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "step-abc", "step-000000000002"}


def test_keeping_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keep"):
        StorageTier(tmp_path, keep=0)


def test_an_unknown_scheme_is_refused_in_one_sentence() -> None:
    with pytest.raises(UsageError, match="cannot use 'nosuch://x' as storage"):
        StorageTier("nosuch://x")


# -- killed, full, crowded ---------------------------------------------------------------------------------------------

#: Saves step 1 to the end, then step 2, and hangs at a chosen moment of it.
SAVER = """
import os, sys, threading
from pathlib import Path
from holdfast.checkpoint import backends
from holdfast.checkpoint.keys import Key
from holdfast.checkpoint.storage import StorageTier
from holdfast.checkpoint.checksums import checksum

folder, moment = sys.argv[1:]
def hang(*_, **__):
    print("hangs", flush=True)
    threading.Event().wait()
def save(step):
    data = memoryview(bytes([step]) * 20_000_000)
    tier.save(Key(step, "r.0", 1, 0), data, checksum(data))
tier = StorageTier(folder, keep=1)
save(1)
if moment == "data":
    class Hanging(int):
        def __radd__(self, other):
            hang() if other else None
            return other + int(self)
    backends._WRITE_BYTES = Hanging(8_000_000)
elif moment == "fsync":
    os.fsync = hang
elif moment == "manifest":
    Path.replace = hang
elif moment == "prune":
    Path.unlink = hang
save(2)
"""


@pytest.mark.parametrize(("moment", "newest"), [("data", 1), ("fsync", 1), ("manifest", 1), ("prune", 2)])
def test_a_writer_killed_in_the_middle_leaves_whole_checkpoints_only(
    tmp_path: Path, child: Callable[..., Any], moment: str, newest: int
) -> None:
    saver = child(SAVER, tmp_path, moment)
    saver.heard(expect="hangs")
    saver.kill()

    tier = StorageTier(tmp_path, keep=1)
    found = tier.entries()

    assert max(entry.key.step for entry in found) == newest
    for entry in found:
        assert read(tier, entry.key) == bytes([entry.key.step]) * 20_000_000
    assert tier.unfinished() == ([] if moment == "prune" else [2])
    # Whatever is left over goes with the checkpoints that are older than what is kept.
    save(tier, 3)
    save(tier, 4)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000000000004"}


FULL = """
import resource, sys
from holdfast.checkpoint import Checkpointer, StorageTier
from holdfast.facts import facts
import numpy as np

kinds = []
facts.listen(lambda fact: kinds.append((fact.kind, fact.data["step"])))
with Checkpointer([StorageTier(sys.argv[1])]) as checkpoints:
    for step, size in enumerate([1000, 1_000_000, 1000]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        assert checkpoints.save(step, {"w": np.zeros(size, "u1")})
        checkpoints.wait()
print(kinds, flush=True)
"""


def test_a_full_disk_costs_that_checkpoint_and_nothing_else(tmp_path: Path, child: Callable[..., Any]) -> None:
    pytest.importorskip("numpy")

    heard = child(FULL, tmp_path).heard()

    assert heard == "[('checkpoint_written', 0), ('checkpoint_failed', 1), ('checkpoint_written', 2)]"
    assert [entry.key.step for entry in StorageTier(tmp_path).entries()] == [0, 2]
    assert StorageTier(tmp_path).unfinished() == []


CROWD = """
import sys
from holdfast.checkpoint.keys import Key
from holdfast.checkpoint.storage import StorageTier
from holdfast.checkpoint.checksums import checksum

folder, shard, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tier = StorageTier(folder, keep=2)
print("ready", flush=True)
sys.stdin.readline()
for step in range(12):
    data = memoryview(f"{step}.{shard}".encode() * 1000)
    tier.save(Key(step, "r.0", world, shard), data, checksum(data))
print("done", flush=True)
"""


def test_savers_of_different_shards_do_not_disturb_each_other(tmp_path: Path, child: Callable[..., Any]) -> None:
    savers = [child(CROWD, tmp_path, shard, 3) for shard in range(3)]
    for saver in savers:
        saver.heard(expect="ready")
    for saver in savers:
        saver.tell("go")
    for saver in savers:
        saver.heard(expect="done")

    tier = StorageTier(tmp_path, keep=2)
    complete = [group for group in tier.groups() if group.is_complete]
    assert complete[0].step == 11
    for shard in range(3):
        assert read(tier, Key(11, "r.0", 3, shard)) == f"11.{shard}".encode() * 1000


def test_savers_of_the_same_shard_leave_one_of_theirs_whole(tmp_path: Path, child: Callable[..., Any]) -> None:
    savers = [child(CROWD, tmp_path, 0, 1) for _ in range(3)]
    for saver in savers:
        saver.heard(expect="ready")
    for saver in savers:
        saver.tell("go")
    outcomes = [saver.end() for saver in savers]

    tier = StorageTier(tmp_path)
    assert 0 in outcomes
    assert read(tier, Key(11, "r.0", 1, 0)) == b"11.0" * 1000
