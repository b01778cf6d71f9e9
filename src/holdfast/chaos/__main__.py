"""`python -m holdfast.chaos`: run the campaign, or one seed of it again."""

from __future__ import annotations

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import click

from holdfast.chaos.campaign import Verdict, run_seed, undisturbed


@click.command()
@click.option("--seeds", default=200, show_default=True, help="How many schedules.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--seed", type=int, help="Run this one alone and keep its folder.")
@click.option("--at-once", default=2, show_default=True, help="How many jobs run side by side.")
def main(seeds: int, first: int, seed: int | None, at_once: int) -> None:
    """Train under seeded faults; every run must end with the bits of the undisturbed one and every sample used once."""
    expected = undisturbed()
    if seed is not None:
        verdict = run_seed(seed, expected, keep=True)
        tell(verdict)
        click.echo(f"folder: {verdict.folder}")
        sys.exit(not verdict.is_good)
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(at_once) as pool:
        for verdict in pool.map(lambda each: run_seed(each, expected), range(first, first + seeds)):
            tell(verdict)
            counts["good" if verdict.is_good else "bad"] += 1
            counts["faults"] += verdict.struck
    click.echo(f"{counts['good']} of {seeds} ended as if nothing had happened; {counts['faults']} faults")
    sys.exit(bool(counts["bad"]))


def tell(verdict: Verdict) -> None:
    """Say how one run ended."""
    mark = "ok  " if verdict.is_good else "BAD "
    click.echo(f"{mark}{verdict.seconds:5.1f} s  {verdict.struck} struck  {verdict.schedule}")
    for complaint in verdict.complaints:
        click.echo(f"       {complaint}  ({verdict.folder})")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
