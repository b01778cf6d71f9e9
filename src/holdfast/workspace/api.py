"""The interface of a scheduler that ships code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from holdfast.specs import AppDef, CfgVal, Role, runopts

#: A folder, or several, each with where it goes below the job's root.
Workspace = str | Mapping[str, str]


#: The type that `dryrun_push_images` returns and `push_images` takes.
T = TypeVar("T")


class WorkspaceMixin(Generic[T]):
    """The mixin of a scheduler that ships code; the runner calls `build_workspaces` before it makes the request."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)

    def workspace_opts(self) -> runopts:
        """The run options that concern the workspace."""
        from holdfast.specs import runopts

        return runopts()

    def build_workspaces(self, roles: list[Role], cfg: Mapping[str, CfgVal]) -> None:
        """Build the workspace of every role that has one; equal ones are built once."""
        cache: dict[object, Any] = {}
        for role in roles:
            if role.workspace:
                self.caching_build_workspace_and_update_role(role, cfg, cache)

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, Any]
    ) -> None:
        """Build one role's workspace, or take the image that was built for an equal one."""
        assert role.workspace is not None
        several = role.workspace if isinstance(role.workspace, str) else tuple(sorted(role.workspace.items()))
        key = (role.image, several)
        if key in build_cache:
            role.image = build_cache[key]
            return
        self.build_workspace_and_update_role(role, role.workspace, cfg)
        build_cache[key] = role.image

    def build_workspace_and_update_role(self, role: Role, workspace: Workspace, cfg: Mapping[str, CfgVal]) -> None:
        """Build an image or folder with the workspace in it and name it in `role.image`."""
        raise NotImplementedError

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> T:
        """Name the images as they will be called once pushed; returns what `push_images` needs."""
        raise NotImplementedError(f"{type(self).__qualname__} pushes no images")

    def push_images(self, images_to_push: T) -> None:
        """Push what `dryrun_push_images` named."""
        raise NotImplementedError(f"{type(self).__qualname__} pushes no images")
