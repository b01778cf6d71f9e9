"""What to run, as data: an app and its roles. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.specs.mounts import BindMount, DeviceMount, VolumeMount
from holdfast.specs.resource import NULL_RESOURCE, Resource

if TYPE_CHECKING:
    from holdfast.specs.cfg import CfgVal

#: Placeholders with TorchX's names.
ALL = "all"
MISSING = "<MISSING>"
NONE = "<NONE>"
UNKNOWN = "<UNKNOWN>"

T = TypeVar("T")


class RetryPolicy(enum.StrEnum):
    """What is started again when a replica fails."""

    REPLICA = "REPLICA"  #: the replica alone
    APPLICATION = "APPLICATION"  #: the whole app
    ROLE = "ROLE"  #: every replica of its role


@dataclass
class Role:
    """A set of equal replicas: what each runs, where, and how many there are."""

    name: str
    image: str
    min_replicas: int | None = None
    #: An image below `image`, for schedulers that support it; none of ours does.
    base_image: str | None = None
    entrypoint: str = MISSING
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    num_replicas: int = 1
    max_retries: int = 0
    retry_policy: RetryPolicy = RetryPolicy.APPLICATION
    resource: Resource = field(default_factory=lambda: Resource.copy(NULL_RESOURCE))
    port_map: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    mounts: list[BindMount | VolumeMount | DeviceMount] = field(default_factory=list)
    #: Folders of code to ship: a path or URL, or several as {source: destination below the image's root}.
    workspace: str | dict[str, str] | None = None

    def pre_proc(self, scheduler: str, dryrun_info: AppDryRunInfo[Any]) -> AppDryRunInfo[Any]:
        """Change the native request just before it is shown or submitted; a role of your own overrides this."""
        del scheduler
        return dryrun_info


@dataclass
class AppDef:
    """An app: a name and the roles that run together."""

    name: str
    roles: list[Role] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)


class AppDryRunInfo(Generic[T]):
    """The scheduler's own request before it is submitted; it may still be changed, and printing shows it."""

    def __init__(self, request: T, fmt: Callable[[T], str]) -> None:
        self.request = request
        self._fmt = fmt
        #: Filled by the scheduler: the app, the resolved run options and the scheduler's name.
        self._app: AppDef | None = None
        self._cfg: dict[str, CfgVal] = {}
        self._scheduler: str | None = None

    @property
    def app(self) -> AppDef | None:
        """The app that this request is for."""
        return self._app

    @property
    def cfg(self) -> dict[str, CfgVal]:
        """The run options with which it was made, defaults filled in."""
        return self._cfg

    def __repr__(self) -> str:
        return self._fmt(self.request)
