"""TorchX's `slurm_scheduler`: its names, around our scheduler, which submits the jobs."""

from __future__ import annotations

from typing import Any, TypedDict

from holdfast.schedulers.slurm import scheduler as ours
from holdfast.specs import AppState

#: TorchX's words for the states of Slurm.
SLURM_STATES: dict[str, AppState] = {
    "BOOT_FAIL": AppState.FAILED,
    "CANCELLED": AppState.CANCELLED,
    "COMPLETED": AppState.SUCCEEDED,
    "DEADLINE": AppState.FAILED,
    "FAILED": AppState.FAILED,
    "NODE_FAIL": AppState.FAILED,
    "OUT_OF_MEMORY": AppState.FAILED,
    "PENDING": AppState.PENDING,
    "PREEMPTED": AppState.FAILED,
    "RUNNING": AppState.RUNNING,
    "REQUEUED": AppState.PENDING,
    "RESIZING": AppState.PENDING,
    "REVOKED": AppState.FAILED,
    "SUSPENDED": AppState.PENDING,
    "TIMEOUT": AppState.FAILED,
}
SBATCH_JOB_OPTIONS = {"comment", "mail-user", "mail-type"}
SBATCH_GROUP_OPTIONS = {"partition", "time", "constraint"}
#: Where TorchX keeps the folders of jobs; ours are found by the job's id.
SLURM_JOB_DIRS = ".torchxslurmjobdirs"


class SlurmOpts(TypedDict, total=False):
    """The run options of the Slurm scheduler that TorchX has too."""

    partition: str
    time: str
    comment: str | None
    constraint: str | None
    mail_user: str | None
    mail_type: str | None
    job_dir: str | None


class SlurmScheduler(ours.SlurmScheduler):
    """Runs jobs on a Slurm cluster, by our scheduler."""

    def __init__(self, session_name: str) -> None:
        super().__init__(session_name)


def create_scheduler(session_name: str, **kwargs: Any) -> SlurmScheduler:
    """Make the Slurm scheduler for one session."""
    del kwargs
    return SlurmScheduler(session_name)
