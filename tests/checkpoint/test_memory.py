"""Memory that outlives the worker: whole or not there, whenever its writer is killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import Checkpointer, MemoryTier
from holdfast.checkpoint.checksums import Checksums
from holdfast.checkpoint.keys import Key
from holdfast.checkpoint.memory import default_folder, open_slot, remove_folder, run_folder, sweep
from holdfast.checkpoint.slots import PAGE, Slot, SlotReader, scan
from holdfast.errors import ShardMissingError, UsageError
from holdfast.facts import Fact

np = pytest.importorskip("numpy")

SIZE = 300_000
NO_SUMS = Checksums(0, ())

#: Saves steps as it is told to, each with arrays full of its number, and hangs in the middle of the copy of one.
SAVER = """
import sys, threading
import numpy as np
from holdfast.checkpoint import Checkpointer, MemoryTier, snapshot

folder, first, hang_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
copied = snapshot._copy_piece
def copy_piece(target, source):
    if step == hang_at:
        half = len(source) // 2
        copied(target[:half], source[:half])
        print("half", flush=True)
        threading.Event().wait()
    copied(target, source)
snapshot._copy_piece = copy_piece
with Checkpointer([MemoryTier(folder)]) as checkpoints:
    for step in range(first, 1000):
        sys.stdin.readline()
        assert checkpoints.save(step, {"w": np.full(300_000, step), "step": step})
        print(step, flush=True)
"""


def tree(step: int) -> dict[str, Any]:
    return {"w": np.full(SIZE, step), "step": step}


def test_a_worker_killed_between_saves_leaves_its_last_state(tmp_path: Path, child: Callable[..., Any]) -> None:
    saver = child(SAVER, tmp_path, 0, -1)
    for step in range(3):
        saver.tell("go")
        saver.heard(expect=str(step))
    saver.kill()

    found = Checkpointer([MemoryTier(tmp_path)]).restore()

    assert found is not None
    assert found.step == 2
    np.testing.assert_array_equal(found.tree["w"], tree(2)["w"])


def test_a_worker_killed_in_the_middle_of_a_copy_leaves_the_one_before(
    tmp_path: Path, child: Callable[..., Any]
) -> None:
    saver = child(SAVER, tmp_path, 0, 4)
    for step in range(4):
        saver.tell("go")
        saver.heard(expect=str(step))
    saver.tell("go")
    saver.heard(expect="half")
    saver.kill()

    found = Checkpointer([MemoryTier(tmp_path)]).restore()

    assert found is not None
    assert found.step == 3
    np.testing.assert_array_equal(found.tree["w"], tree(3)["w"])


def test_successors_go_on_in_the_same_memory(tmp_path: Path, child: Callable[..., Any]) -> None:
    """However often a worker is killed, two generations are kept and no more memory is taken."""
    sizes = set()
    for life in range(4):
        saver = child(SAVER, tmp_path, 10 * life, 10 * life + 2)
        for step in range(10 * life, 10 * life + 2):
            saver.tell("go")
            saver.heard(expect=str(step))
        saver.tell("go")
        saver.heard(expect="half")
        saver.kill()
        sizes.add(len(list(tmp_path.glob("*.slot"))))

    assert sizes == {2}
    assert [record.key.step for record in scan(tmp_path).values()] == [31]


def test_what_is_restored_stays_as_it_was_while_the_next_states_are_saved(tmp_path: Path) -> None:
    with Checkpointer([MemoryTier(tmp_path)]) as checkpoints:
        for step in range(2):
            checkpoints.save(step, tree(step))
    with Checkpointer([MemoryTier(tmp_path)]) as checkpoints:
        found = checkpoints.restore()
        assert found is not None
        for step in range(2, 7):
            checkpoints.save(step, tree(step))

        np.testing.assert_array_equal(found.tree["w"], tree(1)["w"])
        found.tree["w"][:] = 99
        again = checkpoints.restore()

    assert again is not None
    assert again.step == 6
    np.testing.assert_array_equal(again.tree["w"], tree(6)["w"])


def test_after_an_older_step_was_restored_the_newer_one_is_void_and_the_restored_one_safe(tmp_path: Path) -> None:
    """Otherwise the next save would be written over the only state that all workers have."""
    tier = MemoryTier(tmp_path)
    with Checkpointer([tier]) as checkpoints:
        for step in range(3):
            checkpoints.save(step, tree(step))
    with Checkpointer([MemoryTier(tmp_path)]) as checkpoints:
        found = checkpoints.restore(step=1)
        assert found is not None

        assert [record.key.step for record in scan(tmp_path).values()] == [1]


def test_a_shard_of_a_world_that_is_no_more_goes_once_it_is_old(tmp_path: Path) -> None:
    old = MemoryTier(tmp_path)
    old.save(Key(5, "run.0", 4, 3), memoryview(b"x" * 100), NO_SUMS)
    old.close()
    new = MemoryTier(tmp_path)
    steps = []
    for step in (6, 7, 8):
        new.save(Key(step, "run.1", 2, 1), memoryview(b"y" * 100), NO_SUMS)
        steps.append(sorted(entry.key.step for entry in new.entries()))
    new.close()

    assert steps == [[5, 6], [6, 7], [7, 8]]


def test_a_living_owners_memory_is_not_taken_over(tmp_path: Path) -> None:
    slot = Slot.create(tmp_path, 100)
    slot.commit(Key(1, "run.0", 1, 0), 100)

    assert Slot.take_over(slot.path) is None
    slot.close(remove=False)
    taken = Slot.take_over(slot.path)
    assert taken is not None
    taken.close(remove=True)


@pytest.mark.parametrize("at", range(0, 60, 7))
def test_a_record_with_one_wrong_byte_is_no_record(tmp_path: Path, at: int) -> None:
    slot = Slot.create(tmp_path, 100)
    slot.commit(Key(1, "run.0", 1, 0), 100)
    page = bytearray(slot.path.read_bytes()[:PAGE])
    page[at] ^= 0x04
    with slot.path.open("r+b") as file:
        file.write(page)

    assert scan(tmp_path) == {}
    slot.close(remove=True)


def test_a_state_that_is_overwritten_while_it_is_read_is_gone(tmp_path: Path) -> None:
    key = Key(1, "run.0", 1, 0)
    slot = Slot.create(tmp_path, 100)
    slot.commit(key, 100)
    reader = SlotReader(slot.path, key)
    slot.wipe()
    slot.commit(Key(2, "run.0", 1, 0), 100)

    with pytest.raises(ShardMissingError, match="overwritten"):
        reader.check()
    with pytest.raises(ShardMissingError):
        open_slot(tmp_path, key)
    slot.close(remove=True)


def test_where_there_is_no_memory_left_the_save_fails_and_training_goes_on(
    tmp_path: Path, told: list[Fact], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot's memory is promised when it is made: a write to memory that is missing would kill the worker."""

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with Checkpointer([MemoryTier(tmp_path)]) as checkpoints:
        assert not checkpoints.save(1, tree(1))

    assert [fact.kind for fact in told] == ["checkpoint_failed"]
    assert "No space left" in told[0].sentence
    assert list(tmp_path.glob("*.slot")) == []


