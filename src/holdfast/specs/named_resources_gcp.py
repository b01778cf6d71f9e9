"""The machines of Google Cloud as named resources, `gcp_<machine type>`, from its published specifications. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.specs.instance_types import ResourceFactory, identifiers, instance_types

_TABLE = """
a2-highgpu-1g 12 1 85
a2-highgpu-2g 24 2 170
a2-highgpu-4g 48 4 340
a2-highgpu-8g 96 8 680
a2-megagpu-16g 96 16 1360
a2-ultragpu-1g 12 1 170
a2-ultragpu-2g 24 2 340
a2-ultragpu-4g 48 4 680
a2-ultragpu-8g 96 8 1360
a3-highgpu-1g 26 1 234
a3-highgpu-2g 52 2 468
a3-highgpu-4g 104 4 936
a3-highgpu-8g 208 8 1872
a3-megagpu-8g 208 8 1872
a3-edgegpu-8g 208 8 1872
a3-ultragpu-8g 224 8 2952
a4-highgpu-8g 224 8 3968
a4x-highgpu-4g 140 4 884
g2-standard-4 4 1 16
g2-standard-8 8 1 32
g2-standard-12 12 1 48
g2-standard-16 16 1 64
g2-standard-24 24 2 96
g2-standard-32 32 1 128
g2-standard-48 48 4 192
g2-standard-96 96 8 384
n1-standard-1 1 0 3.75
n1-standard-2 2 0 7.5
n1-standard-4 4 0 15
n1-standard-8 8 0 30
n1-standard-16 16 0 60
n1-standard-32 32 0 120
n1-standard-64 64 0 240
n1-standard-96 96 0 360
n2-standard-2 2 0 8
n2-standard-4 4 0 16
n2-standard-8 8 0 32
n2-standard-16 16 0 64
n2-standard-32 32 0 128
n2-standard-48 48 0 192
n2-standard-64 64 0 256
n2-standard-80 80 0 320
n2-standard-96 96 0 384
n2-standard-128 128 0 512
"""

NAMED_RESOURCES: Mapping[str, ResourceFactory] = instance_types("gcp_", _TABLE)

globals().update(identifiers(NAMED_RESOURCES))
