"""The first TorchElastic's checkpoints, by their old names and without their old holes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from holdfast.compat.torchelastic.checkpoint import (
    CheckpointUtil,
    FileSystemCheckpointManager,
    get_checkpoint_manager,
    set_checkpoint_manager,
)
from holdfast.errors import CorruptShardError, UsageError
from holdfast.facts import Fact, facts


@pytest.fixture
def told() -> Iterator[list[Fact]]:
    """Every fact that is published during the test."""
    found: list[Fact] = []
    stop = facts.listen(found.append)
    yield found
    stop()


class Counter:
    """A state that is one number."""

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def save(self, stream: IO[bytes]) -> None:
        stream.write(b"value ")
        stream.write(str(self.value).encode())

    def load(self, stream: IO[bytes]) -> None:
        self.value = int(stream.read().removeprefix(b"value "))

    def should_save_checkpoint(self, rank: int) -> bool:
        return True


class Broken(Counter):
    def save(self, stream: IO[bytes]) -> None:
        stream.write(b"half")
        raise RuntimeError("no more")


class Coordinator:
    """What `CheckpointUtil` asks a coordinator."""

    def __init__(self) -> None:
        self.barriers = 0

    def should_save_checkpoint(self) -> bool:
        return False

    def barrier(self) -> None:
        self.barriers += 1


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[FileSystemCheckpointManager]:
    found = FileSystemCheckpointManager(tmp_path)
    set_checkpoint_manager(found)
    yield found
    set_checkpoint_manager(None)


def write(manager: FileSystemCheckpointManager, data: bytes) -> None:
    checkpoint = manager.create_checkpoint()
    with checkpoint.open_output_stream("default") as stream:
        stream.write(data)
    checkpoint.commit()


def test_checkpoints_are_numbered_folders(manager: FileSystemCheckpointManager, tmp_path: Path) -> None:
    for number in range(3):
        write(manager, str(number).encode())

    latest = manager.get_latest_checkpoint()

    assert latest is not None
    assert latest.open_input_stream("default").read() == b"2"
    assert [each.open_input_stream("default").read() for each in manager.list_checkpoints()] == [b"2", b"1", b"0"]
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2"}
    assert manager.get_checkpoint(7) is None


def test_what_is_not_committed_does_not_count(manager: FileSystemCheckpointManager) -> None:
    write(manager, b"whole")
    half = manager.create_checkpoint()
    with half.open_output_stream("default") as stream:
        stream.write(b"half")

    assert len(manager.list_checkpoints()) == 1
    half.commit()
    half.commit()
    assert len(manager.list_checkpoints()) == 2
    with pytest.raises(UsageError, match="committed"):
        half.open_output_stream("more")
    half.discard()
    assert len(manager.list_checkpoints()) == 1


def test_a_torn_stream_is_refused(manager: FileSystemCheckpointManager, tmp_path: Path) -> None:
    write(manager, b"as it was")
    (tmp_path / "0" / "default").write_bytes(b"as it was not")
    latest = manager.get_latest_checkpoint()

    assert latest is not None
    with pytest.raises(CorruptShardError, match="not as it was written"):
        latest.open_input_stream("default")
    with pytest.raises(CorruptShardError, match="knows 'other'"):
        latest.open_input_stream("other")


@pytest.mark.parametrize("key", ["", "../x", ".hidden", "manifest.json"])
def test_a_key_is_a_plain_name(manager: FileSystemCheckpointManager, key: str) -> None:
    with pytest.raises(UsageError, match="cannot be a key"):
        manager.create_checkpoint().open_output_stream(key)


def test_rank_0_saves_and_loads_for_all(manager: FileSystemCheckpointManager, told: list[Fact]) -> None:
    coordinator = Coordinator()
    util = CheckpointUtil(coordinator)
    for rank in (0, 1):
        util.save_checkpoint(Counter(41), rank)

    fresh = [CheckpointUtil(coordinator).load_checkpoint(Counter(), rank).value for rank in (0, 1)]

    assert fresh == [41, 0]
    assert coordinator.barriers == 2
    assert [fact.kind for fact in told] == ["checkpoint_written", "checkpoint_read"]
    util.set_checkpoint_loaded()
    assert util.load_checkpoint(Counter(), 0).value == 0


def test_a_failed_save_is_told_and_leaves_nothing(
    manager: FileSystemCheckpointManager, tmp_path: Path, told: list[Fact]
) -> None:
    coordinator = Coordinator()
    CheckpointUtil(coordinator).save_checkpoint(Broken(), 0)

    assert [fact.kind for fact in told] == ["checkpoint_failed"]
    assert list(tmp_path.iterdir()) == []
    assert coordinator.barriers == 1


def test_a_torn_checkpoint_is_passed_over_for_the_one_before(
    manager: FileSystemCheckpointManager, tmp_path: Path
) -> None:
    util = CheckpointUtil(Coordinator())
    for value in (1, 2):
        util.save_checkpoint(Counter(value), 0)
    (tmp_path / "1" / "default").unlink()

    assert util.load_checkpoint(Counter(), 0).value == 1


def test_without_a_manager_nothing_is_done(tmp_path: Path) -> None:
    assert get_checkpoint_manager() is None
    util = CheckpointUtil(Coordinator())
    util.save_checkpoint(Broken(), 0)

    assert util.load_checkpoint(Counter(3), 0).value == 3
