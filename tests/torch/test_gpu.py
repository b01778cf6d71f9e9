"""The same on a GPU, where there is one."""

from __future__ import annotations

import signal
import types

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from tests.torch.conftest import StartWorkers  # noqa: E402
from tests.torch.test_faults import agreed, counted  # noqa: E402

from holdfast.checkpoint.layout import pack, unpack  # noqa: E402
from holdfast.errors import RoundOverError  # noqa: E402
from holdfast.store import StoreClient  # noqa: E402
from holdfast.testing.store_server import StoreServer  # noqa: E402
from holdfast.torch import RoundGroups, TorchState  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_a_tensor_of_a_gpu_arrives_bit_by_bit() -> None:
    tensor = torch.randn(1000, 33, device="cuda", dtype=torch.bfloat16).t()

    found = unpack(pack([tensor]).to_bytes())[0]

    assert torch.equal(found, tensor.cpu())


@pytest.mark.parametrize("fused", [False, True])
def test_a_state_on_a_gpu_is_taken_over_and_undone_in_place(fused: bool) -> None:
    def make() -> TorchState:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)
        return TorchState(model=model, optimizer=optimizer, rollback="copy", seed=5)

    def step(state: TorchState) -> None:
        state.optimizer.zero_grad()
        state.model(torch.randn(8, 64, device="cuda")).square().mean().backward()
        state.optimizer.step()

    source, other = make(), make()
    for _ in range(3):
        source.begin()
        step(source)
    other.apply_snapshot(unpack(pack(source.capture_snapshot()).to_bytes()))
    before = pack(other.capture_snapshot()).to_bytes()
    assert before == pack(source.capture_snapshot()).to_bytes()
    mark = other.begin()
    step(other)

    assert other.roll_back(mark)

    assert pack(other.capture_snapshot()).to_bytes() == before
    for state in (source, other):
        state.begin()
        step(state)
    assert pack(other.capture_snapshot()).to_bytes() == pack(source.capture_snapshot()).to_bytes()


def test_a_killed_worker_is_replaced_on_a_gpu_too(start_workers: StartWorkers) -> None:
    common = {"size": 2, "device": "cuda", "settings": {"min_nodes": 2}, "cold": True}
    expected = agreed(start_workers({}, {}, run="undisturbed", **common))
    survivor, victim = start_workers({}, {"fates": {"7 reduce": "kill"}}, **common)
    victim.wait_for("fate")
    (replacement,) = start_workers({"model_seed": 99}, **common)

    end = agreed([survivor, replacement])

    assert victim.end() == -signal.SIGKILL
    assert end["digest"] == expected["digest"]
    assert counted(survivor) == list(range(20))


def test_nccl_serves_a_run(start_workers: StartWorkers) -> None:
    (alone,) = start_workers({}, size=1, cold=True, device="cuda", backend="auto", mode="ddp")

    agreed([alone])


def test_an_nccl_group_is_aborted_and_made_anew() -> None:
    import torch.distributed as dist

    groups = RoundGroups("nccl")
    with StoreServer() as server:
        for number in range(3):
            with StoreClient.connect(server.endpoint, f"round-{number}", secret=b"") as store:
                groups.form(types.SimpleNamespace(rank=0, world_size=1, store=store))  # type: ignore[arg-type]
                tensor = torch.ones(3, device="cuda")
                dist.all_reduce(tensor)
                assert tensor.tolist() == [1.0] * 3
                groups.abort("enough")
                groups.close()
        membership = types.SimpleNamespace(on_break=lambda breaker: breaker("ended early"))
        with StoreClient.connect(server.endpoint, "last", secret=b"") as store:
            circle = types.SimpleNamespace(rank=0, world_size=1, store=store)
            with pytest.raises(RoundOverError, match="early"):
                groups.form(circle, membership)  # type: ignore[arg-type]
