"""Where copies go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.vault_messages import VaultAddress, choose_neighbours


def test_copies_go_to_other_hosts_first() -> None:
    vaults = [
        VaultAddress("a", "1", ""),
        VaultAddress("a", "2", ""),
        VaultAddress("b", "3", ""),
        VaultAddress("c", "4", ""),
    ]

    assert [vault.host for vault in choose_neighbours("1", vaults, 2)] == ["b", "c"]
    assert [vault.name for vault in choose_neighbours("4", vaults, 1)] == ["1"]
    assert [vault.name for vault in choose_neighbours("1", vaults, 9)] == ["3", "4", "2"]
    assert choose_neighbours("1", vaults[:1]) == []


@given(st.integers(2, 6))
def test_every_host_keeps_as_much_as_it_gives(hosts: int) -> None:
    vaults = [VaultAddress(f"h{index}", f"v{index}", "") for index in range(hosts)]

    keepers = [choose_neighbours(vault.name, vaults)[0].name for vault in vaults]

    assert sorted(keepers) == [vault.name for vault in vaults]
