"""Which node gets which rank. Pure.

The rules, strongest first:

1. survivors keep their order;
2. nodes on one host stand side by side;
3. a newcomer takes the place of a node that was lost, of its own host where there is one;
4. a first round honours the node ranks that users asked for, then puts the coordinator's host first, then orders
   hosts the way people count (node7 before node66), then by arrival.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.coordinator.messages import NodeSpec, Place, RoundId


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that may be in the next round; `order` is its arrival, `address` where others reach it."""

    spec: NodeSpec
    order: int
    address: str


@dataclass(frozen=True, slots=True)
class Seat:
    """A node's seat in the round before."""

    node: str
    host: str


def choose(previous: Sequence[Seat], candidates: Sequence[Candidate], max_nodes: int) -> list[Candidate]:
    """Pick at most `max_nodes`: survivors first, then by arrival."""
    if len(candidates) <= max_nodes:
        return list(candidates)
    seats = {seat.node: rank for rank, seat in enumerate(previous)}

    def priority(candidate: Candidate) -> tuple[int, int]:
        if candidate.spec.node in seats:
            return (0, seats[candidate.spec.node])
        return (1, candidate.order)

    return sorted(candidates, key=priority)[:max_nodes]


def arrange(previous: Sequence[Seat], chosen: Sequence[Candidate]) -> list[Candidate | Seat]:
    """Put the chosen nodes in rank order; a `Seat` left in the line is a lost place that is still free."""
    by_node = {candidate.spec.node: candidate for candidate in chosen}
    if not any(seat.node in by_node for seat in previous):
        return list(_first_order(chosen))
    seated = {seat.node for seat in previous}
    newcomers: dict[str, list[Candidate]] = {}
    for candidate in _host_order([each for each in chosen if each.spec.node not in seated]):
        newcomers.setdefault(candidate.spec.host, []).append(candidate)
    line = [by_node.get(seat.node, seat) for seat in previous]
    return _seat_beside_hosts(_fill_lost_places(line, newcomers), newcomers)


def places(order: Sequence[Candidate], round_id: RoundId, restarts_used: int) -> list[Place]:
    """Give every node its place, in rank order."""
    coordinator_rank = next((rank for rank, each in enumerate(order) if each.spec.hosts_coordinator), -1)
    numbers = number_workers([(each.spec.role, each.spec.local_world_size) for each in order])
    return [
        Place(
            round=round_id,
            group_rank=group_rank,
            group_world_size=len(order),
            first_rank=number.first_rank,
            world_size=number.world_size,
            first_role_rank=number.first_role_rank,
            role_world_size=number.role_world_size,
            master_addr=order[0].address,
            master_port=order[0].spec.port,
            restarts_used=restarts_used,
            address=candidate.address,
            coordinator_rank=coordinator_rank,
            peer_addr=order[(group_rank + 1) % len(order)].address,
            peer_port=order[(group_rank + 1) % len(order)].spec.peer_port,
        )
        for group_rank, (candidate, number) in enumerate(zip(order, numbers, strict=True))
    ]


class Numbers(NamedTuple):
    """One node's workers: the rank of the first and how many there are, in the world and in the node's role."""

    first_rank: int
    world_size: int
    first_role_rank: int
    role_world_size: int


def number_workers(nodes: Sequence[tuple[str, int]]) -> list[Numbers]:
    """Number every worker of nodes in rank order; each node is its role and how many workers it brings."""
    role_sizes: dict[str, int] = {}
    for role, workers in nodes:
        role_sizes[role] = role_sizes.get(role, 0) + workers
    world_size = sum(role_sizes.values())
    first_rank, first_role_ranks = 0, dict.fromkeys(role_sizes, 0)
    numbers: list[Numbers] = []
    for role, workers in nodes:
        numbers.append(Numbers(first_rank, world_size, first_role_ranks[role], role_sizes[role]))
        first_rank += workers
        first_role_ranks[role] += workers
    return numbers


