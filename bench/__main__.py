"""Run the benches: `python -m bench [--full] [names...]`; prints tables and writes bench/results.json."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path

from bench.harness import Results, raise_file_limit, save

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"


def find_benches() -> dict[str, Callable[[bool], Results]]:
    """Return every module of this folder that has a `run`, by name; a leading underscore hides a helper."""
    found: dict[str, Callable[[bool], Results]] = {}
    for module in pkgutil.iter_modules([str(HERE)]):
        if not module.name.startswith("_"):
            run = getattr(importlib.import_module(f"bench.{module.name}"), "run", None)
            if callable(run):
                found[module.name] = run
    return found


def main(argv: list[str] | None = None) -> int:
    """Run what was asked for; the exit code says whether every target was met."""
    benches = find_benches()
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"which to run: {', '.join(benches)}; default: all")
    parser.add_argument("--full", action="store_true", help="also what takes many minutes")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="PATH", help="where the figures go")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.names if name not in benches]:
        parser.error(f"no bench is called {', '.join(unknown)}; there are {', '.join(benches)}")
    raise_file_limit()
    ok = True
    for name in options.names or benches:
        results = benches[name](options.full)
        print(f"\n{name}: {results}", flush=True)
        save(options.json, {name: results})
        ok = ok and results.ok
    print(f"\nwritten to {options.json}; {'every target was met' if ok else 'some targets were MISSED'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
