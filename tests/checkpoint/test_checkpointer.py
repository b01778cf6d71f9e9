"""The checkpointer: training waits for the copy alone, and what goes wrong costs one checkpoint at most."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import (
    Checkpointer,
    Every,
    FlatSlice,
    MemoryTier,
    StorageTier,
    checkpointer,
    standard_tiers,
)
from holdfast.checkpoint.checksums import Checksums, checksum
from holdfast.checkpoint.choose import choose
from holdfast.checkpoint.keys import Entry, Key
from holdfast.errors import UsageError
from holdfast.facts import Fact
from holdfast.metrics.api import MetricData, MetricHandler, configure
from holdfast.metrics.platform import PlatformMetrics
from holdfast.train.state import NumpyState

np = pytest.importorskip("numpy")

PATIENCE_S = 240.0


class HeldTier:
    """A tier that takes a state only when the test lets it."""

    name = "storage"
    every = 1

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.kept: dict[Key, bytes] = {}
        self.error: Exception | None = None

    def save(self, key: Key, state: memoryview, sums: Checksums) -> None:
        self.entered.release()
        assert self.go.acquire(timeout=PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.kept[key] = bytes(state)

    def entries(self) -> list[Entry]:
        return [Entry(key, len(data), self.name) for key, data in self.kept.items()]

    def open(self, entry: Entry) -> Any:
        raise NotImplementedError

    def drop(self, key: Key) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


def kinds(told: list[Fact], *names: str) -> list[tuple[Any, ...]]:
    return [(fact.kind, *(fact.data[name] for name in names)) for fact in told]


def test_the_state_may_change_as_soon_as_save_returns(tmp_path: Path) -> None:
    """The slow tier sees what was there when it was saved, not what came after."""
    tier = HeldTier()
    weights = np.arange(100_000.0)
    checkpoints = Checkpointer([tier])
    checkpoints.save(1, {"w": weights})
    assert tier.entered.acquire(timeout=PATIENCE_S)
    weights[:] = -1
    tier.go.release()
    assert checkpoints.close()

    from holdfast.checkpoint import unpack

    (kept,) = tier.kept.values()
    np.testing.assert_array_equal(unpack(kept)["w"], np.arange(100_000.0))


def test_a_busy_tier_is_left_out_where_training_must_not_wait(tmp_path: Path, told: list[Fact]) -> None:
    tier = HeldTier()
    checkpoints = Checkpointer([MemoryTier(tmp_path), tier], when_busy="skip")
    state = {"w": np.ones(10)}
    checkpoints.save(1, state)
    assert tier.entered.acquire(timeout=PATIENCE_S)

    for step in range(2, 6):  # memory goes on
        assert checkpoints.save(step, state)
    tier.go.release()
    assert checkpoints.wait(PATIENCE_S)
    assert checkpoints.save(6, state)
    tier.go.release()
    assert checkpoints.close()

    assert [key.step for key in tier.kept] == [1, 6]
    skipped = [fact for fact in told if fact.kind == "checkpoint_failed"]
    assert [(fact.data["step"], fact.data["tier"], fact.data["skipped"]) for fact in skipped] == [
        (step, "storage", True) for step in range(2, 6)
    ]
    assert [fact.data["step"] for fact in told if fact.data.get("tier") == "memory"] == [1, 2, 3, 4, 5, 6]


def test_a_save_waits_for_the_one_before_it_by_default() -> None:
    tier = HeldTier()
    checkpoints = Checkpointer([tier])
    state = {"w": np.ones(10)}
    checkpoints.save(1, state)
    assert tier.entered.acquire(timeout=PATIENCE_S)
    second = threading.Thread(target=checkpoints.save, args=(2, state))
    second.start()

    assert second.is_alive()  # the first one was not released
    tier.go.release(2)
    second.join(PATIENCE_S)
    assert checkpoints.close()

    assert [key.step for key in tier.kept] == [1, 2]


def test_training_waits_for_a_tier_that_hangs_once_and_not_at_every_save(
    told: list[Fact], monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = HeldTier()
    checkpoints = Checkpointer([tier])
    state = {"w": np.ones(10)}
    checkpoints.save(1, state)
    assert tier.entered.acquire(timeout=PATIENCE_S)
    monkeypatch.setattr("holdfast.checkpoint.checkpointer.WAIT_S", 0.001)
    assert not checkpoints.save(2, state)
    monkeypatch.setattr("holdfast.checkpoint.checkpointer.WAIT_S", 1e6)
    assert not checkpoints.save(3, state)
    tier.go.release()
    assert checkpoints.wait(PATIENCE_S)
    tier.go.release()
    assert checkpoints.save(4, state)
    assert checkpoints.close()

    assert [key.step for key in tier.kept] == [1, 4]


def test_several_saves_may_be_on_their_way_if_memory_is_given_for_them() -> None:
    tier = HeldTier()
    checkpoints = Checkpointer([tier], in_flight=3)
    for step in range(3):
        assert checkpoints.save(step, {"w": np.full(10, step)})
    tier.go.release(3)
    assert checkpoints.close()

    assert [key.step for key in tier.kept] == [0, 1, 2]
    assert len(set(tier.kept.values())) == 3


def test_memory_is_used_again(tmp_path: Path) -> None:
    with Checkpointer([MemoryTier(tmp_path)]) as checkpoints:
        checkpoints.prepare({"w": np.ones(1000)})
        prepared = {path.name for path in tmp_path.iterdir()}
        for step in range(10):
            checkpoints.save(step, {"w": np.full(1000, step)})
        assert {path.name for path in tmp_path.iterdir()} == prepared
        checkpoints.save(10, {"w": np.ones(100_000)})  # too large for what there is

        assert len(list(tmp_path.iterdir())) == len(prepared) == 2


def test_a_tier_that_fails_is_told_and_the_others_go_on(tmp_path: Path, told: list[Fact]) -> None:
    broken = HeldTier()
    broken.name, broken.error = "broken", RuntimeError("out of order")
    broken.go.release(2)
    with Checkpointer([broken, StorageTier(tmp_path)]) as checkpoints:
        for step in (1, 2):
            assert checkpoints.save(step, {"w": np.ones(10)})

    assert kinds(told, "step", "tier") == [
        ("checkpoint_failed", 1, "broken"),
        ("checkpoint_written", 1, "storage"),
        ("checkpoint_failed", 2, "broken"),
        ("checkpoint_written", 2, "storage"),
    ]
    assert "step 1 could not be saved to broken: RuntimeError: out of order" in [fact.sentence for fact in told]


def test_a_bug_in_the_background_costs_one_save_and_is_told(
    tmp_path: Path, told: list[Fact], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_once(state: Any, checksum: Any = checkpointer.checksum) -> Checksums:
        monkeypatch.setattr(checkpointer, "checksum", checksum)
        raise RuntimeError("planted")

    monkeypatch.setattr(checkpointer, "checksum", raise_once)
    first = HeldTier()
    first.go.release(2)
    with Checkpointer([first], in_flight=2) as checkpoints:
        for step in (1, 2):
            assert checkpoints.save(step, {"w": np.ones(10)})
        assert checkpoints.wait(PATIENCE_S)

    assert [key.step for key in first.kept] == [2]
    [trouble] = [fact for fact in told if fact.kind == "internal_error"]
    assert "planted" in trouble.sentence
    assert "step 1 may be missing" in trouble.sentence


def test_what_cannot_be_written_is_the_callers_mistake(tmp_path: Path) -> None:
    with Checkpointer([StorageTier(tmp_path)]) as checkpoints, pytest.raises(UsageError, match=r"state\['file'\]"):
        checkpoints.save(1, {"file": io.BytesIO()})


class Recording(MetricHandler):
    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def emit(self, metric_data: MetricData) -> None:
        self.values[metric_data.name] = metric_data.value


def test_every_save_and_restore_is_measured(tmp_path: Path, told: list[Fact]) -> None:
    recording = Recording()
    configure(recording, "torchelastic")
    platform = PlatformMetrics()
    platform.start()
    try:
        with Checkpointer([MemoryTier(tmp_path / "m"), StorageTier(tmp_path / "s")]) as checkpoints:
            checkpoints.save(1, {"w": np.ones(1000)})
            checkpoints.wait()
            checkpoints.restore()
    finally:
        from holdfast.metrics.api import NullMetricHandler

        platform.stop()
        configure(NullMetricHandler(), "torchelastic")

    assert {
        "checkpoint.write_latency_ms",
        "checkpoint.memory.write_latency_ms",
        "checkpoint.storage.write_latency_ms",
        "checkpoint.read_latency_ms",
        "checkpoint.memory.read_latency_ms",
        "checkpoint.bytes",
    } <= set(recording.values)
    assert recording.values["checkpoint.bytes"] > 8000
    written = next(fact for fact in told if fact.kind == "checkpoint_written")
    assert set(written.data) == {
        "step",
        "origin",
        "world",
        "shard",
        "tier",
        "bytes",
        "duration_ms",
        "blocked_ms",
    }


def test_slow_tiers_may_be_saved_to_less_often(tmp_path: Path) -> None:
    with Checkpointer([MemoryTier(tmp_path / "m"), StorageTier(tmp_path / "s", every=5)]) as checkpoints:
        for step in range(1, 13):
            checkpoints.save(step, {"w": np.ones(10)})
        checkpoints.wait()

        assert [entry.key.step for entry in StorageTier(tmp_path / "s").entries()] == [5, 10]


def test_a_policy_says_when_to_save(tmp_path: Path) -> None:
    with Checkpointer([StorageTier(tmp_path, keep=None)], every=Every(steps=4)) as checkpoints:
        for step in range(10):
            if checkpoints.should_save(step):
                checkpoints.save(step, {"w": np.ones(3)})

    assert [entry.key.step for entry in StorageTier(tmp_path).entries()] == [4, 8]


# -- restoring --------------------------------------------------------------------------------------------------------


def test_nothing_is_restored_where_nothing_is(tmp_path: Path, told: list[Fact]) -> None:
    with Checkpointer([StorageTier(tmp_path / "none")]) as checkpoints:
        assert checkpoints.restore() is None

    assert kinds(told) == [("checkpoint_absent",)]


def test_the_newest_over_all_tiers_is_restored_with_the_reason(tmp_path: Path, told: list[Fact]) -> None:
    with Checkpointer([MemoryTier(tmp_path / "m"), StorageTier(tmp_path / "s", every=10)]) as checkpoints:
        for step in range(9, 13):
            checkpoints.save(step, {"w": np.full(5, step)})
    with Checkpointer([MemoryTier(tmp_path / "m"), StorageTier(tmp_path / "s")]) as checkpoints:
        near = checkpoints.restore()
    with Checkpointer([MemoryTier(tmp_path / "gone"), StorageTier(tmp_path / "s")]) as checkpoints:
        far = checkpoints.restore()

    assert near is not None
    assert far is not None
    assert (near.step, near.sentence) == (12, "step 12 is the newest complete checkpoint (memory)")
    assert (far.step, far.sentence) == (10, "step 10 is the newest complete checkpoint (storage)")
    assert far.data["from"] == ["storage"]
    np.testing.assert_array_equal(far.tree["w"], np.full(5, 10))


def test_a_torn_checkpoint_is_refused_and_the_one_before_it_taken(tmp_path: Path, told: list[Fact]) -> None:
    with Checkpointer([StorageTier(tmp_path)]) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"w": np.full(1000, step)})
        checkpoints.wait()
        (torn,) = (tmp_path / "step-000000000002").glob("*.state")
        data = bytearray(torn.read_bytes())
        data[-50] ^= 1
        torn.write_bytes(data)

        found = checkpoints.restore()

    assert found is not None
    assert found.step == 1
    assert "passed over: step 2 cannot be read" in found.sentence
    assert "checkpoint_refused" in [fact.kind for fact in told]


def test_another_copy_of_the_same_step_is_taken_before_an_older_one(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    first, second = (
        StorageTier(folder, name=name) for folder, name in zip(folders, ("storage", "second"), strict=True)
    )
    with Checkpointer([first, second]) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"w": np.full(1000, step)})
        checkpoints.wait()
        (torn,) = (folders[0] / "step-000000000002").glob("*.state")
        torn.write_bytes(b"?" * torn.stat().st_size)

        found = checkpoints.restore()

    assert found is not None
    assert (found.step, found.data["from"]) == (2, ["second"])


def test_only_a_later_step_is_restored_where_one_is_asked_for(tmp_path: Path, told: list[Fact]) -> None:
    with Checkpointer([StorageTier(tmp_path)]) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, {"w": np.ones(10) * step})
            checkpoints.wait()
        for path in tmp_path.glob("step-*3/*.state"):
            path.write_bytes(bytes(path.stat().st_size))

        found = checkpoints.restore(after=1)
        assert found is not None
        assert found.step == 2
        assert checkpoints.restore(after=2) is None

    assert told[-1].sentence.startswith("no checkpoint after step 2 is complete: step 3 cannot be read")


class SlowLister(HeldTier):
    """A tier that says what it has when the test lets it; or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def entries(self) -> list[Entry]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        assert self.go.acquire(timeout=PATIENCE_S)
        return [Entry(Key(9, "run.1", 1, 0), 1, self.name)]


