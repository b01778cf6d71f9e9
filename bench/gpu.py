"""On a GPU: training with NCCL under every fault, its cost without any, states that travel, restarts beside torchrun.

    python -m bench.gpu --list
    python -m bench.gpu --cases step,stop,collective --trials 10 --seconds 540 --json bench/gpu.json
    python -m bench.gpu --table --page

Time on a machine with a GPU is short, so every trial is kept in the JSON file as soon as it is done. The same command
again goes on where the last one stopped: after `--seconds` no trial is begun any more. `--table` prints what there is.
It is not among what `python -m bench` runs, since most machines have no GPU. `--rehearse` runs the cases without one,
over gloo, to see that they work.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench._report import write
from bench.harness import Case, Results, describe_machine, load, median, save, spread
from bench.nccl import Sample, Told, Trials, cases, has_gpu, read

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
RESULTS = HERE / "results.json"
STEPS, KILL_AT = 150, 50
TRIALS = 10
#: About how long a trial takes, where one job has many.
TRIAL_S = 8.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="", help="which, by comma; default: all")
    parser.add_argument("--trials", type=int, default=TRIALS, help="trials of each case (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no trial after so long")
    parser.add_argument("--json", type=Path, default=HERE / "gpu.json", help="where samples are kept")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    parser.add_argument("--table", action="store_true", help="print the table of what was measured and end")
    parser.add_argument("--page", action="store_true", help="put the table into docs/BENCHMARKS.md")
    parser.add_argument("--rehearse", action="store_true", help="go on without a GPU, over gloo")
    options = parser.parse_args()
    known = all_cases()
    chosen = list(filter(None, options.cases.split(","))) or list(known)
    if unknown := [case for case in chosen if case not in known]:
        parser.error(f"no case is called {', '.join(unknown)}; --list names them")
    if options.list:
        print("\n".join(known))
        return 0
    kept = Kept(options.json)
    if not options.table:
        if not has_gpu() and not options.rehearse:
            print("torch finds no GPU here; --rehearse runs the cases without one")
            return 1
        measure(chosen, options.trials, time.monotonic() + options.seconds, kept)
    results = kept.results()
    print(results)
    if options.page:
        save(RESULTS, {**load(RESULTS), "nccl": results})
        write(RESULTS, HERE.parent / "docs")
    return 0 if results.ok else 1


def measure(chosen: Sequence[str], trials: int, until: float, kept: Kept) -> None:
    """Do the trials that are missing, each case in turn."""
    known = all_cases()
    for case in chosen:
        do, _ = known[case]
        while kept.count(case) < trials:
            began = time.monotonic()
            if began >= until:
                print(f"time is up before {case}, trial {kept.count(case) + 1}", file=sys.stderr, flush=True)
                return
            in_time = max(1, int(min((until - began) / TRIAL_S, trials)))
            try:
                samples = do(case, min(in_time, trials - kept.count(case)))
            except Exception as error:  # noqa: BLE001 - a trial that fails is a sample too
                samples = [{"good": False, "why": f"{type(error).__name__}: {error}"}]
            for sample in samples:
                kept.add(case, sample)
                print(f"{case} {kept.count(case)}: {sample}", file=sys.stderr, flush=True)
            print(f"... in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


class Kept:
    """The samples of all trials so far, in a file that is written after each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self._samples: dict[str, list[Sample]] = found.get("samples", {})
        self._about: dict[str, Any] = found.get("about", {})

    def count(self, case: str) -> int:
        """How many trials of a case there are."""
        return len(self._samples.get(case, []))

    def add(self, case: str, sample: Sample) -> None:
        """Keep one."""
        self._samples.setdefault(case, []).append(sample)
        self._about = {**describe_machine(), "gpu": _gpu_name()}
        self._path.write_text(json.dumps({"about": self._about, "samples": self._samples}, indent=1) + "\n")

    def results(self) -> Results:
        """Make the table."""
        rows: list[Case] = []
        for case, (_, told) in all_cases().items():
            if samples := self._samples.get(case):
                rows += told(case, samples)
        about = {**describe_machine(), **self._about}
        title = (
            f"NCCL, ranks that share one {about.get('gpu', 'GPU')}; trials of several days, each on the code of its day"
        )
        return Results(title, rows, "the bus", about)


