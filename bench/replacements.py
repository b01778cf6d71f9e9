"""What an agent holds after many replacements of workers that train in process: nothing more than after a few.

    python -m bench.replacements                    500 replacements, with and without standbys
    python -m bench.replacements --times 50

A worker of a small job is killed again and again; the agent replaces it while the other goes on. Descriptors, child
processes, zombies and threads of the agent are counted on the way.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil

from bench.harness import Case, Results

TIMES = 500
#: After so many the agent has all that it ever holds.
SETTLED = 20
PATIENCE_S = 60.0
#: Nothing is under way any more if nothing has changed for so long.
CALM_S = 5.0
SCRIPT = """
    import os, signal, sys
    open(os.environ["HOLDFAST_MEMBER_FILE"], "x").close()
    print("up", os.environ["RANK"], os.getpid(), flush=True)
    while True:
        signal.pause()
"""
WAYS = {
    "executed": ("--preload", "none"),
    "forked": ("--preload", "json"),
    "standbys": ("--preload", "json", "--standby", "1"),
}


def held(pid: int) -> dict[str, int]:
    """Count what an agent holds."""
    agent = psutil.Process(pid)
    children = agent.children(recursive=True)
    return {
        "descriptors": agent.num_fds(),
        "processes": len(children),
        "zombies": sum(is_zombie(child) for child in children),
        "threads": agent.num_threads(),
    }


def is_zombie(process: psutil.Process) -> bool:
    """Whether a process has ended and has not been reaped."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def replace_many(way: str, times: int) -> tuple[dict[str, int], dict[str, int], float]:
    """Kill rank 1 so many times; returns what the agent held after a few and after all, and seconds for each."""
    with tempfile.TemporaryDirectory(prefix="bench-replacements-") as name:
        script = Path(name) / "train.py"
        script.write_text(textwrap.dedent(SCRIPT))
        command = [
            sys.executable,
            "-m",
            "holdfast",
            "launch",
            "--nproc-per-node",
            "2",
            "--max-restarts",
            str(times + 1),
        ]
        command += ["--quiet", *WAYS[way], "--log-dir", f"{name}/logs", str(script)]
        environ = {**os.environ, "HOLDFAST_HOME": f"{name}/home", "TMPDIR": name}
        launch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        try:
            pid = next_worker(launch, times=2)
            few: dict[str, int] = {}
            began = time.monotonic()
            for number in range(times):
                os.kill(pid, signal.SIGKILL)
                pid = next_worker(launch)
                if number == SETTLED - 1:
                    few = settled(launch.pid)
            seconds = (time.monotonic() - began) / times
            return few, settled(launch.pid), seconds
        finally:
            launch.terminate()
            launch.communicate(timeout=PATIENCE_S)


def next_worker(launch: subprocess.Popen[str], times: int = 1) -> int:
    """Wait until workers say that they are up; returns the pid of rank 1."""
    assert launch.stdout is not None
    pid = 0
    for _ in range(times):
        words = launch.stdout.readline().split()
        if not words:
            raise RuntimeError(f"the launch ended with {launch.wait()}")
        pid = int(words[-1]) if words[-2] == "1" else pid
    return pid


def settled(pid: int) -> dict[str, int]:
    """Count once nothing of the last replacement is under way: when nothing has changed for a while.

    A standby that has taken a place is not replaced at once, and on a busy machine that takes a while itself.
    """
    found, since = held(pid), time.monotonic()
    deadline = since + PATIENCE_S
    while time.monotonic() < min(since + CALM_S, deadline):
        time.sleep(0.3)
        if (now := held(pid)) != found:
            found, since = now, time.monotonic()
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.replacements", description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--ways", default=",".join(WAYS), help=f"some of {', '.join(WAYS)}, by comma")
    options = parser.parse_args()
    if options.times <= SETTLED:
        parser.error(f"--times must be more than {SETTLED}")
    cases = []
    for way in options.ways.split(","):
        few, many, seconds = replace_many(way, options.times)
        grown = {what: many[what] - few[what] for what in many}
        note = f"{few} after {SETTLED}, {many} after {options.times}; {seconds:.2f} s each"
        cases.append(
            Case.at_most(f"{options.times} replacements, {way}: left behind", max(grown.values()), "", 0, note)
        )
        print(cases[-1], file=sys.stderr, flush=True)
    results = Results("what an agent holds after many replacements", cases)
    print(results)
    return 0 if results.ok else 1


if __name__ == "__main__":
    sys.exit(main())
