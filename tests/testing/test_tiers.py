"""Every tier of checkpoints does what the contract says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoint import MemoryTier, NeighbourTier, StorageTier
from holdfast.checkpoint.vault import Vault
from holdfast.checkpoint.vault_messages import VaultAddress
from holdfast.testing.tier_contract import Case, Make, tier_cases
from holdfast.wire.address import Endpoint

SECRET = b"the secret of this test"


@pytest.fixture(params=["memory", "storage", "neighbour"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    if request.param == "memory":
        yield lambda: MemoryTier(tmp_path / "memory")
        return
    if request.param == "storage":
        yield lambda: StorageTier(str(tmp_path / "storage"))
        return
    vault = Vault("run", secret=SECRET, folder=tmp_path / "vault" / "run", name="b", host="b")
    endpoint = vault.open(Endpoint("127.0.0.1", 0))
    book = [VaultAddress("a", "a", ""), VaultAddress("b", "b", str(endpoint))]
    yield lambda: NeighbourTier(lambda: book, "a", secret=SECRET, run_id="run")
    vault.close()


@pytest.mark.parametrize("case", tier_cases(), ids=lambda case: case.__name__)
def test_contract(case: Case, make: Make) -> None:
    case(make)
