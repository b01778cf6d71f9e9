"""Steps of several workers in threads, on a real coordinator: shares, sums, stragglers, checkpoints, notices."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.checkpoint import Checkpointer, Every, Notices, StorageTier
from holdfast.coordinator.query import ask_coordinator
from holdfast.errors import NotRetryableError, RoundOverError, UsageError
from holdfast.facts import facts
from holdfast.rendezvous import RendezvousParameters
from holdfast.train import machine
from holdfast.train.membership import Membership, worker_settings
from holdfast.train.run import Run, elastic
from holdfast.wire.address import Endpoint
from holdfast.wire.ports import HeldPort
from holdfast.wire.secret import find_secret

np = pytest.importorskip("numpy")

WAIT_S = 240.0


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))


@pytest.fixture
def port() -> Iterator[int]:
    held = HeldPort()
    yield held.port
    held.close()


def member(port: int, size: int) -> Membership:
    settings = worker_settings(size)
    return Membership(RendezvousParameters("holdfast", f"127.0.0.1:{port}", "steps", **settings))


def together(port: int, size: int, work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, range(size)))


@pytest.mark.parametrize("micro_batch", [0, 2], ids=["a share each", "micro-batches"])
@pytest.mark.parametrize("kind", ["array", "list", "tuple", "dict"])
def test_workers_without_a_sample_get_the_same_sum(port: int, micro_batch: int, kind: str) -> None:
    """Five samples for four workers: with a share of two each, the first worker has none."""
    make: dict[str, Callable[[Any], Any]] = {
        "array": lambda ones: ones,
        "list": lambda ones: [ones, ones[:3]],
        "tuple": lambda ones: (ones, ones[:3]),
        "dict": lambda ones: {"b": ones, "a": ones[:3]},
    }

    def work(_: int) -> Any:
        state = holdfast.NumpyState(used=np.zeros(5))
        with elastic(state, membership=member(port, 4)) as run:
            for step in run.steps(5, 5, micro_batch=micro_batch):
                with step:
                    for micro in step.micro_batches:
                        ones = np.zeros(5)
                        ones[list(micro.indices)] = 1
                        step.add(make[kind](ones))
                    total = step.total()
        return len(step.micro_batches), total

    results = together(port, 4, work)

    assert 0 in [share for share, _ in results], "one worker had nothing to do"
    for _, total in results:
        assert type(total) is type(make[kind](np.zeros(5)))
        first = total["b"] if kind == "dict" else total if kind == "array" else total[0]
        assert first.tolist() == [1.0] * 5


@pytest.mark.parametrize("make", [float, np.float32, np.asarray], ids=["float", "scalar", "array without dimensions"])
def test_plain_numbers_are_summed_beside_gradients(port: int, make: Callable[[float], Any]) -> None:
    """As a loss is, for one; also where some worker has nothing to bring."""

    def work(_: int) -> Any:
        with elastic(holdfast.NumpyState(used=np.zeros(1)), membership=member(port, 2)) as run:
            for step in run.steps(1, 1):
                with step:
                    for _micro in step.micro_batches:
                        step.add({"gradient": np.ones(3), "loss": make(2.5)})
                    total = step.total()
        return total

    for total in together(port, 2, work):
        assert (total["gradient"].tolist(), float(total["loss"])) == ([1.0] * 3, 2.5)


def test_a_sum_without_a_gradient_says_what_to_do(port: int) -> None:
    def work() -> None:
        with elastic(holdfast.NumpyState(), membership=member(port, 1)) as run:
            for step in run.steps(4, 2):
                with step:
                    step.total()

    with pytest.raises(UsageError, match=r"step\.add\(\)"):
        work()


def test_a_step_outside_of_with_is_refused(port: int) -> None:
    def work() -> None:
        with elastic(holdfast.NumpyState(), membership=member(port, 1)) as run:
            for _ in run.steps(4, 2):
                pass

    with pytest.raises(UsageError, match="with step"):
        work()


def test_an_error_of_the_steps_own_is_not_tried_again(port: int) -> None:
    tries = []

    def work() -> None:
        with elastic(holdfast.NumpyState(), membership=member(port, 1)) as run:
            for step in run.steps(4, 2):
                with step:
                    tries.append(step.number)
                    raise KeyError("a bug")

    with pytest.raises(KeyError):
        work()
    assert tries == [0]


def test_a_step_says_whether_it_counts(port: int) -> None:
    """One that is undone for a peer's sake comes again, and what stands behind the `with` can tell them apart."""
    with elastic(holdfast.NumpyState(total=np.zeros(1)), membership=member(port, 1)) as run:
        seen = []
        for step in run.steps(3, 1):
            with step:
                run.state.total += 1  # type: ignore[attr-defined]
                if len(seen) == 1:
                    raise RoundOverError("a peer is gone")
            seen.append((step.number, step.committed))

    assert seen == [(0, True), (1, False), (1, True), (2, True)]
    assert run.state.total.tolist() == [3.0]  # type: ignore[attr-defined]


