"""Gradients of all workers put together; the workers are threads, the sums are made by a ring or by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402

from holdfast.errors import UsageError  # noqa: E402
from holdfast.torch import gradients  # noqa: E402
from holdfast.torch.gradients import Reducer  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True, params=[gradients.LARGE_BYTES_MIN, 60, 0], ids=["copied", "some in place", "in place"])
def large_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Gradients from this size on are summed where they are; all tests hold for any."""
    monkeypatch.setattr(gradients, "LARGE_BYTES_MIN", request.param)
    return int(request.param)


class Meeting:
    """Checksums tensors of several threads."""

    def __init__(self, world: int) -> None:
        self._barrier = threading.Barrier(world, self._add)
        self._tensors: dict[int, Any] = {}
        self._total: Any = None

    def _add(self) -> None:
        self._total = sum(self._tensors[rank] for rank in sorted(self._tensors))

    def summing(self, rank: int) -> Callable[[Any], Callable[[], Any]]:
        def begin(tensor: Any) -> Callable[[], Any]:
            self._tensors[rank] = tensor.clone()
            self._barrier.wait()
            tensor.copy_(self._total)
            self._barrier.wait()
            return lambda: None

        return begin


def together(models: list[nn.Module], weights: list[float]) -> None:
    meeting = Meeting(len(models))
    with ThreadPoolExecutor(len(models)) as pool:
        done = [
            pool.submit(Reducer(model).reduce, weight, meeting.summing(rank))
            for rank, (model, weight) in enumerate(zip(models, weights, strict=True))
        ]
        for each in done:
            each.result(240)


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


def test_unequal_shares_give_the_mean_over_all_samples() -> None:
    data = torch.randn(9, 3, dtype=torch.float64)
    alone = nn.Linear(3, 2).double()
    alone(data).square().mean(1).mean().backward()
    models = []
    for share in (data[:2], data[2:], data[:0]):
        model = nn.Linear(3, 2).double()
        model.load_state_dict(alone.state_dict())
        model(share).square().mean(1).mean().backward()  # not a number for the empty one
        models.append(model)

    together(models, [2 / 9, 7 / 9, 0.0])

    for model in models:
        for mine, expected in zip(model.parameters(), alone.parameters(), strict=True):
            assert torch.allclose(mine.grad, expected.grad)


def test_running_statistics_are_averaged_and_constants_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 40)
    models = [make(), make()]
    for number, model in enumerate(models):
        model.register_buffer("table", torch.full((3,), 0.1))
        model(torch.randn(5, 3, dtype=torch.float64) + number).sum().backward()
    expected = (models[0][1].running_mean * 0.25 + models[1][1].running_mean * 0.75).clone()

    together(models, [0.25, 0.75])

    assert torch.allclose(models[0][1].running_mean, expected)
    assert torch.equal(models[0][1].running_mean, models[1][1].running_mean)
    assert torch.equal(models[0].table, torch.full((3,), 0.1))
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_an_unused_parameter_gets_no_gradient() -> None:
    models = [nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)]) for _ in range(2)]
    models[0][0](torch.ones(1, 2)).sum().backward()

    together(models, [0.5, 0.5])

    assert models[1][0].weight.grad is not None
    assert all(model[1].weight.grad is None for model in models)


def test_parameters_that_are_thawed_later_take_part() -> None:
    model = nn.Linear(2, 1)
    model.bias.requires_grad = False
    reducer = Reducer(model)
    summing = Meeting(1).summing(0)
    model(torch.ones(1, 2)).sum().backward()
    reducer.reduce(1.0, summing)
    model.bias.requires_grad = True
    model(torch.ones(1, 2)).sum().backward()
    reducer.reduce(1.0, summing)

    assert model.weight.grad.tolist() == [[2.0, 2.0]], "gradients add up where they are not cleared"
    assert model.bias.grad.tolist() == [1.0]


def test_sparse_gradients_are_refused() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    model(torch.tensor([1])).sum().backward()

    with pytest.raises(UsageError, match="sparse=False"):
        Reducer(model).reduce(1.0, Meeting(1).summing(0))


def test_gradients_of_several_types_travel_as_one_array_each_and_find_back() -> None:
    module = nn.ModuleList([nn.Linear(2, 3), nn.Linear(3, 1).double(), nn.Linear(1, 2).bfloat16(), nn.Linear(2, 1)])
    for number, parameter in enumerate(module.parameters()):
        parameter.grad = torch.full_like(parameter, number + 1)
    parameters = list(module.parameters())
    parameters[3].grad = None

    taken = gradients.take_gradients(parameters, 0.5)

    assert sorted(taken) == ["float32", "float64"]
    assert all(parameter.grad is None for parameter in parameters)
    gradients.give_gradients(parameters, taken)
    assert [parameter.grad.unique().tolist() for parameter in parameters] == [
        [0.5],
        [1.0],
        [1.5],
        [0.0],
        [2.5],
        [3.0],
        [3.5],
        [4.0],
    ]
    assert all(parameter.grad.dtype == parameter.dtype for parameter in parameters)


def test_a_large_gradient_is_summed_where_it_is(large_bytes: int) -> None:
    models = [nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)]
    for model in models:
        model.weight.grad = torch.ones(2, 3)
    before = [model.weight.grad for model in models]

    together(models, [0.5, 0.5])

    assert [model.weight.grad is grad for model, grad in zip(models, before, strict=True)] == [large_bytes == 0] * 2


def test_a_gradient_that_does_not_lie_in_one_piece_is_summed_too() -> None:
    models = [nn.Linear(3, 2, bias=False), nn.Linear(3, 2, bias=False)]
    for model in models:
        model.weight.grad = torch.arange(6.0).reshape(3, 2).t()

    together(models, [0.5, 0.5])

    for model in models:
        assert torch.equal(model.weight.grad, torch.arange(6.0).reshape(3, 2).t())
