"""On a GPU: how fast a state is copied to host memory, and how a worker that is killed comes back in a warm fork.

    python -m bench.gpu [--trials 5] [--json bench/results.json]

It is not among what `python -m bench` runs, since most machines have no GPU; its results stand beside the others.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.harness import Case, Results, median, save, spread

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
STEPS, KILL_AT = 150, 50


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--json", type=Path, default=HERE / "results.json")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("torch finds no GPU here")
        return 1
    cases = [*snapshot(), *recovery(options.trials)]
    results = Results(f"on one {torch.cuda.get_device_name()}", cases, "the bus")
    print(results)
    save(options.json, {"gpu": results})
    return 0 if results.ok else 1


def snapshot() -> list[Case]:
    """The speed of a snapshot beside that of a plain copy into pinned memory, which nothing can beat."""
    lines = subprocess.check_output([sys.executable, str(SCRIPTS / "gpu_snapshot.py")], text=True).splitlines()
    print("\n".join(lines), flush=True)
    ms = {name.split()[0]: float(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    return [
        Case.beside("1 GiB from the GPU, snapshot", ms["capture_snapshot"], ms["plain"], "ms", less_is_better=True),
        Case.seen("1 GiB back onto the GPU", ms["apply_snapshot"], "ms"),
        Case.seen("beginning a step", ms["begin"], "ms", "nothing is copied"),
    ]


def recovery(trials: int) -> list[Case]:
    """One of two workers on one GPU is killed; CUDA is initialised anew in the fork that takes its place."""
    undisturbed = Trial(min_workers=1, kill_at=-1)
    alone = [Trial(min_workers=1, kill_at=KILL_AT) for _ in range(trials)]
    waiting = [Trial(min_workers=2, kill_at=KILL_AT) for _ in range(trials)]
    equal = sum(trial.digest == undisturbed.digest for trial in waiting)
    once = sum(trial.steps == list(range(STEPS)) for trial in alone + waiting)
    return [
        *[
            Case.seen(f"worker killed, {name}", median(values), "s", spread(values, "s"))
            for name, values in (
                ("until its fork runs", [trial.started - trial.killed for trial in alone]),
                ("until the fork's first CUDA tensor", [trial.cuda - trial.killed for trial in alone]),
                ("until the survivor's next step", [trial.next_step - trial.killed for trial in alone]),
                ("until both do a step together", [trial.full - trial.killed for trial in alone]),
            )
        ],
        Case.seen("first start, until the first CUDA tensor", undisturbed.cuda - undisturbed.started, "s"),
        Case("all steps at full size: model bit-equal", equal, f"of {trials}", ok=equal == trials),
        Case("every step committed once", once, f"of {2 * trials}", ok=once == 2 * trials),
    ]


class Trial:
    """One job of two workers, and what it told."""

    def __init__(self, *, min_workers: int, kill_at: int) -> None:
        with tempfile.TemporaryDirectory(prefix="bench-gpu-") as name:
            folder = Path(name)
            command = [sys.executable, "-m", "holdfast", "launch", "--nproc-per-node", "2", "--max-restarts", "3"]
            command += [str(SCRIPTS / "elastic_gpu.py"), name, str(STEPS), str(min_workers), str(kill_at)]
            subprocess.run(command, check=True, timeout=300)
            logs = {int(path.name): read(path) for path in folder.iterdir() if path.name.isdigit()}
            digests = {path.read_text() for path in folder.glob("digest-*")}
        if len(digests) != 1:
            raise RuntimeError(f"the workers of one job ended with {len(digests)} different models")
        (self.digest,) = digests
        survivor = max(logs.values(), key=len)  # it was there from the first step to the last
        finished = [(at, int(what.split("/")[0])) for at, _, what in survivor if "/" in what]
        self.steps = [step for _, step in finished]
        self.started = min(at for log in logs.values() for at, _, what in log if what == "started")
        self.cuda = min(at for log in logs.values() for at, _, what in log if what == "cuda")
        if kill_at < 0:
            return
        (victim,) = [pid for pid, log in logs.items() if log[-1][2] == "killed"]
        self.killed = logs[victim][-1][0]
        (newcomer,) = [log for log in logs.values() if log[0][0] > self.killed]
        self.started = newcomer[0][0]
        self.cuda = newcomer[1][0]
        self.next_step = next(at for at, step in finished if step >= kill_at)
        self.full = next(at for at, _, what in newcomer if what.endswith("/2"))


def read(path: Path) -> list[tuple[float, int, str]]:
    """Return what one worker wrote: when, as which rank, what."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(float(at), int(rank), what) for at, rank, what in lines]


if __name__ == "__main__":
    sys.exit(main())
