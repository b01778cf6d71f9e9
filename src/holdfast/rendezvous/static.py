"""The static backend: the user gives the master's address and every node's rank.

It is the native rendezvous with nothing left to choose: all nodes must come, rank 0 carries the coordinator at the
master's endpoint, and the ranks are binding. What torchrun's static backend lacks comes with it: peers are told of a
failure, and every restart gets fresh names and a fresh port.

One node alone needs no place to meet others. There the port is the workers' own, so that their
`init_process_group(init_method="tcp://localhost:PORT")` works. With several nodes the coordinator has the port, and
workers use `env://`.
"""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.rendezvous.api import RendezvousParameters
from holdfast.rendezvous.native import HoldfastRendezvousHandler
from holdfast.wire.address import Endpoint, parse_endpoint

MASTER_PORT = 29500


def create_handler(params: RendezvousParameters) -> HoldfastRendezvousHandler:
    """Make the handler of a node whose rank is known."""
    if params.min_nodes != params.max_nodes:
        raise UsageError(
            "the static backend has a fixed number of nodes: give --nnodes N, or use --rdzv-backend holdfast"
        )
    rank = params.get_as_int("node_rank", params.get_as_int("rank", 0)) or 0
    if not 0 <= rank < params.max_nodes:
        raise UsageError(f"--node-rank {rank} does not fit {params.max_nodes} nodes: use 0 to {params.max_nodes - 1}")
    return HoldfastRendezvousHandler(fix_ranks(params, parse_endpoint(params.endpoint, MASTER_PORT), rank))


def fix_ranks(params: RendezvousParameters, where: Endpoint, rank: int) -> RendezvousParameters:
    """Leave nothing to choose: where to meet, and as which rank."""
    config = {"is_host": rank == 0, **params.config, "node_rank": rank, "fixed_ranks": True}
    if params.max_nodes == 1 and where.port:
        config["master_port"] = where.port
        where = Endpoint("localhost", 0)
    return RendezvousParameters(
        backend=params.backend,
        endpoint=str(where),
        run_id=params.run_id,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        local_addr=params.local_addr,
        **config,
    )
