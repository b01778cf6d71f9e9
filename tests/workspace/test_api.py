"""What a scheduler that ships code has."""

from __future__ import annotations

from holdfast.specs import Role
from holdfast.workspace import WorkspaceMixin


class Builder(WorkspaceMixin):
    def __init__(self) -> None:
        self.built: list[object] = []

    def build_workspace_and_update_role(self, role: Role, workspace: object, cfg: object) -> None:
        self.built.append(workspace)
        role.image = f"built{len(self.built)}"


def test_equal_workspaces_are_built_once_for_all_roles() -> None:
    builder = Builder()
    places: list[str | dict[str, str] | None] = ["/a", {"/a": "x"}, "/a", {"/a": "x"}, None]
    roles = [Role(f"r{number}", "base", workspace=where) for number, where in enumerate(places)]
    builder.build_workspaces(roles, {})

    assert builder.built == ["/a", {"/a": "x"}]
    assert [role.image for role in roles] == ["built1", "built2", "built1", "built2", "base"]
