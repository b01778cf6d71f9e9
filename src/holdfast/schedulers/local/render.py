"""From an app and run options to the local scheduler's request: one command per replica. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.errors import UsageError
from holdfast.filenames import file_name
from holdfast.quantities import count, size
from holdfast.schedulers.local.record import LocalRequest, ReplicaPlan, RolePlan
from holdfast.specs.app import AppDef, Role
from holdfast.specs.cfg import CfgVal
from holdfast.specs.handles import make_app_handle
from holdfast.specs.macros import macros

#: The variable that holds the first replica's address; here that is this machine.
RANK0_VARIABLE = "TORCHX_RANK0_HOST"
#: Holds a port of this machine that is free for this job, for its replicas to meet at.
PORT_VARIABLE = "HOLDFAST_LOCAL_RDZV_PORT"
#: Where programs are looked for where no PATH says so, as under `env -i`.
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
#: The letters and digits of an id: those that are hard to confuse.
ID_LETTERS = "bcdfghjkmnpqrstvwxz23456789"
NAME_CHARS_MAX = 60


@dataclass(frozen=True)
class Surroundings:
    """What the request depends on besides the app: the user, the folder, and the devices of this machine."""

    backend: str
    session: str
    app_id: str
    #: The folder in which replicas run, by role.
    cwds: Mapping[str, str]
    #: The folder under which the job's logs go.
    log_root: str
    #: What of the submitting process's environment matters here.
    environ: Mapping[str, str] = field(default_factory=dict)
    #: The names of the GPUs that may be used, in order.
    gpus: Sequence[str] = ()
    #: A folder that goes first in PATH, so that `python` is the one that holdfast runs with; may be empty.
    python_folder: str = ""
    #: What the macro `img_root` stands for, by role, where that is not the folder in which its replicas run.
    img_roots: Mapping[str, str] = field(default_factory=dict)
    #: The address of the first replica.
    first_host: str = "localhost"
    #: Further variables of every replica, which those of its role replace.
    env: Mapping[str, str] = field(default_factory=dict)


def render(app: AppDef, cfg: Mapping[str, CfgVal], around: Surroundings) -> tuple[LocalRequest, list[str]]:
    """Make the request; returns it with sentences on what the user should know."""
    if not app.roles:
        raise UsageError(f"the app '{app.name}' has no roles: add at least one to `roles`")
    replicas: list[ReplicaPlan] = []
    for role in app.roles:
        for number in range(role.num_replicas):
            replicas.append(_replica(role, number, cfg, around))  # noqa: PERF401 - two loops read better
    warnings = _share_gpus(app, cfg, around, replicas)
    grace = cfg.get("cancel_grace_s")
    request = LocalRequest(
        app_id=around.app_id,
        name=app.name,
        session=around.session,
        replicas=replicas,
        role_plans=[RolePlan(role.name, role.max_retries, role.retry_policy, role.min_replicas) for role in app.roles],
        cancel_grace_s=float(grace) if isinstance(grace, int | float) else LocalRequest.cancel_grace_s,
        roles=list(app.roles),
        metadata={str(key): str(value) for key, value in app.metadata.items()},
        needs_port=len(replicas) > 1,
    )
    return request, warnings


def _replica(role: Role, number: int, cfg: Mapping[str, CfgVal], around: Surroundings) -> ReplicaPlan:
    cwd = around.cwds[role.name]
    img_root = around.img_roots.get(role.name, cwd)
    values = macros.Values(img_root=img_root, app_id=around.app_id, replica_id=str(number), rank0_env=RANK0_VARIABLE)
    filled = values.apply(role)
    log_dir = f"{around.log_root}/{file_name(role.name)}/{number}"
    handle = make_app_handle(around.backend, around.session, around.app_id)
    env = {
        "PYTHONUNBUFFERED": "1",
        # Where torchrun and ours leave the workers' own logs, unless they are told otherwise.
        "PET_LOG_DIR": f"{log_dir}/workers",
        "HOLDFAST_JOB_ID": handle,
        "TORCHX_JOB_ID": handle,
        **around.env,
        **filled.env,
        "HOLDFAST_ROLE": role.name,
        "HOLDFAST_REPLICA_ID": str(number),
        RANK0_VARIABLE: around.first_host,
    }
    path = [env.get("PATH") or around.environ.get("PATH") or DEFAULT_PATH]
    if around.python_folder and "PATH" not in filled.env:
        path.insert(0, around.python_folder)
    # A program that lies in the working folder is found by its name alone.
    path.insert(0 if cfg.get("prepend_cwd") else len(path), cwd)
    env["PATH"] = ":".join(path)
    return ReplicaPlan(
        role=role.name,
        id=number,
        argv=[values.substitute(role.entrypoint), *filled.args],
        env=env,
        cwd=cwd,
        log_dir=log_dir,
    )


def _share_gpus(
    app: AppDef, cfg: Mapping[str, CfgVal], around: Surroundings, replicas: Sequence[ReplicaPlan]
) -> list[str]:
    """Give each replica the GPUs that its resource asks for; replicas that ask for fractions share one."""
    if cfg.get("auto_set_cuda_visible_devices") is False:
        return []
    wanted = {role.name: max(0.0, float(role.resource.gpu)) for role in app.roles if GPUS_VARIABLE not in role.env}
    asking = [replica for replica in replicas if wanted.get(replica.role)]
    if not asking:
        return []
    shares = deal([wanted[replica.role] for replica in asking], around.gpus)
    if shares is None:
        total = sum(wanted[replica.role] for replica in asking)
        has = f"has {len(around.gpus)}" if around.gpus else "has none that can be seen"
        return [
            f"the replicas of '{app.name}' ask for {total:g} GPUs and this machine {has}: "
            "they are not shared out, every replica sees all"
        ]
    for replica, gpus in zip(asking, shares, strict=True):
        replica.gpus = gpus
        replica.env[GPUS_VARIABLE] = ",".join(gpus)
    return []


def deal(wanted: Sequence[float], gpus: Sequence[str]) -> list[list[str]] | None:
    """Deal GPUs out in order: whole ones alone, parts (below 1) together as long as one GPU holds them.

    Returns None if they are not enough.
    """
    left = list(gpus)
    opened: list[tuple[str, float]] = []  # GPUs that are shared, and what is free of each
    dealt: list[list[str]] = []
    for amount in wanted:
        whole = int(amount) if amount == int(amount) else int(amount) + 1
        if amount >= 1:
            if len(left) < whole:
                return None
            dealt.append(left[:whole])
            left = left[whole:]
            continue
        for index, (gpu, free) in enumerate(opened):
            if free + 1e-9 >= amount:
                opened[index] = (gpu, free - amount)
                dealt.append([gpu])
                break
        else:
            if not left:
                return None
            opened.append((left[0], 1.0 - amount))
            dealt.append([left.pop(0)])
    return dealt


def make_id(name: str, suffix: str) -> str:
    """Make a job's id from its app's name: readable, and valid in paths and handles."""
    readable = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)
    return f"{readable.strip('-_')[:NAME_CHARS_MAX] or 'app'}-{suffix}"


def show(request: LocalRequest, sizes: Mapping[str, tuple[int, int]] | None = None) -> str:
    """Write the request out for people; `sizes` are the files and bytes of what is shipped, by source."""
    lines = [f"job {request.app_id} on this machine, cancelled with {request.cancel_grace_s:g} s of grace"]
    return "\n".join([*lines, *show_parts(request, sizes)])


def show_parts(request: LocalRequest, sizes: Mapping[str, tuple[int, int]] | None = None) -> list[str]:
    """Write out what a request is made of: its roles, its shipments and its replicas."""
    lines: list[str] = []
    plans = {role.name: role for role in request.role_plans}
    for role in plans.values():
        facts = [f"up to {role.max_retries} retries ({role.retry_policy})"] if role.max_retries else []
        if role.min_replicas is not None:
            facts.append(f"goes on with {role.min_replicas} replicas")
        if facts:
            lines.append(f"  role {role.name}: {', '.join(facts)}")
    for shipment in request.shipments:
        for source, below in shipment.roots.items():
            where = f"{shipment.folder}/{below}".rstrip("/")
            lines.append(f"  ships {source}{said_size((sizes or {}).get(source))} as workspace/{where}")
    for replica in request.replicas:
        lines += [
            f"  replica {replica.name}",
            f"    $ {shlex.join(replica.argv)}",
            f"    in {replica.cwd}",
            f"    logs to {replica.log_dir}",
            *(f"    {key}={shlex.quote(value)}" for key, value in sorted(replica.env.items())),
        ]
        if request.needs_port:
            lines.append(f"    {PORT_VARIABLE}=<a free port>")
    return lines


def said_size(found: tuple[int, int] | None) -> str:
    """Say how many files and bytes there are, in brackets; nothing where that is not known."""
    if found is None:
        return ""
    files, nbytes = found
    return f" ({count(files, 'file')}, {size(nbytes)})"
