"""A launch inside a step of Slurm finds the other nodes by itself. Pure.

`srun holdfast launch train.py` starts a launch on every node of the step. Slurm tells each which nodes there are, and
which of them it is: that is all they need to meet, as long as the user names no other place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from holdfast.errors import UsageError
from holdfast.launcher.options import OPTIONS, LaunchOptions

#: Ports for the first node: below those that the kernel gives out, so that few programs have them.
PORT_FIRST, PORTS = 20_000, 12_000


def within_step(
    options: LaunchOptions, environ: Mapping[str, str], reachable: Callable[[str], str] = str
) -> LaunchOptions:
    """Fill in where nodes meet from Slurm's variables; options that name a place, or one node, stay as they are.

    `reachable` returns the address of a node by its name. Raises `UsageError` where a step starts several launches on
    a node.
    """
    nodes = _number(environ.get("SLURM_STEP_NUM_NODES", ""))
    named = options.standalone or options.rdzv_endpoint or options.master_addr or options.master_port is not None
    if nodes < 2 or named or "SLURM_STEP_ID" not in environ or options.rdzv_backend not in ("", "holdfast", "c10d"):
        return options
    given = options.nnodes != OPTIONS["nnodes"].default
    if given and options.nnodes.rpartition(":")[2].strip() == "1":
        return options
    tasks = _number(environ.get("SLURM_STEP_NUM_TASKS", ""))
    if tasks > nodes:
        raise UsageError(
            f"this step has {tasks} tasks on {nodes} nodes, and a launch starts all workers of its node: "
            "give srun --ntasks-per-node=1, and the launch --nproc-per-node"
        )
    job, step = environ.get("SLURM_JOB_ID", ""), environ["SLURM_STEP_ID"]
    first = reachable(first_node(environ.get("SLURM_STEP_NODELIST", "")))
    return replace(
        options,
        nnodes=options.nnodes if given else str(nodes),
        rdzv_backend="holdfast",
        rdzv_endpoint=f"{first}:{port_of(f'{job}.{step}')}",
        rdzv_id=f"{job}.{step}" if options.rdzv_id == OPTIONS["rdzv_id"].default else options.rdzv_id,
        node_rank=_number(environ.get("SLURM_NODEID", "")) if options.node_rank is None else options.node_rank,
    )


def first_node(text: str) -> str:
    """Return the first of a list of nodes: of `r[2-3]n[08,10],m` it is r2n08."""
    name, rest = "", text
    while rest and rest[0] != ",":
        if rest[0] == "[":
            inner, _, rest = rest[1:].partition("]")
            name += inner.partition(",")[0].partition("-")[0]
        else:
            name, rest = name + rest[0], rest[1:]
    return name


def port_of(seed: str, attempt: int = 0) -> int:
    """Choose a port by a job's id, for nodes that cannot ask each other before they meet."""
    total = 0
    for byte in f"{seed}.{attempt}".encode():
        total = (total * 31 + byte) % 2_147_483_647
    return PORT_FIRST + total % PORTS


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
