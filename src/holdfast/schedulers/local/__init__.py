"""The local scheduler: replicas are processes of this machine, in jobs on disk that outlive the shell.

record ●   the files of a job
render ●   from an app to the request
machine ●  when replicas are started, stopped and started again
parse ●    from the records to the result of `describe`
keep ●     which finished jobs are dropped
folders    the jobs on disk: which are alive, which are asked to end
supervisor one detached process per job that runs the machine
capture    replicas' output on its way to disk; logs: on its way back
scheduler  the interface for users
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
