"""`holdfast.submit`: run a function as a job."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from holdfast.calls.folder import Call, CallFolder
from holdfast.calls.job import FOLDER_VARIABLE, Job
from holdfast.components.dist import ddp
from holdfast.errors import UsageError
from holdfast.runner.api import get_runner

T = TypeVar("T")

WORKER_MODULE = "holdfast.calls.worker"
#: Schedulers that start processes on this machine, with this Python.
LOCAL = ("local", "local_cwd")


def submit(
    fn: Callable[..., T],
    *args: Any,
    workers: int = 1,
    nodes: int | str = 1,
    scheduler: str = "local",
    name: str = "",
    max_restarts: int = 0,
    cfg: Mapping[str, Any] | None = None,
    workspace: str | Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Job[T]:
    """Run `fn(*args)` on every worker of a job and return the job at once.

        job = holdfast.submit(train, 0.1, workers=2)
        job.result()        # what rank 0 returned; raises what train raised, with the remote traceback
        job.results()       # by rank; `await job` works too

    `workers` are those of each of `nodes` nodes (`"1:4"` for one to four). The function travels by cloudpickle, so one
    that was typed into a prompt or a notebook works; what it imports must be importable there, or be shipped with
    `workspace`. Each worker has torchrun's environment variables. `cfg` are run options of the scheduler, `env` are
    variables of the workers. The call and its results are kept in `folder`, by default below this user's state folder;
    all nodes must be able to read and write it. Every other option is one of the component dist.ddp (`cpu`, `gpu`,
    `memMB`, `h`, `image`) or a flag of `holdfast launch` (`hang="auto"`). The job goes on if this program ends;
    `Job.open(handle)` finds it again.

    Raises `UsageError` for arguments that cannot be, and for a function that cannot be pickled.
    """
    if not callable(fn):
        raise UsageError(f"submit takes a function, not {type(fn).__name__}; `holdfast.run` submits a script")
    if not isinstance(workers, int) or workers < 1:
        raise UsageError(f"workers is {workers!r} but must be a whole number of at least 1")
    kept = CallFolder.make(folder)
    try:
        kept.save(Call(fn, args))
        variables = {**_local_variables(scheduler), **(env or {}), FOLDER_VARIABLE: str(kept.path)}
        try:
            app = ddp(
                str(kept.path),
                m=WORKER_MODULE,
                j=f"{nodes}x{workers}",
                name=name or _name_of(fn),
                env=variables,
                max_restarts=max_restarts,
                **options,
            )
        except TypeError as error:
            known = ", ".join(options) or "this call"
            raise UsageError(
                f"submit cannot take {known}: {error}; arguments of the function by name are given with "
                "functools.partial(fn, name=value)"
            ) from None
        with get_runner() as runner:
            handle = runner.run(app, scheduler, dict(cfg or {}), workspace)
    except BaseException:
        kept.remove()
        raise
    return Job(handle, kept)


def _local_variables(scheduler: str) -> dict[str, str]:
    """Make `python` mean this one where jobs run on this machine: a notebook's environment is rarely activated."""
    if scheduler not in LOCAL:
        return {}
    beside = str(Path(sys.executable).parent)
    return {"PATH": os.pathsep.join([beside, os.environ.get("PATH", os.defpath)])}


def _name_of(fn: Callable[..., Any]) -> str:
    """Make the name of a job out of that of a function."""
    while hasattr(fn, "func"):  # a partial
        fn = fn.func
    name = getattr(fn, "__name__", type(fn).__name__)
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "call"
