"""Run the benches, one after the other, and write the report.

    python -m bench                   all of them, in about 25 minutes on two quiet cores
    python -m bench store cli         only these; the figures of the others stay
    python -m bench --full            with as many trials for the other packages as for ours: hours
    python -m bench --report          only write the report and its pictures anew

Figures go to bench/results.json as soon as a bench is done; docs/BENCHMARKS.md and docs/images are written from them at
the end, also when the run is interrupted. Each bench has a process of its own: one that fails or takes too long stands
in the report as such and costs only itself. The exit code says whether every target was met.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench import _report
from bench.harness import Case, Results, describe_machine, load, number, raise_file_limit, save

HERE = Path(__file__).parent
RESULTS, DOCS = HERE / "results.json", HERE.parent / "docs"
#: No bench may take longer: it hangs.
CAP_S, CAP_FULL_S = 1200.0, 3 * 3600.0
#: How long a bench that is interrupted may take to end its processes.
END_S = 60.0


def find_benches() -> list[str]:
    """Return the name of every module of this folder that has a `run`; nothing is imported, so none can fail here."""
    paths = sorted(path for path in HERE.glob("*.py") if not path.name.startswith("_"))
    return [path.stem for path in paths if re.search(r"^def run\(", path.read_text(), re.MULTILINE)]


# -- one bench in its process --------------------------------------------------------------------------------


def measure(name: str, full: bool) -> Results:
    """Run one bench here; what it needs and does not find is named instead of its figures."""
    module = importlib.import_module(f"bench.{name}")
    # What the machine does before the bench begins; afterwards it would be the bench's own load.
    about = {**describe_machine(), "busy_percent": psutil.cpu_percent(interval=1.0)}
    absent = [need for need in getattr(module, "NEEDS", ()) if importlib.util.find_spec(need) is None]
    if absent:
        cases = [Case.missing(name, f"{', '.join(absent)} is not installed")]
        return Results((module.__doc__ or name).splitlines()[0].rstrip("."), cases, about=about)
    begun = time.monotonic()
    results: Results = module.run(full)
    return dataclasses.replace(results, about={**about, "took_s": round(time.monotonic() - begun, 1)})


# -- all of them ---------------------------------------------------------------------------------------------


def conduct(name: str, full: bool, cap_s: float) -> Results:
    """Run one bench in a process of its own; whatever becomes of it, there are results."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        path = Path(folder) / "results.json"
        command = [sys.executable, "-m", "bench", "--alone", "--json", str(path), name, *(["--full"] if full else [])]
        # A session of its own, so that Ctrl-C comes once, and from here.
        process = subprocess.Popen(command, cwd=HERE.parent, start_new_session=True)
        try:
            code = process.wait(cap_s)
        except subprocess.TimeoutExpired:
            return broken(name, f"it did not end within {cap_s:g} s")
        finally:
            end(process)
        return load(path).get(name) or broken(name, f"it ended with exit code {code} and without figures")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a bench, politely if it takes that, with all that it has started."""
    if process.poll() is not None:
        return
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for each in family:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue


def broken(name: str, why: str) -> Results:
    """Return the results of a bench that has none."""
    return Results(f"{name} did not finish", [Case.broken(name, why)])


def conduct_all(names: list[str], full: bool, cap_s: float, path: Path) -> bool:
    """Run benches one after the other and keep what each found; says whether every target was met."""
    before = load(path)
    ok = True
    for place, name in enumerate(names, start=1):
        known = before[name].about.get("took_s") if name in before else None
        took = f"; last time it took {number(round(known))} s" if known else ""
        print(f"[{place}/{len(names)}] {name}{took}", flush=True)
        results = conduct(name, full, cap_s)
        print(f"\n{results}\n", flush=True)
        save(path, {name: results})
        ok = ok and results.ok
    return ok


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for; the exit code says whether every target was met."""
    benches = find_benches()
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"which to run: {', '.join(benches)}; default: all")
    parser.add_argument("--full", action="store_true", help="also what takes many minutes")
    parser.add_argument("--report", action="store_true", help="measure nothing, only write the report")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="PATH", help="where the figures go")
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help="where the report goes (default: docs)")
    parser.add_argument("--cap", type=float, metavar="SECONDS", help=f"for one bench (default: {CAP_S:g})")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if unknown := [name for name in options.names if name not in benches]:
        parser.error(f"no bench is called {', '.join(unknown)}; there are {', '.join(benches)}")
    names = options.names or benches
    raise_file_limit()
    # SIGTERM becomes KeyboardInterrupt, so that the benches end the processes that they have started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.alone:
        save(options.json, {name: measure(name, options.full) for name in names})
        return 0
    # Figures that go elsewhere are not those of our documents.
    docs = options.docs or (DOCS if options.json == RESULTS else options.json.parent)
    ok = True
    try:
        if not options.report:
            ok = conduct_all(names, options.full, options.cap or (CAP_FULL_S if options.full else CAP_S), options.json)
            print("every target was met" if ok else "some targets were MISSED")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        _report.write(options.json, docs)
        print(f"{options.json} is told in {docs / _report.PAGE}", flush=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
