"""Tables of machines that clouds rent out, one line each, turned into named resources. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.specs.resource import GiB, Resource

ResourceFactory = Callable[[], Resource]

#: What Kubernetes calls a node by its machine's type; schedulers place replicas by it.
K8S_ITYPE = "node.kubernetes.io/instance-type"

#: The part of a machine's memory that a job can have: the system and the cluster's own daemons need the rest, and a job
#: that asks for all of it would wait for ever.
MEM_TAX = 0.96
USABLE_GiB = int(GiB * MEM_TAX)


def instance_types(prefix: str, table: str, devices: Mapping[str, str] | None = None) -> dict[str, ResourceFactory]:
    """Read a table of `type cpus gpus GiB [device=count ...]`; `devices` gives the devices' full names."""
    factories: dict[str, ResourceFactory] = {}
    for line in table.strip().splitlines():
        name, cpus, gpus, gib, *extras = line.split()
        counts = {}
        for extra in extras:
            device, _, count = extra.partition("=")
            counts[(devices or {})[device]] = int(count)
        mem_mb = int(float(gib) * USABLE_GiB)
        factories[prefix + name] = _factory(name, int(cpus), int(gpus), mem_mb, counts)
    return factories


def _factory(name: str, cpu: int, gpu: int, mem_mb: int, devices: dict[str, int]) -> ResourceFactory:
    def machine() -> Resource:
        return Resource(cpu, gpu, mem_mb, capabilities={K8S_ITYPE: name}, devices=dict(devices))

    return machine


def identifiers(factories: Mapping[str, ResourceFactory]) -> dict[str, ResourceFactory]:
    """The factories by names that Python can import: `aws_p5_48xlarge` for `aws_p5.48xlarge`."""
    return {name.replace(".", "_").replace("-", "_"): factory for name, factory in factories.items()}