def test_a_run_has_a_folder_of_its_own_that_only_its_user_can_read() -> None:
    assert default_folder({"HOLDFAST_MEMORY_DIR": "/somewhere"}) == Path("/somewhere")
    folder = default_folder({"TORCHELASTIC_RUN_ID": "../up"})
    with pytest.raises(UsageError, match="might find another's"):
        default_folder({"TORCHELASTIC_RUN_ID": "none"})

    assert folder == run_folder("../up")
    assert folder.name == "%2E.%2Fup"


def test_folders_that_runs_left_behind_are_swept_unless_they_are_in_use(tmp_path: Path) -> None:
    for name in ("dead", "alive", "young"):
        (tmp_path / name).mkdir(mode=0o700)
    alive = Slot.create(tmp_path / "alive", 10)
    Slot.create(tmp_path / "dead", 10).close(remove=False)
    for path in [*tmp_path.rglob("*.slot"), tmp_path / "dead", tmp_path / "alive"]:
        os.utime(path, (1, 1))

    removed = sweep(tmp_path)

    assert [folder.name for folder in removed] == ["dead"]
    assert {folder.name for folder in tmp_path.iterdir()} == {"alive", "young"}
    alive.close(remove=True)
    remove_folder(tmp_path / "alive")
    assert {folder.name for folder in tmp_path.iterdir()} == {"young"}


def test_a_run_that_is_done_leaves_nothing_in_memory(tmp_path: Path) -> None:
    tier = MemoryTier(tmp_path / "holdfast" / "run")
    tier.save(Key(1, "run.0", 1, 0), memoryview(b"x"), NO_SUMS)
    tier.clear()

    assert list(tmp_path.iterdir()) == []
