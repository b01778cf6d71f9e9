"""Apps as plain data, for disks, wires and `describe`. Pure.

This version and later ones can read what was written: unknown fields are skipped, fields that
are missing have their defaults. A role's class is not kept: what `pre_proc` does has been done when an app is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from holdfast.specs.app import AppDef, RetryPolicy, Role
from holdfast.specs.mounts import BindMount, DeviceMount, MountType, VolumeMount
from holdfast.specs.resource import Resource

T = TypeVar("T")

_MOUNTS: dict[MountType, type[BindMount] | type[VolumeMount] | type[DeviceMount]] = {
    MountType.BIND: BindMount,
    MountType.VOLUME: VolumeMount,
    MountType.DEVICE: DeviceMount,
}
_MOUNT_TYPES = {cls: kind for kind, cls in _MOUNTS.items()}


def appdef_to_json(app: AppDef) -> dict[str, Any]:
    """Describe an app as JSON values."""
    return {"name": app.name, "roles": [role_to_json(role) for role in app.roles], "metadata": dict(app.metadata)}


def appdef_from_json(data: Mapping[str, Any]) -> AppDef:
    """Read what `appdef_to_json` wrote."""
    return AppDef(
        name=data["name"],
        roles=[role_from_json(role) for role in data.get("roles", ())],
        metadata=dict(data.get("metadata", {})),
    )


def role_to_json(role: Role) -> dict[str, Any]:
    """Describe a role as JSON values."""
    data = {name: getattr(role, name) for name in Role.__dataclass_fields__}
    data["retry_policy"] = role.retry_policy.value
    data["resource"] = role.resource.to_json()
    data["mounts"] = [{"type": _MOUNT_TYPES[type(mount)].value, **asdict(mount)} for mount in role.mounts]
    return data


def role_from_json(data: Mapping[str, Any]) -> Role:
    """Read what `role_to_json` wrote."""
    known = dict(data)
    if "retry_policy" in known:
        known["retry_policy"] = RetryPolicy(known["retry_policy"])
    if "resource" in known:
        known["resource"] = Resource.from_json(known["resource"])
    if "mounts" in known:
        known["mounts"] = [_read(_MOUNTS[MountType(mount["type"])], mount) for mount in known["mounts"]]
    return _read(Role, known)


def _read(cls: type[T], data: Mapping[str, Any]) -> T:
    """Make an object of the fields that it has."""
    fields = cls.__dataclass_fields__  # type: ignore[attr-defined]
    return cls(**{name: value for name, value in data.items() if name in fields})
