"""Plans: what each worker of an attempt runs, and how its lines look on the console."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from holdfast.agent.api import WorkerSpec
from holdfast.agent.environment import fill_local_rank
from holdfast.errors import UsageError
from holdfast.workers import Function, LogOptions, Module, Program, Script, WorkerPlan, bind, render_prefix
from holdfast.workers.plan import Entry

PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
PREFIX_TEMPLATE = "[${role_name}${local_rank}]:"


def make_plans(spec: WorkerSpec, envs: Mapping[int, dict[str, str]], start_method: str) -> list[WorkerPlan]:
    """Return the plan of each local rank that has an environment."""
    cpus = bind(spec.numa_options, spec.local_world_size)
    return [
        WorkerPlan(rank, make_entry(spec, rank, start_method), env, cpus=cpus.get(rank)) for rank, env in envs.items()
    ]


def make_entry(spec: WorkerSpec, local_rank: int, start_method: str) -> Entry:
    """Return what one worker runs, with its local rank filled into the arguments."""
    match spec.entrypoint:
        case Script(path, args):
            return Script(path, fill_local_rank(args, local_rank))
        case Module(name, args):
            return Module(name, fill_local_rank(args, local_rank))
        case Program(argv):
            return Program(fill_local_rank(argv, local_rank))
        case str():
            return Program((spec.entrypoint, *fill_local_rank(tuple(map(str, spec.args)), local_rank)))
        case _ if callable(spec.entrypoint):
            return Function(spec.entrypoint, spec.args, start_method)
    raise UsageError(f"{spec.entrypoint!r} is neither a function nor a program")


def make_log_options(
    spec: WorkerSpec, envs: Mapping[int, dict[str, str]], prefix_template: str | None, bytes_max: int | None
) -> LogOptions:
    """Return how the workers' lines are shown and how much of them is kept."""
    template = prefix_template or os.environ.get(PREFIX_VARIABLE) or PREFIX_TEMPLATE
    host = socket.gethostname()

    def prefix(rank: int, env: dict[str, str]) -> str:
        return render_prefix(
            template, {"role_name": env["ROLE_NAME"], "local_rank": rank, "rank": env["RANK"], "hostname": host}
        )

    return LogOptions(
        prefixes={rank: prefix(rank, env) for rank, env in envs.items()},
        stdout_filters=spec.duplicate_stdout_filters or (),
        stderr_filters=spec.duplicate_stderr_filters or (),
        bytes_max=bytes_max,
        shared=spec.local_world_size > 1,  # also where one alone is started, in the place of another
    )