def test_a_tier_that_does_not_say_in_time_what_it_has_is_left_out(tmp_path: Path, told: list[Fact]) -> None:
    tier = SlowLister()
    checkpoints = Checkpointer([MemoryTier(tmp_path), tier], origin="run.1")
    checkpoints._memory.save(Key(3, "run.1", 1, 0), memoryview(b"state"), checksum(memoryview(b"state")))

    for _ in range(2):
        group = checkpoints.latest(timeout=0.01).group
        assert group is not None
        assert group.step == 3
    assert tier.asked == 1, "it is not asked again before it has answered"
    assert [fact.sentence for fact in told if fact.kind == "checkpoint_refused"] == [
        "what storage holds cannot be used: it does not answer when it is asked what it has",
        "what storage holds cannot be used: it was asked what it has a while ago, and has not answered yet",
    ]
    tier.go.release(2)
    checkpoints._looks["storage"].join(PATIENCE_S)

    group = checkpoints.latest(timeout=PATIENCE_S).group
    assert group is not None
    assert group.step == 9
    tier.error = ValueError("not an error of files")
    assert checkpoints.latest(timeout=PATIENCE_S).group == choose(checkpoints.tiers[0].entries()).group
    assert told[-1].sentence == "what storage holds cannot be used: ValueError: not an error of files"
    checkpoints.close()


