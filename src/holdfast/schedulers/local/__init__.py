"""The local scheduler: replicas as processes of this machine, in jobs that live on disk and outlive the shell.

record ●   what is written down about a job
render ●   from an app to the request
machine ●  what is started, stopped and started again
parse ●    from the records to what `describe` says
keep ●     which finished jobs are dropped
folders    the jobs on disk: which are alive, which are asked to end
supervisor one detached process per job that runs the machine
capture    replicas' output on its way to disk; logs: on its way back
scheduler  what users call
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.schedulers.local.scheduler import LocalScheduler


def create_scheduler(session_name: str, **kwargs: object) -> LocalScheduler:
    """Make the local scheduler for one session."""
    from holdfast.schedulers.local.scheduler import LocalScheduler

    del kwargs  # whatever the environment holds for other schedulers
    return LocalScheduler(session_name)
