"""From an app and run options to a batch script for Slurm, and to the step that it runs. Pure.

The script has the flags of sbatch and starts the batch program, which runs one step over all nodes, one task on each.
Neither holds anything secret: the app's environment and its secret lie in the job's folder, which only its user reads.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.errors import UsageError
from holdfast.schedulers.local.record import RECORD_VERSION, LocalRequest, check_version
from holdfast.schedulers.local.render import show_parts
from holdfast.schedulers.slurm.options import sbatch_flags, time_limit_s
from holdfast.specs.app import AppDef, RetryPolicy, Role
from holdfast.specs.cfg import CfgVal
from holdfast.specs.mounts import BindMount
from holdfast.typed import learned

BATCH_LOG = "batch.log"
#: What of the notice before the end is left for Slurm itself, when the workers' time is over.
MARGIN_S = 15.0
#: How often a job goes back to the queue: a node that fails each time must not keep it there for ever.
REQUEUES_MAX = 1000
LOST_AFTER_S = 60.0


@dataclass
class Group:
    """The nodes of one role: how many, and the flags of sbatch and srun for them."""

    role: str
    nodes_min: int
    nodes_max: int
    flags: dict[str, str] = field(default_factory=dict)
    step_flags: list[str] = field(default_factory=list)


@dataclass
class SlurmRequest:
    """The native request of the Slurm scheduler; it may be changed until it is submitted."""

    job: LocalRequest
    groups: list[Group]
    #: The job's folder on the file system that all nodes share.
    folder: str
    #: The interpreter that nodes run our programs with, and apps find as `python`.
    python: str
    #: Flags of sbatch for the whole job.
    flags: dict[str, str] = field(default_factory=dict)
    #: Lines of shell at the start of the script.
    setup: str = ""
    #: Whether the job goes back to the queue after a preemption, a time limit or a lost node.
    requeue: bool = True
    requeues_max: int = REQUEUES_MAX
    #: How long the batch program may be silent before the other nodes give the job back to the queue themselves.
    lost_after_s: float = LOST_AFTER_S

    def to_json(self) -> dict[str, Any]:
        """Describe the request as plain data, without the job, which has a record of its own."""
        data = {name: msgspec.to_builtins(value) for name, value in vars(self).items() if name != "job"}
        return {**data, "version": RECORD_VERSION}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], job: LocalRequest) -> SlurmRequest:
        """Read what `to_json` wrote; fields that are not known here are left out."""
        check_version(data)
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(**{**known, "job": job, "groups": msgspec.convert(data["groups"], learned(list[Group]))})

    def script(self) -> str:
        """Write the script that sbatch gets."""
        first, *others = self.groups
        lines = ["#!/bin/sh", *_directives({**self.flags, **_nodes(first), **first.flags})]
        for group in others:
            lines += ["#SBATCH hetjob", *_directives({**_nodes(group), **group.flags})]
        words = [self.python, "-P", "-m", "holdfast.schedulers.slurm.batch", self.folder]
        return "\n".join([*lines, *([self.setup] if self.setup else []), f"exec {shlex.join(words)}", ""])


def render(app: AppDef, cfg: Mapping[str, CfgVal], job: LocalRequest, folder: str, python: str) -> SlurmRequest:
    """Make the request for an app whose replicas are planned."""
    check(app)
    chosen = sbatch_flags(cfg)
    requeue = cfg.get("requeue") is not False
    notice = notice_s(float(cfg.get("notice_s") or 0.0), chosen.get("time", ""))  # type: ignore[arg-type]
    flags = {
        "job-name": _job_name(app.name),
        "output": f"{folder}/{BATCH_LOG}",
        "open-mode": "append",
        "no-kill": "",  # a lost node does not end the others
        "requeue" if requeue else "no-requeue": "",
    }
    if notice:
        flags["signal"] = f"B:USR1@{math.ceil(notice)}"
    job.cancel_grace_s = float(cfg.get("cancel_grace_s") or max(notice - MARGIN_S, job.cancel_grace_s))  # type: ignore[arg-type]
    groups = [_group(role, chosen, folder) for role in app.roles]
    whole = {name: value for name, value in chosen.items() if name not in PER_GROUP}
    return SlurmRequest(
        job,
        groups,
        folder,
        python,
        {**flags, **whole},
        setup=str(cfg.get("setup") or ""),
        requeue=requeue,
        lost_after_s=float(cfg.get("lost_after_s") or LOST_AFTER_S),  # type: ignore[arg-type]
    )


def notice_s(asked_s: float, time: str) -> float:
    """Return how long before the time limit workers are told: never so early that they would do nothing but leave."""
    limit = time_limit_s(time)
    return asked_s if limit is None else min(asked_s, limit / 2)


#: Flags that every group of a heterogeneous job has for itself.
PER_GROUP = frozenset(
    {"partition", "constraint", "gres", "mem", "nodelist", "exclude", "gpus-per-node", "cpus-per-task"}
)


def check(app: AppDef) -> None:
    """Refuse an app that cannot run as one step; raises `UsageError`."""
    for role in app.roles:
        if len(app.roles) > 1 and role.max_retries and role.retry_policy is RetryPolicy.ROLE:
            raise UsageError(
                f"the role '{role.name}' wants to be started again alone (retry policy ROLE): Slurm runs the roles of "
                "an app as one step; use APPLICATION or REPLICA"
            )
        for mount in role.mounts:
            if not isinstance(mount, BindMount):
                raise UsageError(f"the role '{role.name}' mounts a {type(mount).__name__}: Slurm binds folders only")
        if role.mounts and not container_of(role):
            raise UsageError(f"the role '{role.name}' has mounts but no image: without a container nothing is mounted")


def container_of(role: Role) -> str:
    """Return the image of a role where that is one of containers, not a folder."""
    image = role.image.removeprefix("file://")
    return "" if image.startswith(("/", "./", "~")) or image in ("", ".") else image


def _group(role: Role, chosen: Mapping[str, str], folder: str) -> Group:
    resource = role.resource
    cpus, memory, gpus = math.ceil(resource.cpu), resource.memMB, math.ceil(resource.gpu)
    flags = {}
    if cpus > 0 and "exclusive" not in chosen:
        flags["cpus-per-task"] = str(cpus)
    if memory > 0 and not chosen.keys() & {"mem", "mem-per-cpu", "mem-per-gpu"}:
        flags["mem"] = f"{memory}M"
    if gpus > 0 and not chosen.keys() & {"gres", "gpus", "gpus-per-node"}:
        flags["gpus-per-node"] = str(gpus)
    flags |= {name: value for name, value in chosen.items() if name in PER_GROUP}
    step = [f"--cpus-per-task={flags['cpus-per-task']}"] if "cpus-per-task" in flags else []
    if image := container_of(role):
        mounts = [f"{folder}:{folder}", *(_mount(each) for each in role.mounts if isinstance(each, BindMount))]
        step += [f"--container-image={image}", f"--container-mounts={','.join(mounts)}"]
    least = role.num_replicas if role.min_replicas is None else role.min_replicas
    return Group(role.name, least, role.num_replicas, flags, step)


def _mount(mount: BindMount) -> str:
    return f"{mount.src_path}:{mount.dst_path}{':ro' if mount.read_only else ''}"


def _nodes(group: Group) -> dict[str, str]:
    span = f"{group.nodes_min}-{group.nodes_max}" if group.nodes_min < group.nodes_max else str(group.nodes_max)
    # Not --ntasks-per-node: with it sbatch asks for the fewest nodes, not for as many as there are.
    return {"nodes": span}


def _directives(flags: Mapping[str, str]) -> list[str]:
    return [f"#SBATCH --{name}{f'={_directive(value)}' if value else ''}" for name, value in flags.items()]


def _directive(value: str) -> str:
    """Quote a value where sbatch would split it."""
    if "\n" in value:
        raise UsageError(f"a flag of sbatch cannot hold two lines: {value!r}")
    return f'"{value}"' if re.search(r"[\s#'\"]", value) else value


def _job_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-") or "app"


def step_command(request: SlurmRequest, sizes: Sequence[int], nodes: Sequence[str] = ()) -> list[str]:
    """Return the command of the step: one task on every node, which goes on where others end or are lost.

    `sizes` are how many nodes each group has got, `nodes` which those are, where not all of the allocation will do.
    """
    program = [request.python, "-P", "-m", "holdfast.schedulers.slurm.node", request.folder]
    words = ["srun"]
    offset = 0
    for number, (group, size) in enumerate(zip(request.groups, sizes, strict=True)):
        words += [":"] if number else []
        words += [f"--het-group={number}"] if len(request.groups) > 1 else []
        words += [f"--nodes={size}", f"--ntasks={size}", "--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0"]
        words += ["--wait=0", "--input=none", *group.step_flags]
        words += [f"--nodelist={nodes[number]}"] if nodes else []
        words += [*program, group.role, str(offset)]
        offset += size
    return words


def show(request: SlurmRequest, sizes: Mapping[str, tuple[int, int]] | None = None) -> str:
    """Write the request out for people."""
    step = shlex.join(step_command(request, [group.nodes_max for group in request.groups]))
    folder = f"the job's folder is {request.folder}"
    return "\n".join([request.script(), f"# the step: {step}", f"# {folder}", *show_parts(request.job, sizes)])
