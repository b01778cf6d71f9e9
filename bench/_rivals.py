"""The packages that we compare with: a virtual environment for each, made on first use and kept in a cache folder.

    $HOLDFAST_BENCH_CACHE, else $XDG_CACHE_HOME/holdfast-bench, else ~/.cache/holdfast-bench

If one cannot be installed, its bench runs without it and says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path


def environment(name: str) -> Path:
    """Return the virtual environment of a package for this Python; make it if it is missing."""
    home = cache() / f"{name.replace('==', '-')}-py{sys.version_info.major}.{sys.version_info.minor}"
    if not python_of(home).exists():
        print(f"  making an environment for {name} in {home}", file=sys.stderr, flush=True)
        venv.create(home, with_pip=True)
    return home


def cache() -> Path:
    """Return the folder that keeps them."""
    named = os.environ.get("HOLDFAST_BENCH_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast-bench"


def has(home: Path, module: str) -> bool:
    """Say whether a module can be imported there."""
    probe = [str(python_of(home)), "-c", f"import {module}"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def install(home: Path, what: Sequence[str]) -> bool:
    """Install packages there; says whether that worked, and shows why it did not."""
    command = [str(python_of(home)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    print(f"  installing {' '.join(what)}", file=sys.stderr, flush=True)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        print(f"{done.stdout}{done.stderr}", file=sys.stderr, flush=True)
    return done.returncode == 0


def python_of(home: Path) -> Path:
    """Return the interpreter of an environment."""
    return home / "bin" / "python"
