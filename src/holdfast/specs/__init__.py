"""What to run, as data: apps, roles, resources, mounts, macros, run options, states and handles."""

from holdfast.specs.app import ALL, MISSING, NONE, UNKNOWN, AppDef, AppDryRunInfo, RetryPolicy, Role
from holdfast.specs.handles import (
    AppHandle,
    MalformedAppHandleException,
    ParsedAppHandle,
    make_app_handle,
    parse_app_handle,
)
from holdfast.specs.mounts import BindMount, DeviceMount, MountType, VolumeMount
from holdfast.specs.resource import NULL_RESOURCE, GiB, Resource
from holdfast.specs.runopts import CfgVal
from holdfast.specs.states import (
    AppState,
    AppStatus,
    AppStatusError,
    ReplicaState,
    ReplicaStatus,
    RoleStatus,
    is_started,
    is_terminal,
)

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
    "MalformedAppHandleException",
    "MountType",
    "ParsedAppHandle",
    "ReplicaState",
    "ReplicaStatus",
    "Resource",
    "RetryPolicy",
    "Role",
    "RoleStatus",
    "VolumeMount",
    "is_started",
    "is_terminal",
    "make_app_handle",
    "parse_app_handle",
]
