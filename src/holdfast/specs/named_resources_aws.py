"""The machines of AWS as named resources, `aws_<instance type>`, from its published specifications. Pure."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from holdfast.specs.instance_types import K8S_ITYPE, MEM_TAX, ResourceFactory, identifiers, instance_types
from holdfast.specs.instance_types import USABLE_GiB as GiB
from holdfast.specs.resource import Resource

__all__ = [
    "EFA_DEVICE",
    "K8S_ITYPE",
    "MEM_TAX",
    "NAMED_RESOURCES",
    "NEURON_DEVICE",
    "GiB",
    "Resource",
    "instance_type_from_resource",
]

EFA_DEVICE = "vpc.amazonaws.com/efa"
NEURON_DEVICE = "aws.amazon.com/neurondevice"

# c5.18xlarge has 144 GiB, of which its system takes more than usual.
_TABLE = """
t3.nano 2 0 0.5
t3.micro 2 0 1
t3.small 2 0 2
t3.medium 2 0 4
t3.large 2 0 8
t3.xlarge 4 0 16
t3.2xlarge 8 0 32
m5.large 2 0 8
m5.xlarge 4 0 16
m5.2xlarge 8 0 32
m5.4xlarge 16 0 64
m5.8xlarge 32 0 128
m5.12xlarge 48 0 192
m5.16xlarge 64 0 256
m5.24xlarge 96 0 384
m5d.large 2 0 8
m5d.xlarge 4 0 16
m5d.2xlarge 8 0 32
m5d.4xlarge 16 0 64
m5d.8xlarge 32 0 128
m5d.12xlarge 48 0 192
m5d.16xlarge 64 0 256
m5d.24xlarge 96 0 384
c5.large 2 0 4
c5.xlarge 4 0 8
c5.2xlarge 8 0 16
c5.4xlarge 16 0 32
c5.9xlarge 36 0 72
c5.12xlarge 48 0 96
c5.18xlarge 72 0 142
c5.24xlarge 96 0 192
p3.2xlarge 8 1 61
p3.8xlarge 32 4 244
p3.16xlarge 64 8 488
p3dn.24xlarge 96 8 768 efa=1
p4d.24xlarge 96 8 1152 efa=4
p4de.24xlarge 96 8 1152 efa=4
p5.4xlarge 16 1 256 efa=1
p5.48xlarge 192 8 2048 efa=32
p5e.48xlarge 192 8 2048 efa=32
p5en.48xlarge 192 8 2048 efa=16
p6-b200.48xlarge 192 8 2048 efa=8
p6-b300.48xlarge 192 8 4096 efa=16
p6e-gb200.36xlarge 144 4 960 efa=8
g4dn.xlarge 4 1 16
g4dn.2xlarge 8 1 32
g4dn.4xlarge 16 1 64
g4dn.8xlarge 32 1 128 efa=1
g4dn.12xlarge 48 4 192 efa=1
g4dn.16xlarge 64 1 256 efa=1
g4dn.metal 96 8 384 efa=1
g5.xlarge 4 1 16
g5.2xlarge 8 1 32
g5.4xlarge 16 1 64
g5.8xlarge 32 1 128 efa=1
g5.12xlarge 48 4 192 efa=1
g5.16xlarge 64 1 256 efa=1
g5.24xlarge 96 4 384 efa=1
g5.48xlarge 192 8 768 efa=1
g6.xlarge 4 1 16
g6.2xlarge 8 1 32
g6.4xlarge 16 1 64
g6.8xlarge 32 1 128 efa=1
g6.12xlarge 48 4 192 efa=1
g6.16xlarge 64 1 256 efa=1
g6.24xlarge 96 4 384 efa=1
g6.48xlarge 192 8 768 efa=1
g6e.xlarge 4 1 32
g6e.2xlarge 8 1 64
g6e.4xlarge 16 1 128
g6e.8xlarge 32 1 256
g6e.12xlarge 48 4 384
g6e.16xlarge 64 1 512
g6e.24xlarge 96 4 768 efa=2
g6e.48xlarge 192 8 1536 efa=4
trn1.2xlarge 8 0 32 neuron=1
trn1.32xlarge 128 0 512 efa=8 neuron=16
trn1n.32xlarge 128 0 512 efa=16 neuron=16
trn2.48xlarge 192 0 2048 efa=16 neuron=16
inf2.xlarge 4 0 16 neuron=1
inf2.8xlarge 32 0 128 neuron=1
inf2.24xlarge 96 0 384 neuron=6
inf2.48xlarge 192 0 768 neuron=12
"""


def instance_type_from_resource(resource: Resource) -> str:
    """Return the machine type from a resource's capabilities; empty, with a warning, if they do not name it."""
    found = resource.capabilities.get(K8S_ITYPE)
    if found is None:
        warnings.warn(
            f"Cannot determine the instance type of {resource}: give it the capability {K8S_ITYPE}",
            UserWarning,
            stacklevel=2,
        )
    return str(found or "")


NAMED_RESOURCES: Mapping[str, ResourceFactory] = instance_types(
    "aws_", _TABLE, {"efa": EFA_DEVICE, "neuron": NEURON_DEVICE}
)

globals().update(identifiers(NAMED_RESOURCES))
