"""How users name a job or a run: a handle, an id, or an unambiguous beginning of one.

A job that `holdfast run` has submitted has a handle, `scheduler://session/id`. A run of `holdfast launch` has a run id;
in a job that is the job's id. So all commands take the same names, and each searches the ids it knows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.errors import HoldfastError, UsageError
from holdfast.events import index

# Few commands need schedulers.
if TYPE_CHECKING:
    from holdfast.runner.api import Runner

#: How many names a sentence lists.
NAMED_MAX = 5

_HANDLE = re.compile(r"(?P<scheduler>[^:/]+)://(?P<session>[^/]*)/(?P<id>[^/]+)(?:/.*)?")


def id_in(text: str) -> str:
    """Return the id of a handle, with or without a replica behind it; any other text as it is."""
    handle = _HANDLE.fullmatch(text)
    return handle["id"] if handle is not None else text


def match(text: str, known: Iterable[str], what: str) -> str | None:
    """Return the known name that `text` is, or is the beginning of; None if there is none.

    Names are compared by their ids, so that a handle finds an id and an id a handle. Raises `UsageError` if
    several begin like this.
    """
    wanted, ids = id_in(text), {name: id_in(name) for name in known}
    found = [name for name in ids if name == text] or [name for name, bare in ids.items() if bare == wanted]
    found = found or [name for name, bare in ids.items() if wanted and bare.startswith(wanted)]
    if len(found) > 1:
        raise UsageError(f"'{text}' could be any of {len(found)} {what}: {some(found)}")
    return found[0] if found else None


def some(names: list[str]) -> str:
    """List a few names."""
    return ", ".join(names[:NAMED_MAX]) + (", …" if len(names) > NAMED_MAX else "")


# -- jobs --------------------------------------------------------------------------------------------------------------


def find_handle(runner: Runner, text: str) -> str:
    """Return the handle of the job that the user means; raises `UsageError` with the names of others.

    Without a name, that is the latest job, which is told on stderr. The default scheduler is searched first, and the
    others only if it has no such job.
    """
    from holdfast.cli.jobs import list_quietly, schedulers_default_first
    from holdfast.specs import parse_app_handle

    schedulers = schedulers_default_first(runner)
    if not text:
        latest = latest_handle(runner)
        if not latest:
            raise UsageError("there is no job yet; `holdfast run` submits one, and `holdfast runs` lists launches")
        click.echo(f"holdfast: {latest}, the latest job", err=True)
        return latest
    if "://" in text:
        schedulers = [parse_app_handle(text).scheduler_backend]
        if not _is_gone(runner, text):
            return text
    ids: list[str] = []
    for scheduler in schedulers:
        jobs = {job.app_handle: job for job in list_quietly(runner, scheduler)}
        if (found := match(text, jobs, "jobs")) is not None:
            return found
        newest_first = sorted(jobs.values(), key=lambda job: job.submitted_at or 0.0, reverse=True)
        ids += [job.app_id for job in newest_first if job.app_id not in ids]
    if ":" in text and "://" not in text and (found := _elsewhere(runner, schedulers, text)):
        return found
    raise UsageError(_no_job(text, ids))


def _elsewhere(runner: Runner, schedulers: list[str], text: str) -> str:
    """Return the handle of a job that no list shows: `namespace:id` may be in another namespace; empty if none is."""
    from holdfast.specs import make_app_handle

    for scheduler in schedulers:
        handle = make_app_handle(scheduler, runner.name(), text)
        try:
            if runner.status(handle) is not None:
                return handle
        except Exception as error:  # noqa: BLE001 - as for the lists: the others may still know it
            logging.getLogger("holdfast").info("the scheduler '%s' cannot be asked for %s: %s", scheduler, text, error)
    return ""


def latest_handle(runner: Runner) -> str:
    """Return the handle of the latest job of the first scheduler that has any; empty if none has."""
    from holdfast.cli.jobs import list_quietly, schedulers_default_first

    for scheduler in schedulers_default_first(runner):
        if jobs := list_quietly(runner, scheduler):
            return max(jobs, key=lambda job: job.submitted_at or 0.0).app_handle
    return ""


def latest_hint(runner: Runner, command: str) -> str:
    """Return how to name the latest job to a command that takes none by itself; empty if there is none."""
    latest = id_in(latest_handle(runner))
    return f"; the latest is: holdfast {command} {latest}" if latest else ""


def _is_gone(runner: Runner, handle: str) -> bool:
    """Whether a scheduler knows no such job; if it cannot tell, the command itself reports why."""
    try:
        return runner.status(handle) is None
    except HoldfastError:
        return False


def _no_job(text: str, ids: list[str]) -> str:
    """Say that there is no such job, and what there is."""
    if index.journals_of(id_in(text)):
        return f"'{text}' is a run of `holdfast launch`, not a job of `holdfast run`: try `holdfast events {text}`"
    latest = f"the latest are {some(ids)} (`holdfast list` shows all)" if ids else "`holdfast list` shows none"
    return f"there is no job '{text}'; {latest}"


# -- runs --------------------------------------------------------------------------------------------------------------


def find_run(text: str) -> str:
    """Return the id of the run that the user means; a path or an unknown name is returned unchanged."""
    if not text or (not _HANDLE.fullmatch(text) and Path(text).expanduser().exists()):
        return text
    return match(text, index.recent_runs(index.RUNS_MAX), "runs") or id_in(text)


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the ids of runs to a shell."""
    del ctx, param
    return [run for run in index.recent_runs(index.RUNS_MAX) if run.startswith(incomplete)]


def job_without_journal(text: str) -> str:
    """Return a sentence if a name that is no run is a job; empty if it is not."""
    from holdfast.cli.jobs import open_runner

    with open_runner() as runner:
        try:
            handle = find_handle(runner, text)
        except UsageError:
            return ""
    return f"the job {handle} has no journal: only `holdfast launch` writes one; try `holdfast log {text}`"


def endpoint_of(run: str) -> str:
    """Return where the coordinator of a run was when its agent on this host started; empty if unknown."""
    from holdfast.events.journal import JournalReader

    for noted in reversed(index.journals_of(run)):
        try:
            lines = list(JournalReader(noted.path).read())
        except OSError:
            continue  # its folder was removed
        found = [line.entry.data.get("endpoint") for line in lines if line.entry.kind == "agent_started"]
        if found and found[-1]:
            return str(found[-1])
    return ""
