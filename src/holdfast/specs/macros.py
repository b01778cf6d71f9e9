"""Macros: placeholders in a role that are replaced once the place and number of a replica are known. Pure."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from string import Template
from typing import Any

from holdfast.specs.app import Role


class macros:  # noqa: N801 - the name that components are written with
    """Write these in a role's arguments, environment or metadata; each replica gets the value.

    A `${word}` that is none of these stays as it is, for a shell to expand; `$$` becomes `$`.
    """

    img_root = "${img_root}"  #: the root of the image's file system
    app_id = "${app_id}"  #: the job's id
    replica_id = "${replica_id}"  #: the number of the replica within its role
    rank0_env = "${rank0_env}"  #: the *name* of the environment variable that holds the first replica's address
    base_img_root = "${base_img_root}"  #: as `img_root`, for `Role.base_image`

    @dataclass
    class Values:
        """The values of the macros in one replica."""

        img_root: str
        app_id: str
        replica_id: str
        rank0_env: str
        base_img_root: str = "DEPRECATED"

        def apply(self, role: Role) -> Role:
            """Return a copy of the role that shares nothing with it, with the macros filled in."""
            role = copy.deepcopy(role)
            role.args = [self.substitute(arg) for arg in role.args]
            role.env = {name: self.substitute(value) for name, value in role.env.items()}
            role.metadata = self._fill(role.metadata)
            return role

        def substitute(self, text: str) -> str:
            """Fill in the macros of one text."""
            return Template(text).safe_substitute(vars(self))

        def _fill(self, value: Any) -> Any:
            match value:
                case str():
                    return self.substitute(value)
                case dict():
                    return {key: self._fill(inner) for key, inner in value.items()}
                case list():
                    return [self._fill(inner) for inner in value]
            return value