def test_a_straggler_is_named_in_the_description_of_the_run(port: int) -> None:
    seen: list[str] = []
    looked = threading.Event()

    def look() -> None:
        where = Endpoint("127.0.0.1", port)
        report = ask_coordinator(where, find_secret().key, "steps", None, 10)
        seen.extend(node["note"] for run in report for node in run["nodes"] if node["note"])

    def work(number: int) -> None:
        state = holdfast.NumpyState(x=np.zeros(1))
        with elastic(state, membership=member(port, 2)) as run:
            for step in run.steps(10, 2, epochs=None):
                with step:
                    step.add(np.ones(1))
                    if number:
                        time.sleep(0.03)
                    state.x = state.x + step.total()
                if number == 0 and run.stragglers.slow is not None and not looked.is_set():
                    look()
                    if seen:
                        looked.set()
                        run.stop("a straggler was found")

    reasons: list[str] = []
    unlisten = facts.listen(
        lambda fact: reasons.append(fact.data["reason"]) if fact.kind == "training_stopped" else None
    )
    together(port, 2, work)
    unlisten()

    assert "keeps the others waiting" in seen[0]
    assert reasons == ["a straggler was found"]


def train_with(folder: Path, port: int, epochs: int, notices: Notices | None = None) -> tuple[Run, Any, list[int]]:
    state = holdfast.NumpyState(used=np.zeros(8))
    done = []
    with Checkpointer([StorageTier(folder)], every=Every(steps=1), origin="steps.1") as kept:
        with elastic(state, membership=member(port, 1), checkpoints=kept, notices=notices) as run:
            for step in run.steps(8, 2, micro_batch=2, epochs=epochs):
                with step:
                    ones = np.zeros(8)
                    ones[step.indices] = 1
                    step.add(ones)
                    state.used = state.used + step.total()
                    done.append(step.number)
        return run, state, done


def test_a_training_that_begins_goes_on_from_the_newest_checkpoint(port: int, tmp_path: Path) -> None:
    train_with(tmp_path / "kept", port, epochs=1)
    other = HeldPort()
    run, state, done = train_with(tmp_path / "kept", other.port, epochs=2)
    other.close()

    assert done == [4, 5, 6, 7]
    assert run.progress == 8
    assert state.used.tolist() == [2.0] * 8


def test_with_steps_all_workers_end_after_exactly_so_many(port: int) -> None:
    def work(rank: int) -> list[int]:
        done = []
        with elastic(holdfast.NumpyState(total=np.zeros(1)), membership=member(port, 2)) as run:
            for step in run.steps(steps=7):
                with step:
                    step.add(np.ones(1))
                    run.state.total = run.state.total + step.total()
                done.append(step.number)
            assert run.progress == 7
            assert run.state.total.tolist() == [14.0]
        return done

    assert together(port, 2, work) == [list(range(7))] * 2


