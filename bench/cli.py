"""What short commands cost, beside TorchX 0.7: `--help`, `builtins` and a dry run of `utils.echo`.

    python -m bench.cli                  a table
    python -m bench.cli --repeats 5      fewer repeats
    python -m bench.cli --json PATH      the same figures as JSON

Both are installed into one virtual environment of their own, so that both have the same packages to look through. A
figure is the processor time of the whole command, the median of its repeats; the repeats of both sides take turns. Both
have their bytecode written, and have had one start before, so that files are in memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import _rivals
from bench.harness import Case, Results, median, save

REPEATS, REPEATS_FULL = 11, 31
#: A command takes half of TorchX's processor time, or less.
RATIO_MIN = 2.0
RIVAL = "torchx==0.7.0"
OURS, THEIRS, BARE = "holdfast", "torchx", "python"
ROOT = Path(__file__).parent.parent
COMMANDS = {
    "--help": (["--help"], ["--help"]),
    "builtins": (["builtins"], ["builtins"]),
    "run --dryrun utils.echo": (
        ["run", "--dryrun", "-s", "local", "utils.echo"],
        ["run", "--dryrun", "-s", "local_cwd", "utils.echo"],
    ),
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What one command took."""

    cpu_ms: float
    wall_ms: float


def run(full: bool) -> Results:
    """Measure all of it."""
    return measure(REPEATS_FULL if full else REPEATS)


def measure(repeats: int) -> Results:
    """Measure with so many repeats on each side."""
    home = _rivals.environment(RIVAL)
    has_rival = install(home)
    cases: list[Case] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        scratch = Path(folder)
        for name, (ours, theirs) in COMMANDS.items():
            sides = {OURS: [str(home / "bin" / OURS), *ours]}
            if has_rival:
                sides[THEIRS] = [str(home / "bin" / THEIRS), *theirs]
            cases += compare(name, sides, repeats, scratch)
        bare = [cost([str(home / "bin" / BARE), "-c", "pass"], scratch).cpu_ms for _ in range(repeats)]
    cases.append(Case.seen("python -c pass, processor time", median(bare), "ms", "the interpreter alone"))
    if not has_rival:
        cases.append(Case.missing(RIVAL, "it cannot be installed here"))
    return Results("short commands, medians", cases, RIVAL if has_rival else "")


def install(home: Path) -> bool:
    """Install ourselves, as we are now, and TorchX side by side; False where TorchX cannot be had."""
    known = (home / "bin" / OURS).exists()
    if not _rivals.install(home, [*(("--force-reinstall", "--no-deps") if known else ()), str(ROOT)]):
        raise RuntimeError("holdfast itself could not be installed for the comparison")
    has_rival = (home / "bin" / THEIRS).exists() or _rivals.install(home, [RIVAL])
    # Whatever the environment says about writing bytecode, both sides have theirs.
    subprocess.run([str(home / "bin" / "python"), "-m", "compileall", "-q", str(home / "lib")], check=False)
    return has_rival


def compare(name: str, sides: dict[str, list[str]], repeats: int, scratch: Path) -> list[Case]:
    """Run the same command on every side, in turns."""
    costs: dict[str, list[Cost]] = {side: [] for side in sides}
    for command in sides.values():
        cost(command, scratch)
    for repeat in range(repeats):
        for side in sides if repeat % 2 else reversed(sides):
            costs[side].append(cost(sides[side], scratch))
    cpu = {side: [each.cpu_ms for each in values] for side, values in costs.items()}
    wall = {side: [each.wall_ms for each in values] for side, values in costs.items()}
    return [
        beside(f"{name}, processor time", cpu, RATIO_MIN),
        beside("... from start to end", wall, None),
    ]


def cost(command: Sequence[str], scratch: Path) -> Cost:
    """Run a command to its end."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HOLDFAST", "TORCHX"))}
    environ |= {"HOLDFAST_HOME": str(scratch / "state"), "TMPDIR": str(scratch), "HOME": str(scratch)}
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environ,
        cwd=scratch,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall_ms = (time.perf_counter() - start) * 1000
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return Cost((usage.ru_utime + usage.ru_stime) * 1000, wall_ms)


def beside(name: str, figures: dict[str, list[float]], ratio_min: float | None) -> Case:
    """Put the medians of both sides together."""
    theirs = median(figures[THEIRS]) if THEIRS in figures else None
    note = "; ".join(f"{side} {min(values):.0f} to {max(values):.0f}" for side, values in figures.items())
    print(f"  {name}: {note}", file=sys.stderr, flush=True)
    return Case.beside(name, median(figures[OURS]), theirs, "ms", less_is_better=True, ratio_min=ratio_min, note=note)


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.cli", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS, help="on each side (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    options = parser.parse_args(argv)
    results = measure(options.repeats)
    print(results)
    if options.json:
        save(options.json, {"cli": results})
    return 0 if results.ok else 1


if __name__ == "__main__":
    sys.exit(main())
