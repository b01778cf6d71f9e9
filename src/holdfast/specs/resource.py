"""The resources that one replica needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

#: Megabytes in a gibibyte, for readable memory sizes: `memMB=4 * GiB`.
GiB = 1024


@dataclass
class Resource:
    """CPUs, GPUs and memory of one replica; -1 means that nothing is asked for.

    `cpu` and `gpu` may be fractions if the scheduler can share them. `capabilities` say what kind of machine is
    wanted, `devices` count further devices (as in `{"vpc.amazonaws.com/efa": 4}`), `tags` are for the user.
    """

    cpu: float
    gpu: float
    memMB: int
    capabilities: dict[str, Any] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    tags: dict[str, object] = field(default_factory=dict)

    @staticmethod
    def copy(original: Resource, **capabilities: Any) -> Resource:
        """Return a copy that shares nothing with the original, with these capabilities added or changed."""
        return replace(
            original,
            capabilities={**original.capabilities, **capabilities},
            devices=dict(original.devices),
            tags=dict(original.tags),
        )

    def is_fractional(self) -> bool:
        """Whether CPUs or GPUs are asked for in fractions."""
        return float(self.cpu) != int(self.cpu) or float(self.gpu) != int(self.gpu)

    def to_json(self) -> dict[str, Any]:
        """Describe the resource as plain data."""
        return {
            "cpu": self.cpu,
            "gpu": self.gpu,
            "memMB": self.memMB,
            "capabilities": dict(self.capabilities),
            "devices": dict(self.devices),
            "tags": dict(self.tags),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Resource:
        """Read what `to_json` wrote."""
        return cls(**{key: value for key, value in data.items() if key in cls.__dataclass_fields__})


#: Nothing is asked for; schedulers that need to know refuse it.
NULL_RESOURCE = Resource(cpu=-1, gpu=-1, memMB=-1)
