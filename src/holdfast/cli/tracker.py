"""`holdfast tracker`: the tracked metadata of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from holdfast.cli.jobs import prepare
from holdfast.cli.names import match
from holdfast.cli.tables import show, show_json
from holdfast.errors import UsageError
from holdfast.tracker.api import TrackerBase, build_trackers

_json = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


@click.group()
def command() -> None:
    """Show tracked metadata, from the first tracker of the settings ([torchx:tracker]) or of TORCHX_TRACKERS.

    RUN is a run's id, a job's handle or id, or an unambiguous beginning of either.

    \b
      holdfast tracker list jobs
      holdfast tracker list metadata train-x7k2m
    """


@command.group("list")
def listing() -> None:
    """List runs, or what is tracked of one.

    \b
      holdfast tracker list jobs
    """


@listing.command()
@click.option("--parent-run-id", metavar="RUN", help="Only runs that were made from this one.")
@_json
def jobs(parent_run_id: str | None, as_json: bool) -> None:
    """List the runs that have tracked something.

    \b
      holdfast tracker list jobs --parent-run-id train-x7k2m
    """
    tracker = _tracker()
    wanted = {"parent_run_id": _find(tracker, parent_run_id)} if parent_run_id else {}
    _show(("JOB ID",), [(each,) for each in tracker.run_ids(**wanted)], as_json)


@listing.command()
@click.argument("run_id", metavar="RUN")
@_json
def metadata(run_id: str, as_json: bool) -> None:
    """Show the values that RUN has tracked.

    \b
      holdfast tracker list metadata train-x7k2m
    """
    tracker = _tracker()
    _show(("ID", "VALUE"), list(tracker.metadata(_find(tracker, run_id)).items()), as_json)


@listing.command()
@click.argument("run_id", metavar="RUN")
@click.option("--artifact", metavar="NAME", help="Only this one.")
@_json
def artifacts(run_id: str, artifact: str | None, as_json: bool) -> None:
    """Show the artifacts of RUN and where they are.

    \b
      holdfast tracker list artifacts train-x7k2m
    """
    tracker = _tracker()
    every = tracker.artifacts(_find(tracker, run_id)).values()
    found = [each for each in every if artifact in (None, each.name)]
    _show(("ARTIFACT", "PATH", "METADATA"), [(each.name, each.path, each.metadata) for each in found], as_json)


@listing.command()
@click.argument("run_id", metavar="RUN")
@click.option("--sources-only", is_flag=True, help="Only what it was made from.")
@click.option("--descendants-only", is_flag=True, help="Only what was made from it.")
@click.option("--artifact", metavar="NAME", help="Only sources that are this artifact.")
@_json
def lineage(run_id: str, sources_only: bool, descendants_only: bool, artifact: str | None, as_json: bool) -> None:
    """Show what RUN was made from, and what was made from it.

    \b
      holdfast tracker list lineage train-x7k2m
    """
    tracker = _tracker()
    found = tracker.lineage(_find(tracker, run_id))
    sources = [each for each in found.sources if artifact in (None, each.artifact_name)]
    rows = [] if descendants_only else [("source", each.source_run_id, each.artifact_name) for each in sources]
    rows += [] if sources_only else [("descendant", each, None) for each in found.descendants]
    _show(("IS A", "RUN", "ARTIFACT"), rows, as_json)


def _tracker() -> TrackerBase:
    from holdfast.runner.trackers import get_configured_trackers

    prepare()
    made: Iterable[TrackerBase] = build_trackers(get_configured_trackers())
    first = next(iter(made), None)
    if first is None:
        raise UsageError("there is no tracker: name one in [torchx:tracker] of .torchxconfig, or in TORCHX_TRACKERS")
    return first


def _find(tracker: TrackerBase, text: str) -> str:
    """Return the run that the user means, by its name, the job's id, or the beginning of that.

    A name that the tracker does not list is passed on as it is: not every tracker can list all its runs.
    """
    return match(text, tracker.run_ids(), "runs") or text


def _show(head: Sequence[str], rows: Sequence[Sequence[object]], as_json: bool) -> None:
    if as_json:
        keys = [word.lower().replace(" ", "_") for word in head]
        show_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        show(head, rows, keep_end=(0,))