def test_a_training_does_not_begin_anew_over_checkpoints_that_cannot_be_read(port: int, tmp_path: Path) -> None:
    train_with(tmp_path / "kept", port, epochs=1)
    for path in (tmp_path / "kept").rglob("*.state"):
        path.write_bytes(bytes(path.stat().st_size))
    other = HeldPort()

    with pytest.raises(NotRetryableError, match="none can be read"):
        train_with(tmp_path / "kept", other.port, epochs=1)
    other.close()


class Lister(StorageTier):
    """Counts how often it is asked what it has; may fail then."""

    def __init__(self, url: Path) -> None:
        super().__init__(url, keep=None)  # to delete old ones it would list them, too
        self.lists = 0
        self.fails = False

    def entries(self, after: int | None = None) -> list[Any]:
        self.lists += 1
        if self.fails:
            raise ValueError("the storage is not itself")
        return super().entries(after)


def lose_one(port: int, folder: Path, lost: int, *, fails: bool = False) -> tuple[list[int], list[float], int]:
    """Have one worker count and save a step that the other undoes, and then leave.

    Returns the steps of the worker that stays, its sum, and how often it looked for checkpoints after its first round.
    """
    summed = threading.Event()
    result: list[Any] = []

    def work(_: int) -> None:
        tier = Lister(folder)
        tried: list[int] = []
        stays, first = False, 0
        with (
            Checkpointer([tier], every=Every(steps=1), origin="steps.1") as kept,
            elastic(holdfast.NumpyState(total=np.zeros(1)), membership=member(port, 2), checkpoints=kept) as run,
        ):
            for step in run.steps(steps=4):
                if not tried:
                    stays, first = run.rank != lost, tier.lists
                tried.append(step.number)
                with step:
                    step.add(np.ones(1))
                    run.state.total = run.state.total + step.total()
                    if step.number == 1 and run.world_size == 2:
                        if stays:
                            assert summed.wait(WAIT_S)
                            tier.fails = fails
                            raise RoundOverError("the sum never arrived")
                        summed.set()
                if not stays and step.number == 1:
                    assert kept.wait(WAIT_S)
                    raise KeyError("it is gone")
            result.extend([tried, run.state.total.tolist(), tier.lists - first])

    def work_or_fail(number: int) -> None:
        with contextlib.suppress(KeyError):
            work(number)

    together(port, 2, work_or_fail)
    return result[0], result[1], result[2]


def test_a_step_that_only_a_checkpoint_has_is_not_done_again(port: int, tmp_path: Path) -> None:
    steps, total, lists = lose_one(port, tmp_path / "kept", lost=0)

    assert steps == [0, 1, 2, 3], "step 1 came again"
    assert total == [2.0 + 2.0 + 1.0 + 1.0]
    assert lists > 0


def test_where_the_one_that_writes_checkpoints_lives_storage_is_not_asked(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "LONG_WAIT_S", float("inf"))  # a busy machine may take long to form a round

    steps, total, lists = lose_one(port, tmp_path / "kept", lost=1)

    assert steps == [0, 1, 1, 2, 3]
    assert total == [2.0 + 1.0 + 1.0 + 1.0]
    assert lists == 0


def test_a_storage_that_fails_does_not_end_a_training_that_has_its_state(port: int, tmp_path: Path) -> None:
    steps, total, lists = lose_one(port, tmp_path / "kept", lost=0, fails=True)

    assert steps == [0, 1, 1, 2, 3]
    assert total == [2.0 + 1.0 + 1.0 + 1.0]
    assert lists > 0


def test_a_worker_that_is_told_to_leave_saves_first(port: int, tmp_path: Path) -> None:
    class Told(Notices):
        """Announces the end from the start."""

        def pending(self) -> Any:
            from holdfast.checkpoint.notices import Notice

            return Notice("the machine is needed elsewhere")

    run, _, done = train_with(tmp_path / "kept", port, epochs=1, notices=Told(signals=()))

    assert done == [0]
    assert run.progress == 1
    manifests = list((tmp_path / "kept").rglob("*.json"))
    assert manifests, "nothing was saved"
    assert all(json.loads(path.read_text()) for path in manifests)
