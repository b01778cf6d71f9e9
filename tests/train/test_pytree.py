"""Trees of arrays: as a state that is undone, handed on and kept, and as gradients."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.errors import UsageError
from holdfast.rendezvous import RendezvousParameters
from holdfast.train.membership import Membership, worker_settings
from holdfast.train.run import elastic
from holdfast.train.shapes import arrays_of, blanks, describe, rebuild
from holdfast.wire.ports import HeldPort

np = pytest.importorskip("numpy")


class Moments(NamedTuple):
    """What an optimizer keeps, as optax does."""

    count: int
    first: Any
    second: Any


def make_state(kind: str, factor: float = 1.0) -> holdfast.PytreeState:
    if kind == "jax":
        array: Any = pytest.importorskip("jax.numpy", reason="needs JAX").asarray
    else:
        array = np.asarray
    params = {"dense": [array([factor, 2.0]), array([[3.0]])], "bias": (array(4.0), None)}
    return holdfast.PytreeState(params=params, moments=Moments(int(factor), {"b": array([factor])}, array([6])))


def numbers(state: holdfast.PytreeState) -> tuple[Any, ...]:
    dense, bias = state.params["dense"], state.params["bias"]
    return (*(array.tolist() for array in (*dense, bias[0])), bias[1], state.moments.count, state.moments.first["b"][0])


kinds = pytest.mark.parametrize("kind", ["numpy", "jax"])


@kinds
def test_a_step_that_failed_is_undone(kind: str) -> None:
    state = make_state(kind)
    before = numbers(state)
    mark = state.begin()
    if kind == "numpy":
        state.params["dense"][0] += 1
    state.moments = Moments(9, {"b": state.moments.first["b"] * 0}, state.moments.second)

    assert state.roll_back(mark)
    assert numbers(state) == before
    assert isinstance(state.moments, Moments)


@kinds
def test_another_worker_becomes_the_same(kind: str) -> None:
    """The arrays travel, what they hang on does not: a named tuple stays one."""
    stream = io.BytesIO()
    mine, other = make_state(kind), make_state(kind, factor=7.0)
    mine.save(stream)
    stream.seek(0)
    other.load(stream)

    assert numbers(other) == numbers(mine)
    assert isinstance(other.moments, Moments)
    assert type(other.params["dense"][0]) is type(mine.params["dense"][0])


def test_a_snapshot_shares_no_memory_with_the_state() -> None:
    state = make_state("numpy")
    snapshot = state.capture_snapshot()
    state.params["dense"][0] += 1
    state.apply_snapshot(snapshot)
    state.params["dense"][0] += 1
    state.apply_snapshot(snapshot)

    assert state.params["dense"][0].tolist() == [1.0, 2.0]


def test_trees_of_another_structure_are_refused() -> None:
    other = holdfast.PytreeState(params={"dense": [np.zeros(2)]}, moments=Moments(0, np.zeros(1), None))

    with pytest.raises(UsageError, match="the same trees"):
        other.apply_snapshot(make_state("numpy").capture_snapshot())


def test_gradients_may_be_trees_in_trees() -> None:
    gradient = {"b": [np.ones(2), (np.ones(3, "f4"),)], "a": {"x": np.ones((1, 2))}, "empty": []}
    shape = describe(gradient)
    made = rebuild(shape, [array * 2 for array in arrays_of(gradient)])

    assert [array.shape for array in blanks(shape)] == [(1, 2), (2,), (3,)]
    assert made["a"]["x"].tolist() == [[2.0, 2.0]]
    assert made["b"][1][0].tolist() == [2.0] * 3
    assert isinstance(made["b"][1], tuple)
    assert made["empty"] == []


@kinds
def test_a_tree_is_trained(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    state = make_state(kind)
    held = HeldPort()
    settings = worker_settings(1)
    membership = Membership(RendezvousParameters("holdfast", f"127.0.0.1:{held.port}", "tree", **settings))
    with elastic(state, membership=membership) as run:
        for step in run.steps(8, 4, micro_batch=2):
            with step:
                for micro in step.micro_batches:
                    step.add({"dense": [np.full(2, len(micro.indices)), np.zeros((1, 1))]})
                total = step.total()
                dense = state.params["dense"]
                params = [part - gradient for part, gradient in zip(dense, total["dense"], strict=True)]
                state.params = {**state.params, "dense": params}
    held.close()

    assert state.params["dense"][0].tolist() == [1.0 - 8, 2.0 - 8]