def _gpu_name() -> str:
    if find_spec("torch") is None:
        return "no torch"
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU (gloo)"


def all_cases() -> dict[str, tuple[Trials, Told]]:
    """Return every case by its name: how its trials go, and what becomes of its samples."""
    known: dict[str, tuple[Trials, Told]] = {name: (trials, told) for name, trials, told in cases()}
    known["snapshot"] = (snapshot, snapshot_cases)
    known["gloo"] = (recovery, recovery_cases)
    known["gloo-full"] = (recovery, recovery_cases)
    return known


# -- snapshots, and gloo on a GPU -----------------------------------------------------------------------------------


def snapshot(case: str, trials: int) -> list[Sample]:
    """The speed of a snapshot beside that of a plain copy into pinned memory, which nothing can beat."""
    del case, trials
    lines = subprocess.check_output([sys.executable, str(SCRIPTS / "gpu_snapshot.py")], text=True).splitlines()
    ms = {name.split()[0]: float(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    return [{"good": True, **ms}]


def snapshot_cases(case: str, samples: Sequence[Sample]) -> list[Case]:
    """Put the copies beside each other."""
    del case
    good = [sample for sample in samples if sample["good"]]
    if not good:
        return [Case.broken("1 GiB from the GPU, snapshot", f"{len(samples)} trials failed")]
    ms = {name: median([sample[name] for sample in good]) for name in good[0] if name != "good"}
    return [
        Case.beside("1 GiB from the GPU, snapshot", ms["capture_snapshot"], ms["plain"], "ms", less_is_better=True),
        Case.seen("1 GiB back onto the GPU", ms["apply_snapshot"], "ms"),
        Case.seen("beginning a step", ms["begin"], "ms", "nothing is copied"),
    ]


def recovery(case: str, _: int) -> list[Sample]:
    """One of two workers on one GPU is killed, over gloo; with `gloo-full` the other waits for the one in its place."""
    min_workers = 2 if case == "gloo-full" else 1
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "holdfast", "launch", "--nproc-per-node", "2", "--max-restarts", "3"]
        command += ["--preload", "torch,holdfast", str(SCRIPTS / "elastic_gpu.py"), name, str(STEPS), str(min_workers)]
        subprocess.run([*command, str(KILL_AT)], check=True, timeout=300)
        logs = {int(path.name): read(path) for path in folder.iterdir() if path.name.isdigit()}
        digests = sorted({path.read_text() for path in folder.glob("digest-*")})
    (victim,) = [pid for pid, log in logs.items() if log[-1][2] == "killed"]
    killed = logs[victim][-1][0]
    (newcomer,) = [log for log in logs.values() if log[0][0] > killed]
    survivor = max(logs.values(), key=len)  # it was there from the first step to the last
    finished = [(at, int(what.split("/")[0])) for at, _, what in survivor if "/" in what]
    sample = {
        "good": len(digests) == 1 and [step for _, step in finished] == list(range(STEPS)),
        "digest": digests[0],
        "started_s": newcomer[0][0] - killed,
        "cuda_s": newcomer[1][0] - killed,
        "stall_s": next(at for at, step in finished if step >= KILL_AT) - killed,
        "full_s": next(at for at, _, what in newcomer if what.endswith("/2")) - killed,
    }
    return [sample]


def recovery_cases(case: str, samples: Sequence[Sample]) -> list[Case]:
    """Say how soon each part was there again; at full size all models must be equal bit by bit."""
    good = [sample for sample in samples if sample["good"]]
    name = "gloo, one of two workers killed"
    equal = case != "gloo-full" or len({sample["digest"] for sample in good}) == 1
    if len(good) < len(samples) or not equal:
        return [Case.broken(name, f"{len(good)} of {len(samples)} trials good; models equal: {equal}")]
    parts = {
        "until its fork runs": "started_s",
        "until the fork's first CUDA tensor": "cuda_s",
        "until the survivor's next step": "stall_s",
        "until both do a step together": "full_s",
    }
    where = ", waiting for full size" if case == "gloo-full" else ""
    columns = {told: [float(sample[key]) for sample in good] for told, key in parts.items()}
    return [
        Case.seen(f"{name}{where}, {told}", median(values), "s", spread(values, "s"))
        for told, values in columns.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
