"""Rendezvous: how fast nodes agree, what they cost the coordinator, and how fast bad news travels.

    python -m bench.rendezvous              a table
    python -m bench.rendezvous --full       torch gets its chance at 128 and 256 nodes too
    python -m bench.rendezvous --json PATH  the same figures as JSON

Handlers are threads of one process through the public API, ours and torch's c10d in the same harness. Agents are
connections of one client process, over loopback, to a coordinator that `holdfast serve` runs in its own. Every
repeat is a fresh process, the repeats of both sides take turns, and a figure is the median of its repeats.

torch looks up the names of peers while a handler is made, which on a host whose name server does not answer takes
seconds; such waits are cut to a second for both sides. The rows "made before" leave the making out: there torch starts
with its connections open, while ours still have to connect.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.harness import Case, Results, attempt, median, raise_file_limit, save, spread
from holdfast.coordinator.messages import DROP_GRACE_S

REPEATS = 5
#: torch's handlers take seconds where ours take milliseconds; it gets fewer turns.
TORCH_REPEATS = 3
COMPARED = (8, 32, 64)
TORCH_HARD = (128, 256)
TORCH_CAP_S = 90.0
OURS_CAP_S = 120.0
#: Read by the C library: how long a name server is waited for.
NAME_SERVER = {"RES_OPTIONS": "timeout:1 attempts:1"}
IDLE_S, IDLE_FULL_S = 12.0, 30.0

Figures = dict[str, Any]


def run(full: bool) -> Results:
    """Measure all of it."""
    cases = [*attempt("handlers", lambda: handler_cases(full)), *attempt("agents", lambda: agent_cases(full))]
    rival = "torch c10d" if any(case.theirs is not None for case in cases) else ""
    return Results("nodes that agree on a round", cases, rival)


# -- handlers ------------------------------------------------------------------------------------------------


def handler_cases(full: bool) -> list[Case]:
    """Return N blocking handlers of ours beside torch's."""
    has_torch = importlib.util.find_spec("torch") is not None
    turns = TORCH_REPEATS if has_torch else 0
    cases = [
        compare(f"{nodes} handlers made and gathered", "fresh", nodes, turns, 20.0 if nodes == 64 else None)
        for nodes in COMPARED
    ]
    # One try is all that torch gets here: it is expected to use up its time.
    hard = [
        compare(f"{nodes} handlers made and gathered", "fresh", nodes, 1 if full and has_torch else 0)
        for nodes in TORCH_HARD
    ]
    ours_s = hard[-1].ours
    assert ours_s is not None
    hard[-1] = replace(hard[-1], target="≤ 2 s", ok=ours_s <= 2.0)
    ready = [
        compare(f"{nodes} handlers made before, gathered", "ready", nodes, turns, 20.0 if nodes == 64 else None)
        for nodes in COMPARED
    ]
    return [*cases, *hard, *ready]


def compare(name: str, mode: str, nodes: int, torch_turns: int, ratio_min: float | None = None) -> Case:
    """Measure both sides in turns and put their medians together, or say why there is only one."""
    ours, theirs = take_turns(mode, nodes, torch_turns)
    finished = [seconds for seconds in theirs if seconds is not None]
    note = f"ours {spread(ours, 's')}"
    if not theirs:
        note += "; torch was not measured at this size (--full does)" if nodes in TORCH_HARD else "; no torch here"
    elif len(finished) < len(theirs):
        note += f"; torch did not finish in {TORCH_CAP_S:g} s in {len(theirs) - len(finished)} of {len(theirs)} runs"
    else:
        note += f"; torch {spread(finished, 's')}"
    theirs_s = median(finished) if finished and len(finished) == len(theirs) else None
    return Case.beside(name, median(ours), theirs_s, "s", less_is_better=True, ratio_min=ratio_min, note=note)


def take_turns(mode: str, nodes: int, torch_turns: int) -> tuple[list[float], list[float | None]]:
    """Return the seconds of both sides, repeat by repeat; None stands for one that did not finish."""
    ours: list[float] = []
    theirs: list[float | None] = []
    for repeat in range(REPEATS):
        mine = measure("bench._handlers", "holdfast", str(nodes), mode, cap_s=OURS_CAP_S)
        assert mine is not None, f"{nodes} of our own handlers did not come together"
        ours.append(mine["gather_s"])
        if repeat < torch_turns:
            figures = measure("bench._handlers", "torch", str(nodes), mode, cap_s=TORCH_CAP_S)
            theirs.append(figures["gather_s"] if figures else None)
    return ours, theirs


