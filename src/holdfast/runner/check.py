"""Checks of every app before a scheduler sees it; each refusal is one sentence. Pure."""

from __future__ import annotations

from holdfast.errors import UsageError
from holdfast.specs import MISSING, AppDef, Role


def check_app(app: AppDef) -> None:
    """Refuse an app that no scheduler could run."""
    if not app.name or app.name != app.name.strip():
        raise UsageError(f"the app's name is {app.name!r}: give it a name without spaces around it")
    if not app.roles:
        raise UsageError(f"the app '{app.name}' has no roles: add at least one to `roles`")
    seen: set[str] = set()
    for role in app.roles:
        if role.name in seen:
            raise UsageError(f"the app '{app.name}' has two roles called '{role.name}': give each a name of its own")
        seen.add(role.name)
        _check_role(role)


def _check_role(role: Role) -> None:
    if not role.name or "/" in role.name or role.name != role.name.strip():
        raise UsageError(f"{role.name!r} cannot be the name of a role: use a word without slashes or spaces around it")
    who = f"the role '{role.name}'"
    if not role.entrypoint or role.entrypoint == MISSING:
        raise UsageError(f"{who} has no entrypoint: set `entrypoint` to the program that its replicas run")
    if role.num_replicas < 1:
        raise UsageError(f"{who} has {role.num_replicas} replicas: `num_replicas` must be 1 or more")
    if role.min_replicas is not None and not 1 <= role.min_replicas <= role.num_replicas:
        raise UsageError(
            f"{who} has min_replicas={role.min_replicas}: it must lie between 1 and num_replicas={role.num_replicas}"
        )
    if role.max_retries < 0:
        raise UsageError(f"{who} has max_retries={role.max_retries}: it must be 0 or more")
    for key, value in role.env.items():
        if not isinstance(key, str) or not key or "=" in key or "\0" in f"{key}{value}":
            raise UsageError(f"{who} cannot have the environment variable {key!r}: that is not a valid name")
        if not isinstance(value, str):
            raise UsageError(f"{who} has env['{key}'] = {value!r}: write environment variables as text")
    for argument in role.args:
        if not isinstance(argument, str):
            raise UsageError(f"{who} has the argument {argument!r}: write arguments as text")
