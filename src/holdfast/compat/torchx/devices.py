"""Devices that a resource counts by name, as the mounts that bring them into a container. Pure."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial

from holdfast.specs.mounts import DeviceMount
from holdfast.specs.named_resources_aws import EFA_DEVICE, NEURON_DEVICE

__all__ = [
    "DEVICES",
    "EFA_DEVICE",
    "NEURON_DEVICE",
    "efa_to_devicemounts",
    "get_device_mounts",
    "neuron_to_devicemounts",
    "to_devicemounts",
]


def to_devicemounts(num_devices: int, device_type: str) -> list[DeviceMount]:
    """Return a mount for each of so many devices, `<device_type>0` and on, at the same place inside."""
    paths = [f"{device_type}{number}" for number in range(num_devices)]
    return [DeviceMount(src_path=path, dst_path=path) for path in paths]


efa_to_devicemounts = partial(to_devicemounts, device_type="/dev/infiniband/uverbs")
neuron_to_devicemounts = partial(to_devicemounts, device_type="/dev/neuron")

#: By the name under which a resource counts it: what makes the mounts for so many.
DEVICES: Mapping[str, Callable[[int], list[DeviceMount]]] = {
    EFA_DEVICE: efa_to_devicemounts,
    NEURON_DEVICE: neuron_to_devicemounts,
}


def get_device_mounts(devices: dict[str, int]) -> list[DeviceMount]:
    """Return the mounts for a resource's `devices`; a device that is not known is told about and left out."""
    mounts: list[DeviceMount] = []
    for name, count in devices.items():
        if name in DEVICES:
            mounts += DEVICES[name](count)
        else:
            warnings.warn(f"Could not find named device: {name}", UserWarning, stacklevel=2)
    return mounts
