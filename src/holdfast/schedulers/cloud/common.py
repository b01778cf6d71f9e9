"""What the schedulers of job services share. Pure.

All replicas of a role get the same command there, and learn their number when they run, from a variable of the service.
So the command is a line of shell that sets our variables from those of the service, and then becomes the app's own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.errors import UsageError
from holdfast.schedulers.local.render import PORT_VARIABLE, RANK0_VARIABLE
from holdfast.specs.app import AppDef, RetryPolicy, Role
from holdfast.specs.cfg import CfgVal
from holdfast.specs.handles import make_app_handle
from holdfast.specs.macros import macros
from holdfast.specs.states import AppState

#: Stands for the number of a replica until it runs.
NUMBER = "\x00number\x00"
REPLICA_VARIABLE = "HOLDFAST_REPLICA_ID"
SESSION_TAG, NAME_TAG = "holdfast-session", "holdfast-name"
INSECURE_VARIABLE = "HOLDFAST_INSECURE"
PORT = 29500


@dataclass(frozen=True)
class Option:
    """A run option of a service."""

    name: str
    type: Any
    help: str
    default: CfgVal = None
    required: bool = False


INSECURE = Option(
    "insecure", bool, "let replicas meet without a secret, in a network that only you can reach", default=False
)


@dataclass(frozen=True)
class Site:
    """What a request depends on besides the app."""

    backend: str
    session: str
    app_id: str


@dataclass(frozen=True)
class JobInfo:
    """What a service says of a job; times are seconds since 1970."""

    id: str
    name: str
    state: AppState
    msg: str = ""
    session: str = ""
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    roles: Sequence[Role] = ()
    #: The state, the exit code and the host of replicas, by role and number, where the service tells them.
    replicas: Mapping[tuple[str, int], tuple[AppState, int | None, str]] = field(default_factory=dict)
    restarts: int = 0
    url: str = ""


class Service(Protocol):
    """A job service, as the scheduler uses it."""

    def options(self) -> Sequence[Option]:
        """Return the run options."""

    def render(self, app: AppDef, cfg: Mapping[str, CfgVal], site: Site) -> dict[str, Any]:
        """Make the native request."""

    def submit(self, request: Mapping[str, Any]) -> str:
        """Submit a request and return the job's id."""

    def find(self, app_id: str) -> JobInfo | None:
        """Return what the service says of a job; None where there is none of that id."""

    def all(self, cfg: Mapping[str, CfgVal]) -> Sequence[JobInfo]:
        """Return the jobs that are ours."""

    def stop(self, app_id: str) -> None:
        """End a job."""

    def lines(self, info: JobInfo, role: str, number: int, after: Any) -> tuple[list[tuple[float, str]], Any]:
        """Return lines of a replica with their times, and where to go on; None in place of it begins."""


def safe_name(text: str, chars: int, *, lower: bool = False) -> str:
    """Make a name of letters, digits and hyphens that is not too long, with its end, which is unique, kept."""
    plain = re.sub(r"[^A-Za-z0-9-]+", "-", text).strip("-") or "app"
    plain = plain if len(plain) <= chars else f"{plain[: chars - 7].rstrip('-')}-{plain[-6:].lstrip('-')}"
    return plain.lower() if lower else plain


def check(app: AppDef, service: str, *, roles_max: int | None = None) -> None:
    """Refuse an app that a service of whole jobs cannot run; raises `UsageError`."""
    if not app.roles:
        raise UsageError(f"the app '{app.name}' has no roles: add at least one to `roles`")
    if roles_max is not None and len(app.roles) > roles_max:
        raise UsageError(f"the app '{app.name}' has {len(app.roles)} roles, and {service} runs {roles_max} at most")
    for role in app.roles:
        alone = len(app.roles) == 1 and role.num_replicas == 1
        if role.max_retries and not alone and role.retry_policy is not RetryPolicy.APPLICATION:
            raise UsageError(
                f"the role '{role.name}' wants replicas to be started again one by one (retry policy "
                f"{role.retry_policy}): {service} starts whole jobs again; use dist.ddp, or --max-restarts"
            )


def check_options(cfg: Mapping[str, CfgVal], service: str, options: Sequence[Option]) -> None:
    """Refuse a run without an option that a service cannot do without; raises `UsageError`."""
    for option in options:
        if option.required and not cfg.get(option.name):
            raise UsageError(f"{service} needs -cfg {option.name}=...: {option.help}")


def tags(app: AppDef, site: Site) -> dict[str, str]:
    """Return what a job of ours is known by."""
    return {SESSION_TAG: site.session, NAME_TAG: app.name[:256]}


def need_image(role: Role) -> str:
    """Return a role's image; raises `UsageError` where it names none."""
    if not role.image or role.image.startswith((".", "/", "~")):
        raise UsageError(f"the role '{role.name}' names no image of containers: give one with --image")
    return role.image


def retries(app: AppDef) -> int:
    """Return how often the whole app may be started again."""
    return max((role.max_retries for role in app.roles), default=0)


def environment(role: Role, site: Site) -> dict[str, str]:
    """Return the variables of a role's replicas that are known before they run."""
    handle = make_app_handle(site.backend, site.session, site.app_id)
    ours = {"PYTHONUNBUFFERED": "1", "HOLDFAST_JOB_ID": handle, "TORCHX_JOB_ID": handle, PORT_VARIABLE: str(PORT)}
    values = macros.Values(img_root="", app_id=site.app_id, replica_id="0", rank0_env=RANK0_VARIABLE)
    return {**ours, **values.apply(role).env, "HOLDFAST_ROLE": role.name}


def command(role: Role, site: Site, *, number: str, first: str) -> list[str]:
    """Return the command of every replica of a role; `number` and `first` say in shell what only it knows."""
    values = macros.Values(img_root="", app_id=site.app_id, replica_id=NUMBER, rank0_env=RANK0_VARIABLE)
    words = [values.substitute(role.entrypoint), *values.apply(role).args]
    sets = f"export {REPLICA_VARIABLE}={number} {RANK0_VARIABLE}={first}"
    return ["sh", "-c", f"{sets}; exec {' '.join(map(_quoted, words))}"]


def _quoted(word: str) -> str:
    """Quote a word for a shell, with the number of the replica in its place."""
    parts = [shlex.quote(part) if part else "" for part in word.split(NUMBER)]
    return f'"${REPLICA_VARIABLE}"'.join(parts) or "''"


def need_secret(app: AppDef, cfg: Mapping[str, CfgVal], remedy: str) -> dict[str, str]:
    """Return the variables of an app that goes without a secret; raises `UsageError` where it has not said so."""
    if sum(role.num_replicas for role in app.roles) < 2 or cfg.get("secret"):
        return {}
    if cfg.get("insecure"):
        return {INSECURE_VARIABLE: "1"}
    raise UsageError(
        f"several replicas need a secret that they share: {remedy}, or go without one by -cfg insecure=True"
    )


def number_of(value: CfgVal, default: float) -> float:
    """Return an option that is a number."""
    return float(value) if isinstance(value, int | float) else default
