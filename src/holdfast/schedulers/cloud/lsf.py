"""From an app to the scripts and flags of LSF, and from what `bjobs` prints to a status. Pure.

One job on as many hosts as there are replicas; `blaunch` starts one replica on each. The job's folder must be on a file
system that all hosts share: the secret, the replicas' script and their logs lie there.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

from holdfast.errors import UsageError
from holdfast.schedulers.cloud.common import JobInfo, Option, Site, check, command, environment, retries, safe_name
from holdfast.specs.app import AppDef, Role
from holdfast.specs.cfg import CfgVal
from holdfast.specs.states import AppState

#: What a job of ours is known by: its project.
PROJECT = "holdfast-"
FIELDS = "jobid job_name stat exit_code exit_reason proj_name job_description exec_host"
STATES = {
    **dict.fromkeys(("PEND", "PSUSP", "WAIT"), AppState.PENDING),
    **dict.fromkeys(("RUN", "USUSP", "SSUSP", "PROV"), AppState.RUNNING),
    "DONE": AppState.SUCCEEDED,
    "EXIT": AppState.FAILED,
}
OPTIONS = (
    Option("lsf_queue", str, "queue that the job goes to"),
    Option("jobdir", str, "folder for the job's files that all hosts share; by default at home"),
    Option("time", str, "time limit, as in 8:00"),
    Option("flags", list[str], "other flags of bsub, as in -x"),
    Option("python_folder", str, "folder of the Python on the hosts that has Holdfast, which goes first in PATH"),
)


def render(app: AppDef, cfg: Mapping[str, CfgVal], site: Site, folder: str) -> dict[str, Any]:
    """Make the request: flags of bsub, its script, and the script of every replica."""
    check(app, "LSF", roles_max=1)
    role = app.roles[0]
    if role.mounts:
        raise UsageError(f"the role '{role.name}' has mounts: LSF runs it without a container, so nothing is mounted")
    flags = ["-J", safe_name(site.app_id, 120), "-P", f"{PROJECT}{site.session}", "-n", str(role.num_replicas)]
    flags += ["-Jd", json.dumps({"name": app.name, "role": role.name, "replicas": role.num_replicas, "folder": folder})]
    flags += ["-R", "span[ptile=1]", "-o", f"{folder}/job.log"]
    if role.resource.memMB > 0:
        flags += ["-R", f"rusage[mem={role.resource.memMB}MB]"]
    if role.resource.cpu > 0:
        flags += ["-R", f"affinity[core({math.ceil(role.resource.cpu)})]"]
    if role.resource.gpu > 0:
        flags += ["-gpu", f"num={math.ceil(role.resource.gpu)}/host"]
    flags += ["-q", str(cfg["lsf_queue"])] if cfg.get("lsf_queue") else []
    flags += ["-W", str(cfg["time"])] if cfg.get("time") else []
    more = cfg.get("flags") or []
    assert isinstance(more, list)
    return {
        "bsub": [*flags, *more],
        "folder": folder,
        "script": _script(folder, retries(app)),
        "replica": _replica(role, cfg, site, folder),
    }


def _script(folder: str, again: int) -> str:
    run = f'blaunch -z "$(echo $LSB_HOSTS)" sh {shlex.quote(f"{folder}/replica.sh")}'
    lines = ["#!/bin/sh", "tries=0", f"until {run}; do", "  code=$?", "  tries=$((tries + 1))"]
    return "\n".join([*lines, f'  [ "$tries" -gt {again} ] && exit "$code"', "done", ""])


def _replica(role: Role, cfg: Mapping[str, CfgVal], site: Site, folder: str) -> str:
    """Return the script of every replica; it is a file that only its user reads, so variables may be in it."""
    env = {**environment(role, site), "HOLDFAST_SECRET_FILE": f"{folder}/secret"}
    lines = ["#!/bin/sh", *(f"export {name}={shlex.quote(value)}" for name, value in sorted(env.items()))]
    if cfg.get("python_folder"):
        lines.append(f'export PATH={shlex.quote(str(cfg["python_folder"]))}:"$PATH"')
    logs = f"{folder}/logs/{role.name}"
    lines += ["number=$(( ${LSF_PM_TASKID:-1} - 1 ))", "set -- $LSB_HOSTS", "first=$1", f"mkdir -p {shlex.quote(logs)}"]
    words = shlex.join(command(role, site, number="$number", first="$first"))
    return "\n".join([*lines, "export number first", f'exec {words} >>{shlex.quote(logs)}/"$number".log 2>&1', ""])


def parse(text: str) -> list[JobInfo]:
    """Read what `bjobs -json -o FIELDS` prints."""
    found = []
    for row in json.loads(text or "{}").get("RECORDS") or ():
        if "JOBID" not in row:
            continue  # a job that is not known is a row with an error
        state = STATES.get(str(row.get("STAT")), AppState.UNKNOWN)
        reason = str(row.get("EXIT_REASON") or "")
        if (state is AppState.FAILED and "TERM_OWNER" in reason) or "TERM_FORCE_OWNER" in reason:
            state = AppState.CANCELLED
        code = str(row.get("EXIT_CODE") or "")
        msg = "; ".join(filter(None, [reason.strip("-"), f"exit code {code}" if code else ""]))
        notes = _notes(str(row.get("JOB_DESCRIPTION") or ""))
        role = Role(str(notes.get("role") or "main"), "", num_replicas=int(notes.get("replicas") or 1))
        found.append(
            JobInfo(
                id=str(row["JOBID"]),
                name=str(notes.get("name") or row.get("JOB_NAME") or ""),
                state=state,
                msg=msg if state in (AppState.FAILED, AppState.CANCELLED) else "",
                session=str(row.get("PROJ_NAME") or "").removeprefix(PROJECT),
                roles=[role],
                url=str(notes.get("folder") or ""),
            )
        )
    return found


def _notes(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def parse_submitted(text: str) -> str:
    """Return the number of a job out of what bsub prints; empty where there is none."""
    return text.partition("<")[2].partition(">")[0]