def test_a_state_object_is_saved_and_restored_in_place(tmp_path: Path) -> None:
    state = NumpyState(weights=np.arange(4.0), best=0.5)
    with Checkpointer([StorageTier(tmp_path)]) as checkpoints:
        checkpoints.save(7, state)
        checkpoints.wait()
        held = state.weights
        held[:] = 0
        state.best = 0.0

        found = checkpoints.restore(into=state)

    assert found is not None
    assert state.best == 0.5
    np.testing.assert_array_equal(held, np.arange(4.0))


# -- several workers --------------------------------------------------------------------------------------------------


def together(world: int, work: Callable[[int, Callable[[bytes], list[bytes]]], Any]) -> list[Any]:
    """Run one thread for each worker, with a collective between them."""
    barrier = threading.Barrier(world)
    board: dict[int, bytes] = {}
    results: list[Any] = [None] * world

    def run(rank: int) -> None:
        def gather(data: bytes) -> list[bytes]:
            board[rank] = data
            barrier.wait(PATIENCE_S)
            found = [board[other] for other in range(world)]
            barrier.wait(PATIENCE_S)
            return found

        try:
            results[rank] = work(rank, gather)
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            barrier.abort()
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def test_workers_on_several_hosts_take_the_newest_step_that_all_of_them_have(tmp_path: Path) -> None:
    """Each sees only the memory of its own host; rank 1 was killed before its last save."""

    def save(rank: int, _: Any) -> None:
        with Checkpointer([MemoryTier(tmp_path / str(rank), place=str(rank))]) as checkpoints:
            for step in range(4 if rank == 0 else 3):
                checkpoints.save(step, {"w": np.full(5, 10 * step + rank)}, shard=(rank, 2))

    def restore(rank: int, gather: Any) -> Any:
        tier = MemoryTier(tmp_path / str(rank), place=str(rank))
        with Checkpointer([tier], gather=gather) as checkpoints:
            found = checkpoints.restore(shard=(rank, 2))
            assert found is not None
            return found.step, found.tree["w"][0], found.sentence

    together(2, save)
    first, second = together(2, restore)

    assert first[:2] == (2, 20)
    assert second[:2] == (2, 21)
    assert "step 3 lacks shard 1 of 2" in first[2]


