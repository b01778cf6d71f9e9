"""The state of a training with torch: taken over in place, undone without a copy of parameters where that can be."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402

from holdfast.errors import UsageError  # noqa: E402
from holdfast.torch import TorchState  # noqa: E402

pytestmark = pytest.mark.torch


class Setup:
    """A model with everything that a step may change."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        self.state = TorchState(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            scaler=self.scaler,
            best=0.0,
            seen=torch.zeros(3),
            **options,
        )

    def forward(self) -> Any:
        """Everything before the optimizer's step."""
        self.state.best = random.random()
        self.state.seen += 1
        loss = self.model(torch.randn(6, 4)).square().mean()
        self.scaler.scale(loss).backward()
        return loss

    def finish(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def step(self) -> None:
        self.state.begin()
        self.forward()
        self.finish()

    def bits(self) -> bytes:
        stream = io.BytesIO()
        self.state.save(stream)
        return stream.getvalue()


def test_a_step_that_fails_before_the_optimizer_is_undone_without_a_copy() -> None:
    setup = Setup(rollback="peer")
    setup.step()
    before = setup.bits()
    mark = setup.state.begin()
    setup.forward()

    assert setup.state.roll_back(mark)

    assert setup.bits() == before
    assert all(parameter.grad is None for parameter in setup.model.parameters())


def test_a_step_that_fails_after_the_optimizer_cannot_be_undone_without_a_copy() -> None:
    setup = Setup(rollback="peer")
    mark = setup.state.begin()
    setup.forward()
    setup.scaler.step(setup.optimizer)

    assert not setup.state.roll_back(mark)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_with_a_copy_everything_can_be_undone(steps: int) -> None:
    setup = Setup(rollback="copy")
    for _ in range(steps):
        setup.step()
    before, tensors = setup.bits(), list(setup.model.parameters())
    mark = setup.state.begin()
    setup.forward()
    setup.finish()

    assert setup.state.roll_back(mark)

    assert setup.bits() == before
    assert all(mine is theirs for mine, theirs in zip(setup.model.parameters(), tensors, strict=True))


def test_a_copy_of_an_older_step_is_not_mistaken_for_one_of_this_step() -> None:
    setup = Setup(rollback="copy")
    setup.step()
    before = setup.bits()
    mark = setup.state.begin()
    setup.forward()

    assert setup.state.roll_back(mark)

    assert setup.bits() == before


def test_parameters_that_are_changed_without_an_optimizer_are_noticed() -> None:
    setup = Setup()
    mark = setup.state.begin()
    with torch.no_grad():
        setup.model[0].weight += 1

    assert not setup.state.roll_back(mark)


@pytest.mark.parametrize("talks", [False, True])
def test_copies_are_made_only_where_workers_talk_after_an_optimizers_step(talks: bool) -> None:
    setup = Setup()
    operations = [0]
    setup.state.count_operations = lambda: operations[0]
    for _ in range(2):
        setup.state.begin()
        setup.forward()
        setup.finish()
        operations[0] += talks
        setup.state.look_back()
    mark = setup.state.begin()
    setup.forward()
    setup.finish()

    assert setup.state.roll_back(mark) is talks


def test_a_step_that_is_done_again_draws_the_same_random_numbers() -> None:
    setup = Setup()
    setup.step()
    mark = setup.state.begin()
    first = setup.forward().item(), random.random(), torch.rand(1).item()
    setup.state.roll_back(mark)
    setup.state.begin()
    again = setup.forward().item(), random.random(), torch.rand(1).item()
    setup.finish()
    setup.state.begin()

    assert again == first
    assert random.random() != first[1]


def test_who_takes_over_a_state_goes_on_bit_by_bit_in_place() -> None:
    source, other = Setup(0), Setup(1)
    for _ in range(3):
        source.step()
    tensors = list(other.model.parameters())

    other.state.load(io.BytesIO(source.bits()))

    assert other.bits() == source.bits()
    source.step()
    other.step()
    assert other.bits() == source.bits()
    assert all(mine is theirs for mine, theirs in zip(other.model.parameters(), tensors, strict=True))
    assert other.optimizer.param_groups[0]["params"][0] is tensors[0]


def test_an_optimizer_that_has_a_state_already_is_filled_in_place() -> None:
    source, other = Setup(0), Setup(1)
    for setup in (source, other):
        setup.step()
    parameter = next(iter(other.model.parameters()))
    held = other.optimizer.state[parameter]["exp_avg"]

    other.state.apply_snapshot(source.state.capture_snapshot())

    assert other.optimizer.state[parameter]["exp_avg"] is held
    assert other.bits() == source.bits()


def test_the_state_of_an_optimizer_keeps_its_precision() -> None:
    """torch itself would turn it into the type of the parameters."""

    def make() -> tuple[Any, TorchState]:
        parameter = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        return optimizer, TorchState(model=nn.ParameterList([parameter]), optimizer=optimizer)

    optimizer, state = make()
    (parameter,) = optimizer.param_groups[0]["params"]
    optimizer.state[parameter]["momentum_buffer"] = torch.full((4,), 1.0001)
    other_optimizer, other = make()

    other.apply_snapshot(state.capture_snapshot())

    (other_parameter,) = other_optimizer.param_groups[0]["params"]
    assert torch.equal(other_optimizer.state[other_parameter]["momentum_buffer"], torch.full((4,), 1.0001))


def test_buffers_that_are_not_part_of_a_state_dict_travel_too() -> None:
    def make() -> tuple[nn.Module, TorchState]:
        module = nn.Linear(1, 1)
        module.register_buffer("hidden", torch.zeros(2), persistent=False)
        return module, TorchState(model=module)

    module, state = make()
    module.hidden += 7
    other_module, other = make()

    other.apply_snapshot(state.capture_snapshot())

    assert other_module.hidden.tolist() == [7.0, 7.0]


def test_a_buffer_that_is_replaced_in_a_step_is_put_back() -> None:
    module = nn.Linear(1, 1)
    module.register_buffer("table", torch.zeros(2))
    state = TorchState(model=module)
    held = module.table
    mark = state.begin()
    module.table = torch.ones(5)

    assert state.roll_back(mark)
    assert module.table is held


def test_a_snapshot_of_another_model_is_refused_with_its_name() -> None:
    state = TorchState(net=nn.Linear(2, 2))
    with pytest.raises(UsageError, match="'net'"):
        state.apply_snapshot(TorchState(net=nn.Linear(3, 2)).capture_snapshot())
    with pytest.raises(UsageError, match="net, but the snapshot model"):
        state.apply_snapshot(TorchState(model=nn.Linear(2, 2)).capture_snapshot())


def test_a_state_of_nothing_or_with_an_unknown_rollback_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one part"):
        TorchState()
    with pytest.raises(UsageError, match="rollback"):
        TorchState(best=1, rollback="maybe")  # type: ignore[arg-type]


def test_random_numbers_can_be_left_alone() -> None:
    state = TorchState(model=nn.Linear(1, 1), rng=False)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    state.begin()

    assert torch.rand(1) == expected


def test_a_state_that_begins_later_draws_the_random_numbers_of_its_place() -> None:
    whole, later = Setup().state, Setup().state
    drawn = []
    for _ in range(4):
        whole.begin()
        drawn.append(random.random())

    later.begin_after(3)
    later.begin()

    assert random.random() == drawn[3]
