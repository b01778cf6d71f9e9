"""NUMA binding: which CPUs each worker may run on, read from /sys, so that no numactl is needed.

A worker belongs to the NUMA node of its GPU; without GPUs, workers are spread over the nodes in
order. The modes:

- `node`: all CPUs of that node;
- `socket`: all CPUs of that node's socket;
- `exclusive`: a share of the node's cores (with their threads) that no other worker of the node has;
- `core-complex`: the CPUs behind one L3 cache of the node, a different one for each worker while there are
  enough.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import UnavailableError
from holdfast.facts import facts
from holdfast.workers.accelerators import gpu_addresses, visible_devices


class AffinityMode(enum.StrEnum):
    """How closely a worker is bound."""

    NODE = "node"
    SOCKET = "socket"
    EXCLUSIVE = "exclusive"
    CORE_COMPLEX = "core-complex"


@dataclass(frozen=True)
class NumaOptions:
    """Which binding is wanted, and whether workers run unbound if it is not possible."""

    affinity_mode: AffinityMode
    should_fall_back_if_binding_fails: bool = False


@dataclass(frozen=True, slots=True)
class Cpu:
    """Where a CPU sits: the same `core` means threads of one core, the same `cache` a shared L3."""

    number: int
    node: int
    socket: int
    core: tuple[int, ...]
    cache: tuple[int, ...]


def bind(options: NumaOptions | None, local_world_size: int, root: Path = Path("/")) -> dict[int, frozenset[int]]:
    """Return each local rank's CPUs; empty without options, or if binding fails and is optional."""
    if options is None:
        return {}
    try:
        cpus = read_cpus(root)
        mode = AffinityMode(options.affinity_mode.value)  # torch has an enum of its own with the same values
        return choose(mode, cpus, nodes_of_ranks(local_world_size, cpus, root))
    except (OSError, ValueError, UnavailableError) as error:
        if not options.should_fall_back_if_binding_fails:
            raise UnavailableError(f"workers cannot be bound to NUMA nodes here: {error}") from error
        facts.warn("numa_unbound", f"workers run unbound: {error}")
        return {}


def choose(mode: AffinityMode, cpus: list[Cpu], nodes: list[int]) -> dict[int, frozenset[int]]:
    """Choose each rank's CPUs; `nodes` names the NUMA node of every rank."""
    chosen: dict[int, frozenset[int]] = {}
    for rank, node in enumerate(nodes):
        here = [cpu for cpu in cpus if cpu.node == node]
        if not here:
            raise UnavailableError(f"this process may not use any CPU of NUMA node {node}")
        sharers = [other for other, its in enumerate(nodes) if its == node]
        place = sharers.index(rank)
        if mode is AffinityMode.NODE:
            mine = here
        elif mode is AffinityMode.SOCKET:
            sockets = {cpu.socket for cpu in here}
            mine = [cpu for cpu in cpus if cpu.socket in sockets]
        elif mode is AffinityMode.EXCLUSIVE:
            cores = list(dict.fromkeys(cpu.core for cpu in here))
            if len(cores) < len(sharers):
                raise UnavailableError(f"NUMA node {node} has {len(cores)} cores for {len(sharers)} workers")
            mine = [cpu for cpu in here if cpu.core in _share(cores, place, len(sharers))]
        else:
            caches = list(dict.fromkeys(cpu.cache for cpu in here))
            mine = [cpu for cpu in here if cpu.cache == caches[place % len(caches)]]
        chosen[rank] = frozenset(cpu.number for cpu in mine)
    return chosen


def _share(cores: list[tuple[int, ...]], place: int, parts: int) -> list[tuple[int, ...]]:
    """Cut the cores into `parts` contiguous shares that differ by one at most, and return one of them."""
    return cores[len(cores) * place // parts : len(cores) * (place + 1) // parts]


def nodes_of_ranks(local_world_size: int, cpus: list[Cpu], root: Path = Path("/")) -> list[int]:
    """Name the NUMA node of every local rank: its GPU's, or spread over all nodes if there are no GPUs."""
    addresses = gpu_addresses(root)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and addresses:
        numbers = visible_devices(visible, len(addresses))
        if not all(number.isdecimal() for number in numbers):
            raise UnavailableError("CUDA_VISIBLE_DEVICES names GPUs by UUID, whose index is not known")
        addresses = [addresses[int(number)] for number in numbers]
    known = sorted({cpu.node for cpu in cpus})
    if not addresses:
        return [known[rank * len(known) // local_world_size] for rank in range(local_world_size)]
    if len(addresses) < local_world_size:
        raise UnavailableError(f"there are {len(addresses)} GPUs for {local_world_size} workers")
    return [_node_of_gpu(address, known[0], root) for address in addresses[:local_world_size]]


def _node_of_gpu(address: str, default: int, root: Path) -> int:
    node = int((root / "sys/bus/pci/devices" / address.lower() / "numa_node").read_text())
    return node if node >= 0 else default  # -1 is what a machine with one node says


def read_cpus(root: Path = Path("/")) -> list[Cpu]:
    """Describe the CPUs that this process may use, in order."""
    nodes: dict[int, int] = {}
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        for number in parse_list((folder / "cpulist").read_text()):
            nodes[number] = int(folder.name[4:])
    if not nodes:
        raise UnavailableError("the kernel shows no NUMA nodes in /sys")
    allowed = os.sched_getaffinity(0) if root == Path("/") else set(nodes)
    return [_read_cpu(root, number, nodes[number]) for number in sorted(nodes) if number in allowed]


def _read_cpu(root: Path, number: int, node: int) -> Cpu:
    folder = root / f"sys/devices/system/cpu/cpu{number}"
    core = parse_list((folder / "topology/thread_siblings_list").read_text())
    cache_file = folder / "cache/index3/shared_cpu_list"
    cache = parse_list(cache_file.read_text()) if cache_file.exists() else [-1 - node]
    socket = int((folder / "topology/physical_package_id").read_text())
    return Cpu(number, node, socket, tuple(core), tuple(cache))


def parse_list(text: str) -> list[int]:
    """Read the kernel's lists: `0-3,8` is 0, 1, 2, 3, 8."""
    numbers: list[int] = []
    for item in text.strip().split(","):
        first, dash, last = item.partition("-")
        if item:
            numbers += range(int(first), int(last if dash else first) + 1)
    return numbers
