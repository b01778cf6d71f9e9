"""From an app and run options to containers, and to the commands that make them. Pure.

Nothing secret is in a command or in what the engine keeps of a container: the run's secret lies in a file that is
copied into the container before it is started. Variables are named on the command line and have their values from the
environment of the engine's command, or from a file.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from holdfast.errors import UsageError
from holdfast.launcher.slurm import port_of
from holdfast.schedulers.containers.options import check_flags, check_pull
from holdfast.schedulers.local.record import RECORD_VERSION, LocalRequest, ReplicaPlan, check_version
from holdfast.schedulers.local.render import GPUS_VARIABLE, PORT_VARIABLE, Surroundings, render, said_size, show_parts
from holdfast.specs.app import AppDef, Role
from holdfast.specs.cfg import CfgVal
from holdfast.specs.handles import make_app_handle
from holdfast.specs.mounts import BindMount, DeviceMount, VolumeMount
from holdfast.typed import learned

#: Where the files of a replica lie in its container.
INSIDE = "/holdfast"
SECRET, LOGS = f"{INSIDE}/secret", f"{INSIDE}/logs"
WORKERS, ERROR = f"{LOGS}/workers", f"{LOGS}/error.json"
#: Where the code of a workspace lies in the image that is built for it.
WORKDIR = "/workspace"
JOB_LABEL, ROLE_LABEL, REPLICA_LABEL = "holdfast.job", "holdfast.role", "holdfast.replica"
#: How long the program that runs a container may take beyond the container's own grace.
MARGIN_S = 30.0
#: As long as a label of a host's name may be.
NAME_CHARS_MAX = 63
#: Variables that the engine's command itself would heed: they go to the container by a file.
HEEDED = re.compile(
    r"PATH|HOME|USER|TMPDIR|(?i:[a-z]*_proxy)|SSH_.*|XDG_.*|LD_.*|GO.*|DOCKER_.*|BUILD.*|CONTAINER.*|_CONTAINER.*|"
    r"PODMAN_.*|STORAGE_.*|REGISTRY_.*|NOTIFY_SOCKET|LISTEN_.*"
)
HOST_NETWORK = "host"


@dataclass
class Box:
    """The container of one replica."""

    role: str
    number: int
    name: str
    image: str
    argv: list[str]
    env: dict[str, str]
    #: Flags of `create` that come from resources, mounts and options.
    flags: list[str] = field(default_factory=list)


@dataclass
class Build:
    """An image that is made of a role's image and its workspace when the job is submitted."""

    tag: str
    base: str
    #: Where the code comes from, and where each source goes below the workspace.
    roots: dict[str, str]
    roles: list[str]
    #: A Dockerfile in the workspace; empty for one of ours that only copies.
    dockerfile: str = ""


@dataclass
class ContainerRequest:
    """The native request of Docker and Podman; it may be changed until it is submitted."""

    engine: str
    job: LocalRequest
    boxes: list[Box]
    #: The network that the containers are in, and whether it is the job's own.
    network: str
    own_network: bool = True
    builds: list[Build] = field(default_factory=list)
    pull: str = "missing"
    init: bool = True
    #: How long a container has between SIGTERM and SIGKILL.
    grace_s: float = 10.0

    def to_json(self) -> dict[str, Any]:
        """Describe the request as plain data, without the job, which has a record of its own."""
        data = {name: msgspec.to_builtins(value) for name, value in vars(self).items() if name != "job"}
        return {**data, "version": RECORD_VERSION}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], job: LocalRequest) -> ContainerRequest:
        """Read what `to_json` wrote; fields that are not known here are left out."""
        check_version(data)
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        known |= {"boxes": msgspec.convert(data["boxes"], learned(list[Box]))}
        return cls(**{**known, "job": job, "builds": msgspec.convert(data.get("builds", []), learned(list[Build]))})

    @property
    def handle(self) -> str:
        """What the labels say of which job a container, network or image is."""
        return make_app_handle(self.engine, self.job.session, self.job.app_id)

    def box(self, role: str, number: int) -> Box:
        """Return the container of a replica."""
        return next(each for each in self.boxes if (each.role, each.number) == (role, number))


@dataclass(frozen=True)
class Site:
    """What the request depends on besides the app: the engine, the job, and this machine."""

    engine: str
    session: str
    app_id: str
    #: The job's folder, and the Python that runs the programs there.
    folder: str
    python: str
    #: Further variables of every replica, which those of its role replace.
    env: Mapping[str, str] = field(default_factory=dict)
    #: The names of this machine's GPUs; None where the engine is on another.
    gpus: Sequence[str] | None = None
    #: What is built, by role.
    builds: Mapping[str, Build] = field(default_factory=dict)


