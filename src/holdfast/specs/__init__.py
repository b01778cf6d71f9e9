"""What to run, as data: apps, roles, resources, mounts, macros, run options, states and handles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.errors import (
    AppStatusError,
    InvalidRunConfigError,
    MalformedAppHandleError,
    UnknownAppError,
    UnknownSchedulerError,
)
from holdfast.specs.app import ALL, MISSING, NONE, UNKNOWN, AppDef, AppDryRunInfo, RetryPolicy, Role
from holdfast.specs.builders import parse_mounts
from holdfast.specs.catalog import get_named_resources, named_resources, register_named_resource, resource
from holdfast.specs.cfg import CfgVal
from holdfast.specs.handles import AppHandle, ParsedAppHandle, make_app_handle, parse_app_handle
from holdfast.specs.macros import macros
from holdfast.specs.mounts import BindMount, DeviceMount, MountType, VolumeMount
from holdfast.specs.resource import NULL_RESOURCE, GiB, Resource
from holdfast.specs.runopts import runopt, runopts

if TYPE_CHECKING:
    from holdfast.specs.instance_types import ResourceFactory
    from holdfast.specs.states import (
        AppState,
        AppStatus,
        ReplicaState,
        ReplicaStatus,
        RoleStatus,
        is_started,
        is_terminal,
    )

    #: What makes each named resource; a plain dict to which programs may add.
    _named_resource_factories: dict[str, ResourceFactory]
else:

    def __getattr__(name: str) -> Any:
        """Import named resources and states when they are first used: describing an app needs neither."""
        if name == "_named_resource_factories":
            from holdfast.specs.sources import load

            return globals().setdefault(name, load())
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from holdfast.specs import states

        return globals().setdefault(name, getattr(states, name))


__all__ = [
    "ALL",
    "MISSING",
    "NONE",
    "NULL_RESOURCE",
    "UNKNOWN",
    "AppDef",
    "AppDryRunInfo",
    "AppHandle",
    "AppState",
    "AppStatus",
    "AppStatusError",
    "BindMount",
    "CfgVal",
    "DeviceMount",
    "GiB",
    "InvalidRunConfigError",
    "MalformedAppHandleError",
    "MountType",
    "ParsedAppHandle",
    "ReplicaState",
    "ReplicaStatus",
    "Resource",
    "RetryPolicy",
    "Role",
    "RoleStatus",
    "UnknownAppError",
    "UnknownSchedulerError",
    "VolumeMount",
    "get_named_resources",
    "is_started",
    "is_terminal",
    "macros",
    "make_app_handle",
    "named_resources",
    "parse_app_handle",
    "parse_mounts",
    "register_named_resource",
    "resource",
    "runopt",
    "runopts",
]


def __dir__() -> list[str]:
    return __all__
