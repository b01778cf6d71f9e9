"""Sizes that mean about the same everywhere: `gpu.small`, `cpu.large`, ... Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from holdfast.specs.instance_types import ResourceFactory, identifiers
from holdfast.specs.resource import GiB, Resource

_SIZES: dict[str, tuple[int, int, int]] = {
    "gpu.small": (8, 1, 32 * GiB),
    "gpu.medium": (16, 2, 64 * GiB),
    "gpu.large": (32, 4, 128 * GiB),
    "gpu.xlarge": (64, 8, 256 * GiB),
    "cpu.nano": (1, 0, GiB // 2),
    "cpu.micro": (1, 0, 1 * GiB),
    "cpu.small": (1, 0, 2 * GiB),
    "cpu.medium": (2, 0, 4 * GiB),
    "cpu.large": (2, 0, 8 * GiB),
    "cpu.xlarge": (8, 0, 32 * GiB),
}

NAMED_RESOURCES: Mapping[str, ResourceFactory] = {name: partial(Resource, *size) for name, size in _SIZES.items()}

globals().update(identifiers(NAMED_RESOURCES))