def plan(app: AppDef, cfg: Mapping[str, CfgVal], site: Site) -> tuple[ContainerRequest, list[str]]:
    """Make the request for an app; returns it with sentences on what the user should know."""
    grace = cfg.get("cancel_grace_s")
    grace_s = float(grace) if isinstance(grace, int | float) else ContainerRequest.grace_s
    network = str(cfg.get("network") or "")
    if not app.roles:
        raise UsageError(f"the app '{app.name}' has no roles: add at least one to `roles`")
    images = {role.name: _image(role, cfg, site) for role in app.roles}
    first = "localhost" if network == HOST_NETWORK else box_name(site.app_id, app.roles[0].name, 0)
    around = Surroundings(
        backend=site.engine,
        session=site.session,
        app_id=site.app_id,
        cwds=dict.fromkeys(images, ""),
        log_root=f"{site.folder}/logs",
        gpus=site.gpus or (),
        first_host=first,
        env={PORT_VARIABLE: str(port_of(site.app_id)), **site.env},
    )
    share = {"auto_set_cuda_visible_devices": site.gpus is not None}
    job, warnings = render(app, {**cfg, **share, "cancel_grace_s": grace_s + MARGIN_S}, around)
    roles = {role.name: role for role in app.roles}
    boxes = [_box(each, roles[each.role], images[each.role], cfg, site) for each in job.replicas]
    kept = cfg.get("keep")
    program = [site.python, "-P", "-m", "holdfast.schedulers.containers.replica", site.folder]
    replicas = [
        ReplicaPlan(each.role, each.id, [*program, each.role, str(each.id)], {}, "/", each.log_dir, each.gpus)
        for each in job.replicas
    ]
    job = replace(job, replicas=replicas, needs_port=False, keep_jobs=kept if isinstance(kept, int) else None)
    request = ContainerRequest(
        site.engine,
        job,
        boxes,
        network=network or f"holdfast-{site.app_id}",
        own_network=not network,
        builds=list({build.tag: build for build in site.builds.values()}.values()),
        pull=check_pull(cfg.get("pull")),
        init=cfg.get("init") is not False,
        grace_s=grace_s,
    )
    return request, warnings


def box_name(app_id: str, role: str, number: int) -> str:
    """Name the container of a replica: by this name the others find it too."""
    name = re.sub(r"[^A-Za-z0-9-]+", "-", f"{app_id}-{role}-{number}").strip("-").lower()
    if len(name) <= NAME_CHARS_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: NAME_CHARS_MAX - 9]}-{digest}"


def _image(role: Role, cfg: Mapping[str, CfgVal], site: Site) -> str:
    if build := site.builds.get(role.name):
        return build.tag
    return image_of(role, cfg)


def image_of(role: Role, cfg: Mapping[str, CfgVal]) -> str:
    """Return the image that a role names, or else the options; raises `UsageError` where there is none."""
    image = role.image or str(cfg.get("image") or "")
    if not image or image == ".":
        raise UsageError(
            f"the role '{role.name}' names no image: give one with --image, or with -cfg image=IMAGE for all apps; "
            "`dist` needs one in which `python` has Holdfast"
        )
    if image.startswith(("/", "~", "-")):
        raise UsageError(f"the image '{image}' of the role '{role.name}' is not the name of an image")
    return image


def _box(replica: ReplicaPlan, role: Role, image: str, cfg: Mapping[str, CfgVal], site: Site) -> Box:
    env = dict(replica.env)
    env.pop("PATH")  # the image has its own
    if "PATH" in role.env:
        env["PATH"] = role.env["PATH"]
    if GPUS_VARIABLE not in role.env:
        env.pop(GPUS_VARIABLE, None)  # a container has the devices that it gets, numbered from 0
    env["PET_LOG_DIR"] = WORKERS
    flags = [*_resources(replica, role, cfg, site), *_mounts(role)]
    if user := cfg.get("user"):
        flags.append(f"--user={user}")
    if cfg.get("privileged"):
        flags.append("--privileged")
    flags += check_flags(cfg.get("flags"))
    return Box(role.name, replica.id, box_name(site.app_id, role.name, replica.id), image, replica.argv, env, flags)


def _resources(replica: ReplicaPlan, role: Role, cfg: Mapping[str, CfgVal], site: Site) -> list[str]:
    wanted = role.resource
    flags = [f"--cpus={wanted.cpu:g}"] if wanted.cpu > 0 else []
    flags += [f"--memory={wanted.memMB}m"] if wanted.memMB > 0 else []
    shm = str(cfg.get("shm_size") or (f"{wanted.memMB}m" if wanted.memMB > 0 else ""))
    flags += [f"--shm-size={shm}"] if shm else []
    if wanted.gpu > 0:
        flags += _gpus(replica, math.ceil(wanted.gpu), site)
    flags += [f"--device={device}" for device in wanted.devices if str(device).startswith("/")]
    return flags


