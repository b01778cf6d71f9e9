"""Mounts of a replica: folders, volumes, devices. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class MountType(enum.StrEnum):
    """The kinds of mounts."""

    BIND = "bind"
    VOLUME = "volume"
    DEVICE = "device"


@dataclass
class BindMount:
    """A folder or file of the host."""

    src_path: str
    dst_path: str
    read_only: bool = False


@dataclass
class VolumeMount:
    """A volume that the scheduler knows by name."""

    src: str
    dst_path: str
    read_only: bool = False


@dataclass
class DeviceMount:
    """A device of the host; permissions out of r(ead), w(rite), m(knod)."""

    src_path: str
    dst_path: str
    permissions: str = "rwm"
