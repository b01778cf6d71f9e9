"""A state that goes from device to device: what is sent by which worker, and that it arrives as it was."""

from __future__ import annotations

import queue
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from holdfast.errors import UsageError  # noqa: E402
from holdfast.torch import TorchState  # noqa: E402
from holdfast.torch.handover import SPLIT_BYTES_MIN, Handover, put_back, take_out  # noqa: E402

pytestmark = pytest.mark.torch

PATIENCE_S = 240.0


class Lines:
    """What is on its way between ranks."""

    def __init__(self) -> None:
        self.sent: dict[tuple[int, int], queue.Queue[Any]] = defaultdict(queue.Queue)
        self.bytes: dict[int, int] = defaultdict(int)

    def of(self, rank: int) -> Callable[[Any, Any], None]:
        """Return how a rank sends and receives."""

        def exchange(sends: Any, receives: Any) -> None:
            for tensor, peer in sends:
                self.sent[rank, peer].put(tensor.clone())
                self.bytes[rank] += tensor.numel() * tensor.element_size()
            for tensor, peer in receives:
                tensor.copy_(self.sent[peer, rank].get(timeout=PATIENCE_S))

        return exchange


def always(tensor: Any) -> bool:
    del tensor
    return True


def model_state(seed: int, *, stepped: bool) -> TorchState:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.BatchNorm1d(600), torch.nn.Linear(600, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    if stepped:
        model(torch.randn(8, 600)).square().mean().backward()
        optimizer.step()
    return TorchState(model=model, optimizer=optimizer, best=torch.tensor(float(seed)), note=f"seed {seed}")


def hand_over(states: list[TorchState], to: tuple[int, ...], lines: Lines) -> list[Any]:
    """Let the first state go to those that need it; returns what each worker has taken."""
    ends = [
        Handover(rank, state.capture_snapshot() if rank not in to else own_tree(state), lines.of(rank), always)
        for rank, state in enumerate(states)
    ]
    described = ends[0].describe()
    with ThreadPoolExecutor(len(ends)) as pool:
        return [took for took, _ in pool.map(lambda end: end.carry(described, to, len(ends)), ends)]


def own_tree(state: TorchState) -> Any:
    """Return a state's own tensors, as `capture_on_device` does for those of a GPU."""
    return state._capture(lambda tree: tree)


def same(some: Any, other: Any) -> bool:
    if isinstance(some, torch.Tensor):
        return some.dtype == other.dtype and torch.equal(some, other)
    if isinstance(some, dict):
        return some.keys() == other.keys() and all(same(some[key], other[key]) for key in some)
    if isinstance(some, list | tuple):
        return len(some) == len(other) and all(map(same, some, other))
    return bool(some == other)


@pytest.mark.parametrize("stepped", [False, True])
def test_newcomers_get_the_state_of_the_others(stepped):
    giver = model_state(1, stepped=True)
    again, first, second = (model_state(2 + number, stepped=stepped) for number in range(3))
    again.apply_snapshot(giver.capture_snapshot())
    lines = Lines()

    taken = hand_over([giver, again, first, second], (2, 3), lines)

    assert taken[:2] == [None, None]
    for state, tree in zip((first, second), taken[2:], strict=True):
        state.apply_snapshot(tree)
        assert same(state.capture_snapshot(), giver.capture_snapshot())
        assert (state.note, state.best.item()) == ("seed 1", 1.0)


def test_all_that_hold_it_send_an_equal_part():
    giver = model_state(1, stepped=True)
    others = [model_state(1, stepped=True) for _ in range(2)]
    lines = Lines()

    hand_over([giver, *others, model_state(2, stepped=False)], (3,), lines)

    whole = sum(lines.bytes.values())
    assert all(abs(lines.bytes[rank] - whole / 3) < SPLIT_BYTES_MIN / 8 for rank in range(3)), lines.bytes


def test_what_a_newcomer_has_is_filled_in_place():
    giver, newcomer = model_state(1, stepped=True), model_state(2, stepped=False)
    weight = newcomer.model[0].weight

    [_, taken] = hand_over([giver, newcomer], (1,), Lines())

    assert taken["parts"]["model"]["state"]["0.weight"].data_ptr() == weight.data_ptr()
    assert torch.equal(weight, giver.model[0].weight)


def test_a_worker_whose_state_is_another_is_noticed():
    giver, other, newcomer = (model_state(seed, stepped=True) for seed in (1, 2, 3))

    with pytest.raises(UsageError, match="did not arrive as rank 0 has it"):
        hand_over([giver, other, newcomer], (2,), Lines())


def test_a_state_of_another_shape_is_named():
    giver, newcomer = model_state(1, stepped=True), model_state(2, stepped=False)
    other = TorchState(model=torch.nn.Linear(2, 2))

    with pytest.raises(UsageError, match=r"this worker's state has no /parts/model/state/0\.weight"):
        hand_over([giver, other, newcomer], (2,), Lines())


def test_every_kind_of_tensor_travels():
    tree = {
        "half": torch.randn(7).bfloat16(),
        "odd": torch.arange(9, dtype=torch.uint8)[1:4],
        "flags": torch.tensor([True, False]),
        "one": torch.tensor(3.5),
        "turned": torch.randn(4, 3).t(),
        "empty": torch.zeros(0),
        "list": [torch.ones(2), ("text", 1)],
    }
    kept, tensors = take_out(tree, always)

    assert len(tensors) == 6  # nothing has to be sent of an empty one
    assert same(put_back(kept, tensors), tree)
    lines = Lines()
    ends = [Handover(0, tree, lines.of(0), always), Handover(1, {}, lines.of(1), always)]
    described = ends[0].describe()
    assert ends[0].carry(described, (1,), 2)[0] is None
    took, nbytes = ends[1].carry(described, (1,), 2)
    assert same(took, tree)
    assert nbytes == sum(each.numel() * each.element_size() for each in tensors.values())
