"""`holdfast checkpoints`: list, verify and prune the checkpoints in a folder or at a URL."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import click

from holdfast.checkpoint.choose import Group
from holdfast.checkpoint.keys import Key
from holdfast.checkpoint.storage import StorageTier
from holdfast.cli import tables
from holdfast.errors import CorruptShardError, ShardMissingError, UsageError
from holdfast.quantities import size


def _keep(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"(?:keep=)?([1-9]\d*)", text)
    if found is None:
        raise click.BadParameter(f"'{text}' does not say how many to keep: write --prune keep=3")
    return int(found[1])


@click.command()
@click.argument("directory", metavar="DIR")
@click.option("--verify", is_flag=True, help="Read every byte and compare it with its checksum.")
@click.option(
    "--prune",
    callback=_keep,
    metavar="keep=N",
    help="Remove all that is older than the N newest complete checkpoints.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def command(directory: str, verify: bool, prune: int | None, as_json: bool) -> None:
    """List the checkpoints in DIR, a folder or any URL that fsspec knows, the newest first.

    Exits with 1 if --verify finds a damaged one.

    \b
      holdfast checkpoints /shared/run7
      holdfast checkpoints /shared/run7 --verify
      holdfast checkpoints /shared/run7 --prune keep=3
    """
    if job := _job_named(directory):
        raise UsageError(f"{job} is a job: name the folder or URL that its checkpoints were written to")
    if "://" not in directory and not Path(directory).is_dir():
        what = "is a file" if Path(directory).exists() else "does not exist"
        raise UsageError(f"{directory} {what}: name the folder that the checkpoints were written to")
    tier = StorageTier(directory, keep=None)
    pruned = tier.prune(prune) if prune is not None else []
    rows = [_row(tier, group, verify=verify) for group in tier.groups()]
    rows += [_unfinished(step) for step in sorted(tier.unfinished(), reverse=True)]
    rows.sort(key=lambda row: row["step"], reverse=True)
    if as_json:
        tables.show_json({"checkpoints": rows, "pruned": pruned})
    else:
        _show(directory, rows, pruned)
    if any(row["state"] == "torn" for row in rows):
        raise SystemExit(1)


def _job_named(text: str) -> str:
    """Return the handle if the user named a job in place of a folder; empty if it may be a folder."""
    if not text.startswith(("local://", "local_cwd://")) and ("/" in text or Path(text).exists()):
        return ""
    from holdfast.cli.jobs import open_runner
    from holdfast.cli.names import find_handle

    with open_runner() as runner:
        try:
            return find_handle(runner, text)
        except UsageError:
            return ""


def _row(tier: StorageTier, group: Group, *, verify: bool) -> dict[str, Any]:
    holders = [entry for entries in group.holders.values() for entry in entries]
    written = [when for entry in holders if (when := tier.written_at(entry.key)) is not None]
    reason = _trouble(tier, [entry.key for entry in holders], verify=verify)
    state = "torn" if reason else "complete" if group.is_complete else "incomplete"
    if state == "incomplete":
        missing = group.missing
        reason = f"shards {', '.join(map(str, missing[:8]))}{' ...' if len(missing) > 8 else ''} are missing"
    return {
        "step": group.step,
        "age_s": round(max(time.time() - max(written), 0.0), 1) if written else None,
        "bytes": sum(entry.nbytes for entry in holders),
        "shards": len(group.holders),
        "world": group.world,
        "origin": group.origin,
        "state": state,
        "verified": verify and not reason,
        "reason": reason,
    }


def _trouble(tier: StorageTier, keys: list[Key], *, verify: bool) -> str:
    """Return what is wrong with a checkpoint; without `verify` only sizes and manifests are checked."""
    from holdfast.checkpoint.keys import Entry

    for key in keys:
        try:
            if verify:
                tier.verify(key)
            else:
                tier.open(Entry(key, 0, tier.name)).close()
        except (CorruptShardError, ShardMissingError, OSError) as error:
            return str(error)
    return ""


def _unfinished(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "age_s": None,
        "bytes": 0,
        "shards": 0,
        "world": None,
        "origin": "",
        "state": "incomplete",
        "verified": False,
        "reason": "no shard of it was finished",
    }


def _show(directory: str, rows: list[dict[str, Any]], pruned: list[int]) -> None:
    if pruned:
        click.echo(f"removed {len(pruned)} steps: {', '.join(map(str, pruned))}")
    if not rows:
        click.echo(f"no checkpoints in {directory}")
        return
    tables.show(
        ["STEP", "AGE", "SIZE", "SHARDS", "STATE", "ORIGIN", ""],
        [
            [
                row["step"],
                _age(row["age_s"]),
                size(row["bytes"]),
                f"{row['shards']}/{row['world']}" if row["world"] else "",
                f"{row['state']}{', verified' if row['verified'] else ''}",
                row["origin"],
                row["reason"],
            ]
            for row in rows
        ],
    )


def _age(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.0f} s"
