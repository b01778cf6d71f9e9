"""Where copies go: to vaults on other hosts, each to the next in one ring of all of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Vault:
    """A vault that can be reached: its host, its name (one of a kind in the run) and its address."""

    host: str
    name: str
    address: str


def choose_neighbours(me: str, vaults: Iterable[Vault], copies: int = 1) -> list[Vault]:
    """Return who keeps the copies of vault `me`: those that follow it in the ring, on other hosts first, one a host.

    Only where there are not enough hosts do two copies share one, or does one stay on `me`'s own host.
    """
    ring = sorted(vaults)
    at = next((index for index, vault in enumerate(ring) if vault.name == me), None)
    own_host = ring[at].host if at is not None else None
    following = [vault for vault in ring[(at or 0) :] + ring[: (at or 0)] if vault.name != me]
    chosen: list[Vault] = []
    hosts = {own_host}
    for vault in following:
        if vault.host not in hosts:
            hosts.add(vault.host)
            chosen.append(vault)
    # The rest, elsewhere before here.
    rest = [vault for vault in following if vault not in chosen]
    return [*chosen, *sorted(rest, key=lambda vault: vault.host == own_host)][:copies]