def _gpus(replica: ReplicaPlan, count: int, site: Site) -> list[str]:
    if site.engine == "podman":  # it knows GPUs by CDI
        return [f"--device=nvidia.com/gpu={gpu}" for gpu in replica.gpus or ["all"]]
    return [f'--gpus="device={",".join(replica.gpus)}"' if replica.gpus else f"--gpus={count}"]


def _mounts(role: Role) -> list[str]:
    flags = []
    for mount in role.mounts:
        match mount:
            case BindMount(source, target, read_only):
                flags.append(f"--mount=type=bind,source={source},target={target}{',readonly' if read_only else ''}")
            case VolumeMount(source, target, read_only):
                flags.append(f"--mount=type=volume,source={source},target={target}{',readonly' if read_only else ''}")
            case DeviceMount(source, target, permissions):
                flags.append(f"--device={source}:{target}:{permissions}")
            case _:
                raise UsageError(f"the role '{role.name}' has a mount that containers do not know: {mount!r}")
    return flags


# -- commands ----------------------------------------------------------------------------------------------------------


def labels(request: ContainerRequest, box: Box | None = None) -> list[str]:
    """Return the labels of a container, or of what all containers of a job share."""
    found = [f"--label={JOB_LABEL}={request.handle}"]
    if box is not None:
        found += [f"--label={ROLE_LABEL}={box.role}", f"--label={REPLICA_LABEL}={box.number}"]
    return found


def network_words(request: ContainerRequest) -> list[str]:
    """Return the command that makes the job's own network."""
    return ["network", "create", *labels(request), request.network]


def create_words(request: ContainerRequest, box: Box, more: Sequence[str] = (), env_file: str = "") -> list[str]:
    """Return the command that makes a container.

    `more` are variables besides its own, `env_file` is where the values lie that the engine's command would heed.
    """
    names = sorted({*box.env, *more})
    entry, *args = box.argv
    return [
        "create",
        f"--name={box.name}",
        *labels(request, box),
        f"--network={request.network}",
        *([] if request.network == HOST_NETWORK else [f"--hostname={box.name}", f"--network-alias={box.name}"]),
        *(["--init"] if request.init else []),
        *(f"--env={name}" for name in names if not HEEDED.fullmatch(name)),
        *([f"--env-file={env_file}"] if env_file else []),
        *box.flags,
        f"--entrypoint={entry}",
        box.image,
        *args,
    ]


def split_env(env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Tell variables that the engine's command can pass on from those that it would heed itself."""
    heeded = {name: value for name, value in env.items() if HEEDED.fullmatch(name)}
    for name, value in heeded.items():
        if "\n" in value:
            raise UsageError(f"the variable {name} has several lines, which a file of variables cannot hold")
    return {name: value for name, value in env.items() if name not in heeded}, heeded


def build_words(request: ContainerRequest, build: Build, folder: str, dockerfile: str) -> list[str]:
    """Return the command that builds an image from a folder."""
    args = [f"--build-arg=IMAGE={build.base}", f"--build-arg=WORKSPACE={WORKDIR}"]
    return ["build", "--quiet", f"--tag={build.tag}", *labels(request), *args, f"--file={dockerfile}", folder]


def default_dockerfile() -> str:
    """Return the Dockerfile of a workspace that has none: the code goes on top of the role's image."""
    return f"ARG IMAGE\nFROM $IMAGE\nARG WORKSPACE={WORKDIR}\nWORKDIR $WORKSPACE\nCOPY . .\n"


def show(request: ContainerRequest, sizes: Mapping[str, tuple[int, int]] | None = None) -> str:
    """Write the request out for people."""
    lines = [f"job {request.job.app_id}, cancelled with {request.grace_s:g} s of grace"]
    for build in request.builds:
        by = build.dockerfile or "copying it"
        lines.append(f"  builds {build.tag} from {build.base} and a workspace, by {by}")
        for source, below in build.roots.items():
            much = said_size((sizes or {}).get(source))
            lines.append(f"    with {source}{much} as {f'{WORKDIR}/{below}'.rstrip('/')}")
    lines += show_parts(replace(request.job, replicas=[]))
    if request.own_network:
        lines.append(f"  $ {shlex.join([request.engine, *network_words(request)])}")
    for box in request.boxes:
        lines.append(f"  replica {box.role}/{box.number}")
        lines.append(f"    $ {shlex.join([request.engine, *create_words(request, box)])}")
        lines += [f"    {name}={shlex.quote(value)}" for name, value in sorted(box.env.items())]
    return "\n".join(lines)


def image_tag(app_id: str, role: str) -> str:
    """Name the image that is built for a role."""
    plain = re.sub(r"[^a-z0-9_.-]+", "-", f"{app_id}-{role}".lower()).strip("-_.")
    return f"holdfast-workspace:{plain[:120]}"


def error_file(message: str) -> str:
    """Write an error file of one sentence, for an end of which the container itself left none."""
    return json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": "", "timestamp": "0"}}})
