"""A picture of a recovery, drawn from the journals of a real job that loses a worker, loses a node and gains one.

    python -m bench.timeline            run the job, write its story into bench/results.json, draw it

Two nodes of two workers train the plain torch script of `bench.recovery`. One worker is killed; then a whole node, its
agent and workers at once; then a third node is started and joins. When workers began and ended is told by the agents'
journals; when they trained, by the steps that the script logs. `_lanes` makes the picture of both.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench._lanes import JOINS, read_story
from bench.harness import Case, Results, save
from bench.recovery import OURS, find_node, free_port, last_pid, must_step
from bench.scripts.jobs import Scene
from holdfast.events.entry import Entry
from holdfast.events.journal import JournalReader

NEEDS = ("torch",)
RESULTS = Path(__file__).with_name("results.json")
WORKERS = 2
#: How long the job trains before and after each fault: long enough to be seen, short enough for one picture.
CALM_S = 2.0
CAP_S = 60.0
NOTE = "this one run; `recovery` has medians and targets"
#: What the picture needs of the journals, and of each fact in them.
KINDS = (
    "round_sealed",
    "round_broken",
    "node_gone",
    "worker_failed",
    "workers_started",
    "workers_stopped",
)
KEYS = ("round", "rank", "local_rank", "pid", "pids", "ranks", "nodes", "world_size", "node")


def run(full: bool) -> Results:  # noqa: ARG001
    """Run the job and say how long each fault held it up."""
    data = perform()
    cases = [
        Case.seen(f"{stall.what}: until every rank steps again", stall.end_s - stall.start_s, "s", NOTE)
        for stall in read_story(data).stalls
    ]
    return Results("one job that loses a worker, loses a node and gains one", cases, data=data)


# -- the job -------------------------------------------------------------------------------------------------


def perform() -> dict[str, Any]:
    """Run the job; returns its journals, the steps of its workers and the faults, all on the wall clock."""
    with Scene() as scene:
        port = free_port()
        nodes = [scene.launch(OURS, *flags(port)), scene.launch(OURS, *flags(port))]
        must_step(scene, OURS, 2 * WORKERS)
        time.sleep(CALM_S)
        known, pid = scene.log.pids(), last_pid(scene, 1)
        faults = [{"what": "worker killed", "at": time.time(), "pids": [pid]}]
        os.kill(pid, signal.SIGKILL)
        wait_steps(scene, 2 * WORKERS, known)
        victim = find_node(nodes, port, host=False)
        known, workers = scene.log.pids(), scene.workers_of(victim)
        faults.append({"what": "node lost", "at": time.time(), "pids": [victim.pid, *sorted(workers)]})
        victim.kill(workers)
        wait_steps(scene, WORKERS, known)
        known = scene.log.pids()
        faults.append({"what": JOINS, "at": time.time(), "pids": []})
        scene.launch(OURS, *flags(port))
        wait_steps(scene, 2 * WORKERS, known)
        # The clocks of steps and journals differ by what they began with.
        return {
            "faults": faults,
            "journal": list(journal(scene)),
            "steps": steps(scene, time.time() - time.monotonic()),
        }


def flags(port: int) -> tuple[str, ...]:
    """One node of at most two, with its part of the picture's workers."""
    where = ("--rdzv-backend", "holdfast", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "timeline")
    return ("--nnodes", "1:2", "--nproc-per-node", str(WORKERS), "--max-restarts", "3", *where)


def wait_steps(scene: Scene, world: int, known: set[int]) -> None:
    """Wait until every rank of a world steps in a new process, and for a while after."""
    if scene.log.wait_stepping(world, known, time.monotonic() + CAP_S) is None:
        raise RuntimeError(f"the job did not come back:\n{scene.tail()}")
    time.sleep(CALM_S)


# -- what is kept of it --------------------------------------------------------------------------------------


def journal(scene: Scene) -> Iterator[str]:
    """Yield the journals' lines in the order of time, those that all nodes have only once."""
    entries = [line.entry for path in scene.folder.rglob("journal.jsonl") for line in JournalReader(path).read()]
    seen: set[int] = set()
    for entry in sorted(entries, key=lambda entry: (entry.time, entry.kind)):
        if entry.kind in KINDS and (entry.number is None or entry.number not in seen):
            seen |= set() if entry.number is None else {entry.number}
            yield json.dumps(trimmed(entry))


def trimmed(entry: Entry) -> dict[str, Any]:
    """Return what the picture needs of an entry, without the paths and names of a host."""
    data = {key: value for key, value in entry.data.items() if key in KEYS}
    return {"time": round(entry.time, 4), "kind": entry.kind, "node": entry.node, "data": data}


def steps(scene: Scene, clock_s: float) -> dict[str, list[float]]:
    """Return when each process did its first and its last step."""
    scene.log.update()
    times: dict[str, list[float]] = {}
    for entry in scene.log.entries:
        if entry.is_step:
            times.setdefault(str(entry.pid), []).append(round(entry.at + clock_s, 4))
    return {pid: [min(each), max(each)] for pid, each in times.items()}


if __name__ == "__main__":
    from bench._report import write

    results = run(full=False)
    print(results)
    save(RESULTS, {"timeline": results})
    write(RESULTS, RESULTS.parent.parent / "docs")
    sys.exit(0 if results.ok else 1)
