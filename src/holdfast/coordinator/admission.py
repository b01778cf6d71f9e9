"""Whether a node may take part: its settings are valid, and match those of the run. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from holdfast.coordinator.messages import Join, NodeSpec, RunSettings
from holdfast.coordinator.state import Node

#: The message to an agent of an earlier launch when a later one has taken its place.
LEFT_OVER = (
    "this agent is left over from an earlier launch of run '{run}'; a later one has all its nodes, so it ends here"
)
LEASE_S_MIN = 0.05
#: The longest allowed time: some ninety years, and safe to add to any clock.
SECONDS_MAX = 3e9
WORKERS_MAX = 1_000_000


def refusal(run: str, join: Join, settings: RunSettings | None, nodes: Mapping[str, Node]) -> str | None:
    """Say why a node cannot take part in a run, and what to change, or None."""
    spec, theirs = join.spec, join.settings
    host = spec.host
    if not 1 <= spec.local_world_size <= WORKERS_MAX:
        return f"{host} brings {spec.local_world_size} workers; a node brings 1 to {WORKERS_MAX}"
    if not 1 <= theirs.min_nodes <= theirs.max_nodes:
        return f"{host} asks for {theirs.min_nodes}:{theirs.max_nodes} nodes; write 1 <= MIN <= MAX"
    if not LEASE_S_MIN <= spec.lease_s <= SECONDS_MAX:
        return f"{host} asks for a lease of {spec.lease_s:g} s; the shortest is {LEASE_S_MIN:g} s"
    for name in ("last_call_s", "quiet_s", "admit_every_s", "rejoin_timeout_s", "recovery_s", "progress_s"):
        seconds = getattr(theirs, name)
        if not (math.isfinite(seconds) and 0 <= seconds <= SECONDS_MAX):
            return f"{host} sets {name} to {seconds:g}; a length of time is 0 or more"
    if settings is None:
        return None
    if (theirs.min_nodes, theirs.max_nodes) != (settings.min_nodes, settings.max_nodes):
        return (
            f"{host} asks for {theirs.min_nodes}:{theirs.max_nodes} nodes, but run '{run}' was started "
            f"with {settings.min_nodes}:{settings.max_nodes}; start every node with the same --nnodes"
        )
    if settings.fixed_ranks and (taken := _rank_taken(spec, nodes)) is not None:
        return taken
    # One that was in a round already is no newcomer: after a restart of the coordinator others may have come first.
    if join.place is None and 0 <= settings.spares <= len(nodes) - settings.max_nodes:
        return f"run '{run}' is full: {settings.max_nodes} nodes and {settings.spares} spares are there already"
    return None


def left_over(nodes: Mapping[str, Node]) -> list[Node]:
    """Return the nodes of an earlier launch whose places agents of a later one, which is whole, have taken.

    A coordinator that was started again cannot tell whether a node that comes back from an older round survived its
    predecessor or was forgotten: both continue. It knows once so many new agents have come that they are a whole run by
    themselves, and there is one of them on the very host of the old one.
    """
    hosts = {node.spec.host for node in nodes.values() if not node.earlier}
    return [node for node in nodes.values() if node.earlier and node.spec.host in hosts]


def _rank_taken(spec: NodeSpec, nodes: Mapping[str, Node]) -> str | None:
    for node in nodes.values():
        if node.spec.node_rank == spec.node_rank and node.spec.node != spec.node:
            return f"{node.name} has node rank {spec.node_rank} already; give every node its own --node-rank"
    return None