# -- agents --------------------------------------------------------------------------------------------------


def agent_cases(full: bool) -> list[Case]:
    """Return N lightweight agents against a coordinator in its own process."""
    idle_s = IDLE_FULL_S if full else IDLE_S
    return [
        *gather_cases(1024, 1.0, REPEATS),
        *gather_cases(10_000, 10.0, REPEATS if full else 3),
        idle_case("coordinator with 1,024 idle nodes in a round", "idle", idle_s),
        idle_case("coordinator with 1,024 nodes that wait for one more", "waiting", idle_s),
        *break_cases(),
    ]


def gather_cases(nodes: int, limit_s: float, repeats: int) -> list[Case]:
    """Return how long a gathering takes and what each node costs the coordinator."""
    tries = [agents("gather", str(nodes)) for _ in range(repeats)]
    gathers = [each for each in tries if isinstance(each, dict)]
    failed = [each for each in tries if isinstance(each, str)]
    name, memory_name = f"{nodes:,} agents connect and gather", f"coordinator memory per node, {nodes:,} nodes"
    if failed:
        note = f"{len(failed)} of {repeats} runs failed: {failed[0]}"
        return [Case.at_most(name, None, "s", limit_s, note), Case.at_most(memory_name, None, "KB", 20.0)]
    seconds = [each["gather_s"] for each in gathers]
    memory = [each["bytes_per_node"] / 1000 for each in gathers]
    return [
        Case.at_most(name, median(seconds), "s", limit_s, spread(seconds, "s")),
        Case.at_most(memory_name, median(memory), "KB", 20.0),
    ]


def idle_case(name: str, what: str, seconds: float) -> Case:
    """Return how busy 1,024 nodes keep the coordinator that do nothing but prove their lives."""
    figures = agents(what, "1024", str(seconds))
    if isinstance(figures, str):
        return Case.at_most(name, None, "% of a core", 10.0, figures)
    return Case.at_most(name, figures["core_percent"], "% of a core", 10.0, f"over {seconds:g} s, leases of 5 s")


def break_cases() -> list[Case]:
    """Return how fast 1,024 nodes hear of a broken round, and form the next one."""
    figures = agents("break", "1024", str(REPEATS))
    grace = f"; {1000 * DROP_GRACE_S:g} ms of it wait for the node to reconnect"
    rows = [
        ("a failure is known to 1,024 nodes", "fail_s", 100.0, ""),
        ("... and they are in the next round", "regroup_s", 500.0, ""),
        ("a killed node is known to 1,023 nodes", "kill_s", 100.0, grace),
        ("... and they are in the next round", "regroup_killed_s", 500.0, ""),
    ]
    if isinstance(figures, str):
        return [Case.at_most(name, None, "ms", limit_ms, figures) for name, _, limit_ms, _ in rows]
    cases = []
    for name, key, limit_ms, more in rows:
        ms = [1000 * seconds for seconds in figures[key]]
        cases.append(Case.at_most(name, median(ms), "ms", limit_ms, spread(ms, "ms") + more))
    return cases


# -- processes -----------------------------------------------------------------------------------------------


def agents(*arguments: str) -> Figures | str:
    """Measure agents in a fresh process; text says why there are no figures, which must not cost the other cases."""
    try:
        figures = measure("bench._agents", *arguments, cap_s=OURS_CAP_S + IDLE_FULL_S)
    except RuntimeError as error:
        return str(error).strip().splitlines()[-1]
    return "did not finish in time" if figures is None else figures


def measure(module: str, *arguments: str, cap_s: float) -> Figures | None:
    """Run a module in a fresh process and return the figures it prints, or None when its time is up."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **NAME_SERVER},
    )
    try:
        output, complaints = process.communicate(timeout=cap_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the coordinator that it may have started
        process.communicate()
        return None
    if process.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{complaints}")
    figures: Figures = json.loads(output.splitlines()[-1])
    return figures


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.rendezvous", description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="also torch at 128 and 256 nodes, which takes minutes")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    options = parser.parse_args(argv)
    raise_file_limit()
    results = run(options.full)
    print(results)
    if options.json:
        save(options.json, {"rendezvous": results})
    return 0 if results.ok else 1


if __name__ == "__main__":
    sys.exit(main())
