"""Slurm: one allocation, one step with one replica on every node, several roles as a heterogeneous job.

options ●  the run options, and which flags of sbatch they are
render ●   from an app to the batch script
decide ●   what the batch program does when a step has ended
parse ●    from what Slurm prints and what nodes wrote down to what `describe` says
client     calls sbatch, scontrol, sacct and scancel
folders    the jobs on the file system that login node and nodes share
batch      the program on the first node: runs the step, tries again, gives the job back to the queue
node       the program on every node: runs one replica and writes down how it is
scheduler  what users call
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.schedulers.slurm.scheduler import SlurmScheduler


def create_scheduler(session_name: str, **kwargs: object) -> SlurmScheduler:
    """Make the Slurm scheduler for one session."""
    from holdfast.schedulers.slurm.scheduler import SlurmScheduler

    del kwargs  # whatever the environment holds for other schedulers
    return SlurmScheduler(session_name)
