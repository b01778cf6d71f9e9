"""Slurm's own commands, and what they say; nothing is decided here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import UnavailableError, UsageError
from holdfast.schedulers.slurm.parse import JobInfo, parse_accounts, parse_config, parse_jobs

#: A command that takes longer than this counts as failed: the controller does not answer.
TIMEOUT_S = 60.0
#: How much of the job completion file is looked through, from its end.
COMPLETED_BYTES = 8 * 1024 * 1024
#: How often a controller that is away is asked, by a program that is nothing without its answer.
ASKS, ASK_EVERY_S = 60, 5.0
ACCOUNT_FIELDS = "jobid,state,exitcode,reason,submit,start,end,nodelist"


def call(*words: str, environ: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Run one of Slurm's commands; returns its exit code and what it said. Raises `UnavailableError`."""
    # Times come as seconds since 1970, in every version alike.
    env = {**(os.environ if environ is None else environ), "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise UnavailableError(
            f"Slurm's command {words[0]} was not found: run this on a login node of the cluster, or load its module"
        ) from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{words[0]} did not answer within {TIMEOUT_S:g} s: is the controller up?") from None
    if done.returncode and "establish a configuration source" in done.stderr:
        raise UnavailableError(
            "Slurm's commands are here, but no cluster's settings (slurm.conf): run this on a login node of the "
            "cluster, or set SLURM_CONF"
        )
    return done.returncode, done.stdout, done.stderr.strip()


def submit(script: Path, environ: Mapping[str, str]) -> str:
    """Submit a script and return the job's id; raises `UsageError` where Slurm refuses it."""
    code, out, said = call("sbatch", "--parsable", str(script), environ=environ)
    if code:
        reason = said.replace("sbatch: error: ", "").replace("Batch job submission failed: ", "").replace("\n", "; ")
        if "onnect" in said or "Unable to contact" in said:
            raise UnavailableError(f"cannot reach Slurm: {reason}")
        raise UsageError(f"sbatch refused the job: {reason}")
    return out.strip().partition(";")[0]  # behind it stands the cluster


def find(job_id: str) -> list[JobInfo]:
    """Return what Slurm knows of a job, one for each of its groups; empty where it has forgotten the job."""
    code, out, said = call("scontrol", "show", "job", job_id, "-o")
    if not code and out.strip():
        return parse_jobs(out)
    if code and "Invalid job id" not in said:
        raise UnavailableError(f"cannot ask Slurm about job {job_id}: {said or f'scontrol exited with {code}'}")
    return _accounted(job_id) or _completed(job_id)


def find_patiently(job_id: str) -> list[JobInfo]:
    """Return what Slurm knows of a job, as `find` does; its controller may be away for a while."""
    for _ in range(ASKS):
        try:
            return find(job_id)
        except UnavailableError as error:
            print(f"holdfast: {error}", file=sys.stderr, flush=True)
            time.sleep(ASK_EVERY_S)
    return find(job_id)


def find_all() -> dict[str, JobInfo]:
    """Return this user's jobs that Slurm still has in memory, by id."""
    code, out, said = call("squeue", "--me", "--noheader", "--states=all", "--array", "--format=%i|%T")
    if code:
        raise UnavailableError(f"cannot ask Slurm for jobs: {said or f'squeue exited with {code}'}")
    pairs = (line.strip().partition("|") for line in out.splitlines() if "|" in line)
    return {job_id: JobInfo(job_id, state) for job_id, _, state in pairs}


def cancel(job_id: str, *, hard: bool = False) -> None:
    """End a job; no error where it has ended."""
    words = ["scancel", "--quiet", *(["--signal=KILL", "--full"] if hard else []), job_id]
    code, _, said = call(*words)
    if code and "Invalid job id" not in said and "already completing" not in said:
        raise UnavailableError(f"cannot cancel job {job_id}: {said}")


def signal_steps(job_id: str, name: str) -> str:
    """Send a signal to all steps of a job, not to its batch program; returns what Slurm said against it."""
    code, _, said = call("scancel", "--quiet", f"--signal={name}", job_id)
    return said if code else ""


def requeue(job_id: str) -> str:
    """Give a job back to the queue; returns what Slurm said against it."""
    code, _, said = call("scontrol", "requeue", job_id)
    return (said or f"scontrol exited with {code}") if code else ""


def runs_containers() -> bool:
    """Whether srun can run a task in a container, which needs a plugin."""
    _, out, _ = call("srun", "--help")
    return "--container-image" in out


def _accounted(job_id: str) -> list[JobInfo]:
    """Ask the accounting, where there is one."""
    code, out, _ = call("sacct", "-P", "-X", "-D", "-j", job_id, "-o", ACCOUNT_FIELDS)
    return parse_accounts(out)[-1:] if not code else []  # -D: also the earlier runs of a job that was requeued


def _completed(job_id: str) -> list[JobInfo]:
    """Look into the job completion file, where there is one that can be read here."""
    code, out, _ = call("scontrol", "show", "config")
    settings = parse_config(out) if not code else {}
    if settings.get("JobCompType") != "jobcomp/filetxt":
        return []
    try:
        with Path(settings.get("JobCompLoc", "")).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - COMPLETED_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []  # it lies on the controller's machine
    return [info for info in parse_jobs(text) if info.id == job_id][-1:]
