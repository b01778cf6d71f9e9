"""Under an agent: workers find vaults through the coordinator, and agree through their round's store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoint import Checkpointer, MemoryTier, StorageTier, Vault, standard_tiers
from holdfast.coordinator.driver import Coordinator
from holdfast.coordinator.machine import run_space
from holdfast.store.client import StoreClient
from holdfast.wire.address import Endpoint
from holdfast.wire.loop import io_thread

np = pytest.importorskip("numpy")

SECRET = "the secret of this test"
LOOPBACK = Endpoint("127.0.0.1", 0)
PATIENCE_S = 240.0


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """Where a coordinator is."""
    coordinator = Coordinator(SECRET.encode())
    yield io_thread().wait(coordinator.open(LOOPBACK), PATIENCE_S)
    io_thread().wait(coordinator.close(), PATIENCE_S)


@pytest.fixture
def hosts(tmp_path: Path, endpoint: Endpoint) -> Iterator[list[Vault]]:
    """Two hosts with a vault each, as their agents announce them."""
    vaults = [
        Vault("job", secret=SECRET.encode(), folder=tmp_path / name / "job", name=name, host=name) for name in "ab"
    ]
    with StoreClient.connect(endpoint, run_space("job"), secret=SECRET.encode()) as store:
        for vault in vaults:
            vault.open(LOOPBACK)
            vault.announce(store, "127.0.0.1")
        yield vaults
        for vault in vaults:
            vault.close(store)


def environ(endpoint: Endpoint, vault: Vault, rank: int) -> dict[str, str]:
    """What an agent would give a worker of that host."""
    return {
        "HOLDFAST_ENDPOINT": str(endpoint),
        "HOLDFAST_STORE_SPACE": "job/1",
        "HOLDFAST_SECRET": SECRET,
        "HOLDFAST_ROUND": "1",
        "TORCHELASTIC_RUN_ID": "job",
        "GROUP_WORLD_SIZE": "2",
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        **vault.environ(),
    }


def test_a_worker_saves_to_its_neighbour_and_another_finds_it_there(endpoint: Endpoint, hosts: list[Vault]) -> None:
    with Checkpointer(standard_tiers(environ=environ(endpoint, hosts[0], 0))) as checkpoints:
        assert [tier.name for tier in checkpoints.tiers] == ["memory", "neighbour"]
        checkpoints.save(4, {"w": np.arange(100)})
    hosts[0].close()

    elsewhere = {**environ(endpoint, hosts[1], 0), "HOLDFAST_MEMORY_DIR": str(hosts[0].folder.parent / "empty")}
    elsewhere["HOLDFAST_VAULT"] = "c"
    with Checkpointer(standard_tiers(environ=elsewhere)) as checkpoints:
        found = checkpoints.restore()

    assert found is not None
    assert (found.step, found.data["from"]) == (4, ["neighbour"])
    np.testing.assert_array_equal(found.tree["w"], np.arange(100))


def test_workers_agree_through_the_store_of_their_round(
    tmp_path: Path, endpoint: Endpoint, hosts: list[Vault], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its shards in its own host's memory; the last step of the second was never saved."""
    for name, value in environ(endpoint, hosts[0], 0).items():
        monkeypatch.setenv(name, value)
    found: dict[int, tuple[int, int]] = {}

    def work(rank: int) -> None:
        tiers = [MemoryTier(hosts[rank].folder, place=hosts[rank].name), StorageTier(tmp_path / "storage")]
        with Checkpointer(tiers) as checkpoints:
            for step in range(3 - rank):
                checkpoints.save(step, {"w": np.full(3, 10 * step + rank)}, shard=(rank, 2))
            checkpoints.wait()
            restored = checkpoints.restore(shard=(rank, 2))
            assert restored is not None
            found[rank] = (restored.step, int(restored.tree["w"][0]))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert found == {0: (1, 10), 1: (1, 11)}


def test_a_shard_in_another_hosts_memory_is_fetched_from_its_vault(
    endpoint: Endpoint, hosts: list[Vault], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks have changed places: each finds its shard on the other host, and half of the state moves."""
    for rank in range(2):
        with Checkpointer([MemoryTier(hosts[rank].folder, place=hosts[rank].name)], origin="job.1") as checkpoints:
            checkpoints.save(7, {"w": np.full(3, rank)}, shard=(rank, 2))
    for name, value in environ(endpoint, hosts[0], 0).items():
        monkeypatch.setenv(name, value)
    found: dict[int, tuple[int, list[str]]] = {}

    def work(rank: int) -> None:
        tiers = standard_tiers(environ=environ(endpoint, hosts[1 - rank], rank))
        with Checkpointer(tiers) as checkpoints:
            restored = checkpoints.restore(shard=(rank, 2))
            assert restored is not None
            found[rank] = (int(restored.tree["w"][0]), restored.data["from"])

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert found == {0: (0, ["neighbour"]), 1: (1, ["neighbour"])}
