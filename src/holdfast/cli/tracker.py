"""`holdfast tracker`: what runs have told their trackers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from holdfast.cli.jobs import prepare
from holdfast.cli.tables import show, show_json
from holdfast.errors import UsageError
from holdfast.tracker.api import TrackerBase, build_trackers

_json = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


@click.group()
def command() -> None:
    """Show what runs have told the first tracker of the settings ([torchx:tracker]) or of TORCHX_TRACKERS."""


@command.group("list")
def listing() -> None:
    """List runs, or what one of them has told."""


@listing.command()
@click.option("--parent-run-id", metavar="RUN", help="Only runs that were made from this one.")
@_json
def jobs(parent_run_id: str | None, as_json: bool) -> None:
    """List the runs that have told something."""
    wanted = {"parent_run_id": parent_run_id} if parent_run_id else {}
    _show(("JOB ID",), [(each,) for each in _tracker().run_ids(**wanted)], as_json)


@listing.command()
@click.argument("run_id", metavar="RUN")
@_json
def metadata(run_id: str, as_json: bool) -> None:
    """Show the values that RUN has told."""
    _show(("ID", "VALUE"), list(_tracker().metadata(run_id).items()), as_json)


@listing.command()
@click.argument("run_id", metavar="RUN")
@click.option("--artifact", metavar="NAME", help="Only this one.")
@_json
def artifacts(run_id: str, artifact: str | None, as_json: bool) -> None:
    """Show what RUN has made and where it lies."""
    found = [each for each in _tracker().artifacts(run_id).values() if artifact in (None, each.name)]
    _show(("ARTIFACT", "PATH", "METADATA"), [(each.name, each.path, each.metadata) for each in found], as_json)


@listing.command()
@click.argument("run_id", metavar="RUN")
@click.option("--sources-only", is_flag=True, help="Only what it was made from.")
@click.option("--descendants-only", is_flag=True, help="Only what was made from it.")
@click.option("--artifact", metavar="NAME", help="Only sources that are this artifact.")
@_json
def lineage(run_id: str, sources_only: bool, descendants_only: bool, artifact: str | None, as_json: bool) -> None:
    """Show what RUN was made from, and what was made from it."""
    found = _tracker().lineage(run_id)
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


def _show(head: Sequence[str], rows: Sequence[Sequence[object]], as_json: bool) -> None:
    if as_json:
        keys = [word.lower().replace(" ", "_") for word in head]
        show_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        show(head, rows, keep_end=(0,))
