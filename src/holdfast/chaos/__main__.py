"""`python -m holdfast.chaos`: run the campaign, or one seed of it again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import click

from holdfast.chaos.campaign import TRAININGS, Undisturbed, Verdict, run_seed

_ASK_TORCH = "import sys, torch; sys.exit(not torch.cuda.is_available())"


@click.command()
@click.option("--seeds", default=200, show_default=True, help="How many schedules.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--seed", type=int, help="Run this one alone and keep its folder.")
@click.option(
    "--backend", type=click.Choice([*TRAININGS]), default="ring", show_default=True, help="What sums the gradients."
)
@click.option("--at-once", default=2, show_default=True, help="How many jobs run side by side.")
@click.option(
    "--patience",
    type=click.FloatRange(min=1),
    default=1,
    help="Allow so many times as long for a run and for silence; for busy machines.",
)
def main(seeds: int, first: int, seed: int | None, backend: str, at_once: int, patience: float) -> None:
    """Train under seeded faults; every run must end as the undisturbed one does, with every sample used once.

    On the ring that means the same bits. On gloo, with or without replicas, and on NCCL it means the same bits where
    every step was done by as many workers, and the same numbers but for rounding where it was not. NCCL's workers share
    the GPUs of this machine, or the one that it has.
    """
    if backend != "ring" and find_spec("torch") is None:
        raise click.UsageError(f"--backend {backend} trains with torch: pip install 'holdfast[torch]'")
    if backend.endswith("nccl") and not _has_gpu():
        raise click.UsageError(f"--backend {backend} needs a GPU, and torch finds none here")
    undisturbed = Undisturbed(TRAININGS[backend], patience)
    if seed is not None:
        verdict = run_seed(seed, undisturbed, keep=True)
        tell(verdict)
        click.echo(f"folder: {verdict.folder}")
        sys.exit(not verdict.is_good)
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(at_once) as pool:
        for verdict in pool.map(lambda each: run_seed(each, undisturbed), range(first, first + seeds)):
            tell(verdict)
            counts["good" if verdict.is_good else "bad"] += 1
            counts["faults"] += verdict.struck
            counts["bit-equal"] += verdict.is_good and verdict.is_bit_equal
    click.echo(
        f"{backend}: {counts['good']} of {seeds} ended as if nothing had happened, {counts['bit-equal']} of them bit "
        f"by bit; {counts['faults']} faults"
    )
    sys.exit(bool(counts["bad"]))


def _has_gpu() -> bool:
    """Ask torch in a process of its own: the core does not import it."""
    return subprocess.run([sys.executable, "-c", _ASK_TORCH], check=False).returncode == 0


def tell(verdict: Verdict) -> None:
    """Say how one run ended."""
    mark = "ok  " if verdict.is_good else "BAD "
    click.echo(f"{mark}{verdict.seconds:5.1f} s  {verdict.struck} struck  {verdict.schedule}")
    for complaint in verdict.complaints:
        click.echo(f"       {complaint}  ({verdict.folder})")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
