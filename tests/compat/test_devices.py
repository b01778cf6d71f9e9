"""Devices that a resource counts, as mounts."""

from __future__ import annotations

import pytest

from holdfast.compat.torchx.devices import EFA_DEVICE, NEURON_DEVICE, get_device_mounts
from holdfast.specs import DeviceMount


def test_each_device_is_mounted_at_its_own_place() -> None:
    assert get_device_mounts({EFA_DEVICE: 2, NEURON_DEVICE: 1}) == [
        DeviceMount("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs0"),
        DeviceMount("/dev/infiniband/uverbs1", "/dev/infiniband/uverbs1"),
        DeviceMount("/dev/neuron0", "/dev/neuron0"),
    ]


def test_a_device_that_is_not_known_is_told_about() -> None:
    with pytest.warns(UserWarning, match="Could not find named device: foo"):
        assert get_device_mounts({"foo": 1}) == []
