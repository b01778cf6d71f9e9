"""`holdfast list`: the jobs that schedulers know."""

from __future__ import annotations

import time

import click

from holdfast.cli.jobs import complete_schedulers, list_quietly, open_runner
from holdfast.cli.tables import show, show_json
from holdfast.errors import UsageError
from holdfast.quantities import ago


@click.command()
@click.option("-s", "--scheduler", metavar="NAME", shell_complete=complete_schedulers, help="Only this one's jobs.")
@click.option("--state", metavar="STATE,...", default="", help="Only jobs in these states, as in running,pending.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def command(scheduler: str | None, state: str, as_json: bool) -> None:
    """List jobs, the newest last; without -s those of every scheduler that can tell.

    \b
      holdfast list
      holdfast ps                                  the same
      holdfast list --state running,pending
    """
    wanted = _states(state)
    with open_runner() as runner:
        if scheduler is not None:
            jobs = runner.list(scheduler)
        else:
            every = [job for name in runner.scheduler_backends() for job in list_quietly(runner, name)]
            # Two names may stand for one scheduler; its jobs are shown under the first.
            jobs = list({(job.app_id, job.submitted_at or job.app_handle): job for job in reversed(every)}.values())
    jobs = [job for job in jobs if not wanted or job.state.name in wanted]
    jobs.sort(key=lambda job: job.submitted_at or 0.0)
    if as_json:
        show_json(
            [
                {
                    "handle": job.app_handle,
                    "app_id": job.app_id,
                    "state": job.state.name,
                    "name": job.name,
                    "submitted_at": job.submitted_at,
                }
                for job in jobs
            ]
        )
        return
    if not jobs:
        none = "no job is in these states" if wanted else "there is no job yet; `holdfast run` submits one"
        click.echo(f"holdfast: {none}, and `holdfast runs` lists launches", err=True)
    now = time.time()
    show(
        ("APP HANDLE", "APP STATUS", "APP NAME", "SUBMITTED"),
        [
            (job.app_handle, job.state.name, job.name, "" if job.submitted_at is None else ago(now - job.submitted_at))
            for job in jobs
        ],
        keep_end=(0,),
    )


def _states(text: str) -> set[str]:
    from holdfast.specs import AppState

    wanted = {each.strip().upper() for each in text.split(",") if each.strip()}
    for unknown in sorted(wanted - set(AppState.__members__)):
        raise UsageError(f"there is no state '{unknown.lower()}'; there are {', '.join(AppState.__members__).lower()}")
    return wanted