def test_where_one_worker_cannot_read_its_shard_all_take_the_step_before(tmp_path: Path) -> None:
    for rank in (1, 0):
        with Checkpointer([StorageTier(tmp_path)]) as checkpoints:
            for step in (1, 2):
                checkpoints.save(step, {"w": np.full(500, step)}, shard=(rank, 2))
    (torn,) = (tmp_path / "step-000000000002").glob("shard-00001*.state")
    torn.write_bytes(b"")

    def restore(rank: int, gather: Any) -> int:
        with Checkpointer([StorageTier(tmp_path)], gather=gather) as checkpoints:
            found = checkpoints.restore(shard=(rank, 2))
            assert found is not None
            return found.step

    assert together(2, restore) == [1, 1]


def test_workers_that_have_no_way_to_agree_are_told_what_to_do(tmp_path: Path) -> None:
    with Checkpointer([StorageTier(tmp_path)]) as checkpoints, pytest.raises(UsageError, match="gather"):
        checkpoints.restore(shard=(0, 2))


def test_the_usual_tiers_are_those_that_the_agent_has_arranged(tmp_path: Path) -> None:
    names = [tier.name for tier in standard_tiers(tmp_path, environ={"HOLDFAST_MEMORY_DIR": str(tmp_path)})]

    assert names == ["memory", "storage"]
    assert [tier.name for tier in standard_tiers(tmp_path, environ={})] == ["storage"]


def test_a_slice_keeps_its_place_where_the_world_is_the_same(tmp_path: Path) -> None:
    with Checkpointer([StorageTier(tmp_path)]) as checkpoints:
        checkpoints.save(1, {"w": FlatSlice(np.arange(4), 3, (10, 2))})
        checkpoints.wait()
        found = checkpoints.restore()

    assert found is not None
    piece = found.tree["w"]
    assert (piece.start, piece.shape) == (3, (10, 2))
    np.testing.assert_array_equal(piece.local, np.arange(4))


def test_two_tiers_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="same name"):
        Checkpointer([StorageTier(tmp_path / "a"), StorageTier(tmp_path / "b")])


@pytest.mark.parametrize("bad", [{"tiers": []}, {"in_flight": 0}, {"when_busy": "hope"}])
def test_settings_that_cannot_be_are_refused(tmp_path: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Checkpointer(**{"tiers": [StorageTier(tmp_path)], **bad})
