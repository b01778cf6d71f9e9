"""`holdfast describe`: the app behind a job."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from holdfast.cli.jobs import complete_handles, open_runner
from holdfast.cli.names import find_handle
from holdfast.cli.tables import outline, show_json
from holdfast.specs import AppDef, Role, UnknownAppError

#: Fields of a role that are shown even if they have their default.
ALWAYS = frozenset({"name", "image", "entrypoint", "args", "num_replicas"})


@click.command()
@click.argument("handle", metavar="[JOB]", default="", shell_complete=complete_handles)
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
def command(handle: str, as_json: bool) -> None:
    """Show the app that a job was made from, as its scheduler remembers it, and where its logs are.

    JOB is a job's handle or id, or an unambiguous beginning of its id; without it, the latest job.

    \b
      holdfast describe
      holdfast describe train-x7k2m
    """
    with open_runner() as runner:
        full = find_handle(runner, handle)
        app = runner.describe(full)
        logs = runner.log_folder(full)
    if app is None:
        raise UnknownAppError(full)
    known = {"handle": full, **({"logs": logs} if logs else {})}
    if as_json:
        show_json({**known, **app_as_data(app, every_field=True)})
    else:
        click.echo("\n".join(outline({**known, **app_as_data(app)})))


def app_as_data(app: AppDef, *, every_field: bool = False) -> dict[str, Any]:
    """Return an app as plain data, without fields that have their default."""
    data: dict[str, Any] = {"name": app.name, "roles": [_role_as_data(role, every_field) for role in app.roles]}
    if app.metadata or every_field:
        data["metadata"] = dict(app.metadata)
    return data


def _role_as_data(role: Role, every_field: bool) -> dict[str, Any]:
    usual = Role(role.name, role.image)
    return {
        field.name: _plain(getattr(role, field.name))
        for field in fields(role)
        if every_field or field.name in ALWAYS or getattr(role, field.name) != getattr(usual, field.name, None)
    }


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(item) for field in fields(value) if (item := getattr(value, field.name)) != {}}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value
