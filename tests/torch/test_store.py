"""torch uses our stores as its own."""

import gc
import os
from datetime import timedelta

import pytest
from tests.processes import finish
from tests.train.conftest import start_cold

from holdfast.errors import StoreTimeoutError
from holdfast.store import MemoryStore, StoreClient
from holdfast.testing.store_contract import store_cases
from holdfast.testing.store_server import StoreServer

dist = pytest.importorskip("torch.distributed", reason="needs torch")
if not dist.is_available():
    pytest.skip("this torch has no distributed", allow_module_level=True)

from holdfast.torch import TorchStore  # noqa: E402

pytestmark = pytest.mark.torch

#: torch's PrefixStore counts all keys of the store beneath, and hands on neither queues nor lists of keys.
FROM_PYTHON_ONLY = ("queue", "counted", "barrier", "objects_share")


@pytest.fixture(params=["memory", "client"])
def store(request):
    if request.param == "memory":
        yield MemoryStore("run")
        return
    with StoreServer() as server, StoreClient.connect(server.endpoint, "run", secret=b"") as client:
        yield client


@pytest.mark.parametrize("case", store_cases(), ids=lambda case: case.__name__)
def test_contract(case, store):
    case(lambda: TorchStore(store))


@pytest.mark.parametrize(
    "case",
    [case for case in store_cases() if not any(word in case.__name__ for word in FROM_PYTHON_ONLY)],
    ids=lambda case: case.__name__,
)
def test_contract_through_torchs_own_prefix_store(case, store):
    """torch's C++ code finds every method that it calls."""
    case(lambda: dist.PrefixStore("prefix", TorchStore(store)))


def test_torchs_prefix_store_reaches_every_method(store):
    below = TorchStore(store)
    prefix = dist.PrefixStore("p", below)
    prefix.set("k", b"\xff")

    assert below.get("p/k") == b"\xff"
    assert prefix.num_keys() == 1
    assert prefix.delete_key("k") is True
    assert prefix.has_extended_api()
    prefix.clone().set("k", "of the clone")
    assert below.get("p/k") == b"of the clone"


def test_a_timeout_is_the_error_that_torch_programs_expect(store):
    adapter = TorchStore(store)
    adapter.set_timeout(timedelta(milliseconds=10))

    for wait in (adapter, dist.PrefixStore("p", adapter)):
        with pytest.raises(dist.DistStoreError, match="did not appear"):
            wait.get("k")
    with pytest.raises(dist.QueueEmptyError):
        adapter.queue_pop("q", block=False)
    with pytest.raises(StoreTimeoutError):
        adapter.wait(["k"])


def test_torch_may_hold_the_only_reference(store):
    """The Python half stays while C++ code may call it, and goes when it is told to."""
    prefix = dist.PrefixStore("p", TorchStore(store))
    gc.collect()
    prefix.set("k", "1")

    assert prefix.get("k") == b"1"


def test_a_closed_adapter_goes_with_its_clones():
    from holdfast.torch import store as module

    before = len(module._kept)
    adapter = TorchStore(MemoryStore())
    adapter.clone()
    assert len(module._kept) == before + 2
    adapter.close()

    assert len(module._kept) == before


WORKER = """
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
from holdfast.store import PrefixStore, StoreClient
from holdfast.torch import TorchStore

rank, world_size, endpoint = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
for round_ in range(2):
    client = StoreClient.connect(endpoint, f"run/{round_}", secret=b"")
    store = TorchStore(PrefixStore("pg", client)) if round_ else TorchStore(client)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=limit)
    tensor = torch.full((4,), float(rank + 1))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [world_size * (world_size + 1) / 2] * 4, tensor
    gathered = [None] * world_size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": each} for each in range(world_size)]
    group = dist.new_group(list(range(world_size)))
    dist.barrier(group)
    dist.destroy_process_group()
    store.close()
    client.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "cold"), [(2, True), (3, False)])
def test_gloo_makes_process_groups_over_it(world_size, cold, fork_server, tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    start = start_cold if cold else fork_server.start
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with StoreServer() as server:
        workers = [
            start([str(script), str(rank), str(world_size), str(server.endpoint)], env) for rank in range(world_size)
        ]
        errors = [finish(worker)[1] for worker in workers]

        assert [worker.returncode for worker in workers] == [0] * world_size, "\n".join(errors)
        server.snapshot()