def trim(line: Sequence[Candidate | Seat], max_nodes: int) -> list[Seat]:
    """Turn a line into seats for the next round, keeping a lost place while a node may still take it.

    That is while there is room for one more, and while its host's nodes have not moved away from it.
    """
    present = {entry.spec.host for entry in line if isinstance(entry, Candidate)}
    spare = max_nodes - sum(1 for entry in line if isinstance(entry, Candidate))
    right = _next_hosts(line)
    left: str | None = None
    seats: list[Seat] = []
    for index, entry in enumerate(line):
        if isinstance(entry, Candidate):
            left = entry.spec.host
            seats.append(Seat(entry.spec.node, entry.spec.host))
        elif spare > 0 and (entry.host not in present or entry.host in (left, right[index])):
            spare -= 1
            seats.append(entry)
    return seats


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sort text the way people count: numbers inside it by value."""
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"([0-9]+)", text) if part)


def _first_order(chosen: Sequence[Candidate]) -> list[Candidate]:
    result: list[Candidate | None] = [None] * len(chosen)
    rest: list[Candidate] = []
    for candidate in sorted(chosen, key=lambda each: each.order):
        wish = candidate.spec.node_rank
        if 0 <= wish < len(chosen) and result[wish] is None:
            result[wish] = candidate
        else:
            rest.append(candidate)
    unplaced = iter(_host_order(rest))
    return [candidate if candidate is not None else next(unplaced) for candidate in result]


def _host_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    first_hosts = {candidate.spec.host for candidate in candidates if candidate.spec.hosts_coordinator}
    return sorted(
        candidates,
        key=lambda each: (
            each.spec.node_rank if each.spec.node_rank >= 0 else len(candidates),
            each.spec.host not in first_hosts,
            natural_key(each.spec.host),
            not each.spec.hosts_coordinator,
            each.order,
        ),
    )


def _fill_lost_places(line: list[Candidate | Seat], newcomers: dict[str, list[Candidate]]) -> list[Candidate | Seat]:
    """Give lost places to newcomers, own host first; takes those placed out of `newcomers`."""
    present = {entry.spec.host for entry in line if isinstance(entry, Candidate)}
    line = _fill(line, lambda seat: seat.host, newcomers, present)
    others = deque(host for host in newcomers if host not in present)

    def next_stranger(_: Seat) -> str | None:
        while others and others[0] in present:
            others.popleft()
        return others[0] if others else None

    return _fill(line, next_stranger, newcomers, present)


def _fill(
    line: list[Candidate | Seat],
    pick: Callable[[Seat], str | None],
    newcomers: dict[str, list[Candidate]],
    present: set[str],
) -> list[Candidate | Seat]:
    """Let a newcomer of the host that `pick` names take each lost place, where that parts no host's nodes."""
    result = list(line)
    right = _next_hosts(line)
    left: str | None = None
    for index, entry in enumerate(line):
        if isinstance(entry, Candidate):
            left = entry.spec.host
            continue
        host = pick(entry)
        if host is None or not newcomers.get(host):
            continue
        beside_own = host in (left, right[index])
        # Elsewhere, a node must neither stand apart from its own host's nodes nor between those of another.
        if beside_own or (host not in present and (left is None or left != right[index])):
            result[index] = newcomers[host].pop(0)
            present.add(host)
            left = host
    return result


def _next_hosts(line: Sequence[Candidate | Seat]) -> list[str | None]:
    """Return for every place the host of the next node to the right."""
    result: list[str | None] = []
    host: str | None = None
    for entry in reversed(line):
        result.append(host)
        if isinstance(entry, Candidate):
            host = entry.spec.host
    return result[::-1]


def _seat_beside_hosts(
    line: Sequence[Candidate | Seat], newcomers: dict[str, list[Candidate]]
) -> list[Candidate | Seat]:
    """Put every newcomer that is left behind the last node of its host, or at the end."""
    last = {entry.spec.host: index for index, entry in enumerate(line) if isinstance(entry, Candidate)}
    result: list[Candidate | Seat] = []
    for index, entry in enumerate(line):
        result.append(entry)
        if isinstance(entry, Candidate) and last[entry.spec.host] == index:
            result.extend(newcomers.pop(entry.spec.host, []))
    for nodes in newcomers.values():
        result.extend(nodes)
    return result
