"""Recovery compared with torchrun: how long after a fault all ranks step again, and which processes are left behind.

    python -m bench.recovery                     every case, a table
    python -m bench.recovery --quick             a few trials of each, torchrun once
    python -m bench.recovery worker member       only these cases
    python -m bench.recovery --device cuda       the workers' tensors on one GPU

Both sides run the same plain torch script (`scripts/ddp.py`, gloo, steps of 20 ms), which imports neither. The time of
a trial is from the fault to the moment at which every rank has done a step in a new process. Jobs of both sides take
turns.

    worker       SIGKILL of one of two workers; warm (forked from a template), and cold (--preload none)
    host, member, served
                 two nodes of one worker; SIGKILL of an agent and its worker, to the survivor's first step alone; it
                 carried the coordinator, the other did, or a `holdfast serve` did
    join         another node joins, from the start of its agent's process to the first step of both
    coordinator  SIGKILL of `holdfast serve`, started again half a second later
    agent        SIGKILL of an agent alone: how many of its workers survive it

torchrun often does not come back at all, and each such trial costs the whole cap; it gets fewer trials, and its times
are those of its successes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.harness import Case, Results, attempt, median, save
from bench.scripts.jobs import Launched, Scene

#: The whole needs torch, on both sides.
NEEDS = ("torch",)
TRIALS, TRIALS_QUICK, TRIALS_FULL = 10, 4, 20
#: torchrun's trials: of a killed worker, and of what takes it a minute each.
THEIRS, THEIRS_SLOW, THEIRS_FULL, THEIRS_SLOW_FULL = 4, 1, 20, 3
#: So many faults are dealt to one job before a fresh one is started.
FAULTS_PER_JOB = 5
START_CAP_S, OURS_CAP_S, THEIRS_CAP_S = 90.0, 60.0, 60.0
#: A job steps for a moment between two faults, never the same, so that a fault may fall anywhere in a step.
CALM_S = (0.3, 0.7)
COORDINATOR_DOWN_S = 0.5
MANY_RESTARTS = ("--max-restarts", "1000")
OURS, TORCH = "holdfast", "torchrun"

WORKER_LIMIT_S, NODE_LIMIT_S, JOIN_LIMIT_S = 0.5, 1.0, 1.0


@dataclass
class Trials:
    """What came of the trials of one case on one side."""

    seconds: list[float] = field(default_factory=list)
    failed: int = 0
    orphans: int = 0
    #: Parts of those times, by name.
    parts: dict[str, list[float]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self.seconds) + self.failed

    @property
    def median(self) -> float | None:
        """The median of the successes."""
        return statistics.median(self.seconds) if self.seconds else None

    def add(self, **parts: float) -> None:
        """Note what a trial was made of."""
        for name, value in parts.items():
            self.parts.setdefault(name, []).append(value)

    def take(self, other: Trials) -> None:
        """Take in the trials of another job."""
        self.seconds += other.seconds
        self.failed += other.failed
        self.orphans += other.orphans
        for name, values in other.parts.items():
            self.parts.setdefault(name, []).extend(values)


@dataclass(frozen=True)
class Plan:
    """How much to do, and on what."""

    trials: int = TRIALS
    theirs: int = THEIRS
    theirs_slow: int = THEIRS_SLOW
    device: str = "cpu"
    cases: tuple[str, ...] = ()
    #: What came of the nodes that joined, whatever was tried by that.
    joins: Trials = field(default_factory=Trials)

    def wants(self, case: str) -> bool:
        """Whether a case is to be run; only the workers' are tried on a GPU unless another is named."""
        return case in self.cases if self.cases else self.device == "cpu" or case in ("worker", "agent")

    def scene(self, backend: str = "gloo") -> Scene:
        """Return a fresh scene."""
        return Scene(device=self.device, backend=backend)


# -- a worker is killed --------------------------------------------------------------------------------------


def worker_cases(plan: Plan) -> Iterator[Case]:
    """SIGKILL one worker; on a GPU also the only worker of an NCCL group."""
    yield from worker_case(plan, 2, "gloo")
    if plan.device == "cuda":
        yield from worker_case(plan, 1, "nccl")


def worker_case(plan: Plan, workers: int, backend: str) -> Iterator[Case]:
    """Measure warm, cold and torchrun's restarts in turns."""
    warm, cold, theirs = Trials(), Trials(), Trials()
    turns = ((OURS, warm, plan.trials, ()), (OURS, cold, plan.trials, ("--preload", "none")))
    while min(warm.count - plan.trials, cold.count - plan.trials, theirs.count - plan.theirs) < 0:
        for side, trials, wanted, flags in (*turns, (TORCH, theirs, plan.theirs, ("--standalone",))):
            if (left := wanted - trials.count) > 0:
                trials.take(worker_job(plan, side, min(left, FAULTS_PER_JOB), workers, backend, *flags))
    what = f"one of {workers} workers killed" if workers > 1 else "the only worker killed"
    what += f", {backend} on {plan.device}" if plan.device != "cpu" else ""
    yield limit_case(f"{what}, warm", warm, WORKER_LIMIT_S, theirs)
    yield part_case(warm, theirs)
    yield rate_case("... recovered, warm", warm, theirs)
    yield beside_case(f"{what}, cold", cold, theirs)
    yield part_case(cold, theirs)
    yield rate_case("... recovered, cold", cold, theirs)
    warm.take(cold)
    yield orphan_case("... processes left behind", warm, theirs)


def worker_job(plan: Plan, side: str, faults: int, workers: int, backend: str, *flags: str) -> Trials:
    """Kill workers of one job, one after the other, until it does not come back."""
    trials = Trials()
    with plan.scene(backend) as scene:
        scene.launch(side, "--nproc-per-node", str(workers), *MANY_RESTARTS, *flags)
        must_step(scene, side, workers)
        for fault in range(faults):
            calm()
            known = scene.log.pids()
            victim = last_pid(scene, fault % workers)
            at = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            if not note_recovery(scene, side, trials, at, workers, known):
                break
    trials.orphans += scene.orphans
    return trials


# -- a node is lost, a node joins ----------------------------------------------------------------------------


def host_cases(plan: Plan) -> Iterator[Case]:
    """Kill the node whose agent carries the coordinator."""
    theirs = torch_lost_node(plan, host=True)
    yield from lost_cases(plan, "host", "a node lost, it carried the coordinator", theirs)


def member_cases(plan: Plan) -> Iterator[Case]:
    """Kill the node whose agent does not."""
    theirs = torch_lost_node(plan, host=False)
    yield from lost_cases(plan, "member", "a node lost, another carries the coordinator", theirs)


def served_cases(plan: Plan) -> Iterator[Case]:
    """Kill one or the other node while the coordinator lives elsewhere."""
    yield from lost_cases(plan, "served", "a node lost, the coordinator is a process of its own", Trials())


def lost_cases(plan: Plan, where: str, name: str, theirs: Trials) -> Iterator[Case]:
    """Kill one of two nodes, and let another join in its place."""
    ours = Trials()
    while ours.count < plan.trials:
        node_job(plan, where, min(plan.trials - ours.count, 2 * FAULTS_PER_JOB), ours)
    yield limit_case(name, ours, NODE_LIMIT_S, theirs)
    yield part_case(ours, theirs)
    yield rate_case("... recovered", ours, theirs)
    yield orphan_case("... processes left behind", ours, theirs)


def node_job(plan: Plan, where: str, faults: int, lost: Trials) -> None:
    """Lose a node and have another join in its place, again and again, in one job."""
    with plan.scene() as scene:
        port = free_port()
        flags = node_flags(port)
        if where == "served":
            serve(scene, port)
        nodes = [scene.launch(OURS, *flags), scene.launch(OURS, *flags)]
        must_step(scene, OURS, 2)
        for fault in range(faults):
            calm()
            victim = nodes[fault % 2] if where == "served" else find_node(nodes, port, host=where == "host")
            workers = scene.workers_of(victim)
            known = scene.log.pids()
            at = victim.kill(workers)
            if not note_recovery(scene, OURS, lost, at, 1, known):
                break
            scene.count_orphans(victim)
            nodes.remove(victim)
            nodes.append(scene.launch(OURS, *flags))
            if not note_join(scene, plan.joins, nodes[-1]):
                break
    lost.orphans += scene.orphans


def note_join(scene: Scene, joins: Trials, node: Launched) -> bool:
    """Wait until a new node and the old one step together, and note what of that time was the import of torch."""
    before = scene.log.pids()
    first = scene.log.wait_stepping(2, before, node.started_at + OURS_CAP_S)
    if first is None:
        return fail(scene, joins, "a node did not get in")
    at = max(entry.at for entry in first)
    ready = node.facts("template_ready")
    joins.seconds.append(at - node.started_at)
    import_s = float(ready[0]["data"]["seconds"]) if ready else 0.0
    joins.add(
        total=at - node.started_at,
        imports=import_s,
        rest=at - node.started_at - import_s,
        pause=at - scene.log.last_step(before),
    )
    return True


def join_cases(plan: Plan) -> Iterator[Case]:
    """Say how fast a node gets in; its own import of torch is the script's, and is told apart.

    Every node that was lost in the cases before was replaced by one that joined; more are tried only where these are
    too few.
    """
    joins, theirs = plan.joins, torch_join(plan)
    while joins.count < plan.trials:
        node_job(plan, "member", min(plan.trials - joins.count, 2 * FAULTS_PER_JOB), Trials())
    rest, pause = (Trials(joins.parts.get(name, []), joins.failed) for name in ("rest", "pause"))
    their_pause = Trials(theirs.parts.get("pause", []), theirs.failed)
    yield limit_case("a node joins, its import of torch aside", rest, JOIN_LIMIT_S, Trials())
    yield beside_case("... with it", joins, theirs, must_win=False)
    yield limit_case("... pause of those that were there", pause, JOIN_LIMIT_S, their_pause)
    yield rate_case("... got in", joins, theirs)


def torch_lost_node(plan: Plan, *, host: bool) -> Trials:
    """Kill one of torchrun's two nodes."""
    trials = Trials()
    for _ in range(plan.theirs_slow):
        with plan.scene() as scene:
            port = free_port()
            nodes = [scene.launch(TORCH, *torch_node_flags(port))]
            wait_listening(port)
            nodes.append(scene.launch(TORCH, *torch_node_flags(port)))
            must_step(scene, TORCH, 2)
            calm()
            victim = find_node(nodes, port, host=host)
            workers = scene.workers_of(victim)
            known = scene.log.pids()
            note_recovery(scene, TORCH, trials, victim.kill(workers), 1, known)
            scene.count_orphans(victim)
        trials.orphans += scene.orphans
    return trials


def torch_join(plan: Plan) -> Trials:
    """Have a node join one of torchrun's, which takes half a minute before its first step."""
    trials = Trials()
    for _ in range(plan.theirs_slow):
        with plan.scene() as scene:
            port = free_port()
            scene.launch(TORCH, *torch_node_flags(port))
            must_step(scene, TORCH, 1)
            calm()
            known = scene.log.pids()
            node = scene.launch(TORCH, *torch_node_flags(port))
            if note_recovery(scene, TORCH, trials, node.started_at, 2, known):
                trials.add(pause=node.started_at + trials.seconds[-1] - scene.log.last_step(known))
        trials.orphans += scene.orphans
    return trials


def node_flags(port: int) -> tuple[str, ...]:
    """One node of one or two."""
    where = ("--rdzv-backend", "holdfast", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "bench")
    return ("--nnodes", "1:2", "--nproc-per-node", "1", *where, *MANY_RESTARTS)


def torch_node_flags(port: int) -> tuple[str, ...]:
    """The same for torchrun."""
    return tuple("c10d" if flag == "holdfast" else flag for flag in node_flags(port))


# -- the coordinator is killed -------------------------------------------------------------------------------


def coordinator_cases(plan: Plan) -> Iterator[Case]:
    """Kill `holdfast serve`, start it again, and look whether training noticed."""
    trials, lost_steps = Trials(), 0
    gaps: list[float] = []
    away: list[float] = []
    while trials.count < plan.trials:
        with plan.scene() as scene:
            port = free_port()
            server = serve(scene, port)
            for _ in range(2):
                scene.launch(OURS, *node_flags(port))
            must_step(scene, OURS, 2)
            for _ in range(min(plan.trials - trials.count, 2 * FAULTS_PER_JOB)):
                calm()
                pids = {last_pid(scene, rank) for rank in range(2)}
                at = server.kill()
                time.sleep(COORDINATOR_DOWN_S)
                server = serve(scene, port)
                back_at = wait_for_line(server.log, "are back", START_CAP_S)
                calm()
                lost, gap = steps_between(scene, pids, at, time.monotonic())
                lost_steps += lost
                gaps.append(gap)
                if back_at is None:
                    fail(scene, trials, "the nodes did not come back to the coordinator")
                    break
                away.append(back_at - at)
                trials.seconds.append(gap)
            known, victim = scene.log.pids(), last_pid(scene, 0)
            after = Trials()
            os.kill(victim, signal.SIGKILL)
            note_recovery(scene, OURS, after, time.monotonic(), 2, known)
            trials.failed += after.failed
        trials.orphans += scene.orphans
    note = f"in {trials.count} trials; it was away for {quartiles(away)}"
    yield Case.at_most("coordinator killed and restarted: steps lost", lost_steps, "", 0, note)
    yield Case.seen("... longest step meanwhile", median(gaps), "s", f"{quartiles(gaps)}; a step takes 0.02 s")
    yield rate_case("... all nodes came back to it, and a worker killed then recovered", trials, Trials())
    yield orphan_case("... processes left behind", trials, Trials())


def steps_between(scene: Scene, pids: set[int], start: float, end: float) -> tuple[int, float]:
    """Return how many steps of some processes are missing in a time, and the longest that one took."""
    scene.log.update()
    lost, longest = 0, 0.0
    others = {entry.pid for entry in scene.log.entries if start <= entry.at <= end} - pids
    for pid in pids:
        steps = [entry for entry in scene.log.entries if entry.pid == pid and entry.is_step]
        inside = [entry for entry in steps if start <= entry.at <= end]
        if not inside:
            return 1, end - start
        numbers = [int(entry.what) for entry in inside]
        lost += numbers[-1] - numbers[0] + 1 - len(numbers)
        times = [start, *(entry.at for entry in inside), end]
        longest = max(longest, *(after - before for before, after in itertools.pairwise(times)))
    return lost + len(others), longest


def serve(scene: Scene, port: int) -> Launched:
    """Start a coordinator in a process of its own."""
    server = scene.start("holdfast", "serve", f"127.0.0.1:{port}")
    wait_for_line(server.log, "coordinator at", START_CAP_S)
    return server


# -- an agent is killed --------------------------------------------------------------------------------------


def agent_cases(plan: Plan) -> Iterator[Case]:
    """Kill an agent alone, and count those of its processes that live on."""
    ours, theirs = Trials(), Trials()
    for turn in range(max(2, plan.trials // 4)):
        ours.take(agent_job(plan, OURS))
        if turn < (plan.theirs + 1) // 2:
            theirs.take(agent_job(plan, TORCH, "--standalone"))
    yield orphan_case("an agent killed: processes left behind", ours, theirs)


def agent_job(plan: Plan, side: str, *flags: str) -> Trials:
    """Kill one agent of two workers."""
    with plan.scene() as scene:
        agent = scene.launch(side, "--nproc-per-node", "2", *flags)
        must_step(scene, side, 2)
        at = agent.kill()
        scene.count_orphans(agent)
        seconds = time.monotonic() - at
    return Trials([seconds], orphans=scene.orphans)


# -- what all trials need ------------------------------------------------------------------------------------


def must_step(scene: Scene, side: str, world: int) -> None:
    """Wait for the first step of a fresh job."""
    if scene.log.wait_stepping(world, set(), time.monotonic() + START_CAP_S) is None:
        raise RuntimeError(f"{side} did not start its job:\n{scene.tail()}")


def note_recovery(scene: Scene, side: str, trials: Trials, at: float, world: int, known: set[int]) -> bool:
    """Wait until all ranks step again and note the time since the fault; says whether they do."""
    cap_s = OURS_CAP_S if side == OURS else THEIRS_CAP_S
    first = scene.log.wait_stepping(world, known, at + cap_s)
    if first is None:
        if side == TORCH:
            trials.failed += 1
            return False
        return fail(scene, trials, f"not back after {cap_s:g} s")
    pids = [entry.pid for entry in first]
    back_at, loaded_at = max(entry.at for entry in first), scene.log.last("loaded", pids)
    grouped_at = scene.log.last("grouped", pids)
    trials.seconds.append(back_at - at)
    trials.add(script=loaded_at - at, group=grouped_at - loaded_at, step=back_at - grouped_at)
    return True


def fail(scene: Scene, trials: Trials, why: str) -> bool:
    """Count a failure of ours, and show all that is known of it."""
    trials.failed += 1
    scene.keep = True
    print(f"{why}; the logs are kept in {scene.folder}\n{scene.tail()}", file=sys.stderr)
    return False


def last_pid(scene: Scene, rank: int) -> int:
    """Return the process that is a rank now."""
    scene.log.update()
    return next(entry.pid for entry in reversed(scene.log.entries) if entry.rank == rank)


def find_node(nodes: Sequence[Launched], port: int, *, host: bool) -> Launched:
    """Return the node whose agent carries the coordinator, or one whose does not."""
    owners = {each.pid for each in psutil.net_connections("tcp") if each.laddr.port == port and each.status == "LISTEN"}
    return next(node for node in nodes if (node.pid in owners) == host)


def calm() -> None:
    """Let a job step for a moment."""
    time.sleep(random.uniform(*CALM_S))


def free_port() -> int:
    """Return a port on which no process listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_listening(port: int) -> None:
    """Wait until a process listens on a port."""
    until = time.monotonic() + START_CAP_S
    while time.monotonic() < until:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)


def wait_for_line(path: Path, words: str, timeout_s: float) -> float | None:
    """Wait until a log holds some words; returns when that was seen, None if it was not."""
    until = time.monotonic() + timeout_s
    while words not in path.read_text(errors="replace"):
        if time.monotonic() >= until:
            return None
        time.sleep(0.01)
    return time.monotonic()


# -- figures -------------------------------------------------------------------------------------------------


def limit_case(name: str, ours: Trials, limit_s: float, theirs: Trials) -> Case:
    """Our median against a limit, theirs beside it."""
    mine, other = ours.median, theirs.median
    ratio = other / mine if mine and other else None
    ok = mine is not None and mine <= limit_s
    return Case(name, mine, "s", other, f"≤ {limit_s:g} s", ok, ratio, both(ours, theirs))


def beside_case(name: str, ours: Trials, theirs: Trials, *, must_win: bool = True) -> Case:
    """Our median beside theirs, which it must not be over."""
    mine, other = ours.median, theirs.median
    ratio = other / mine if mine and other else None
    ok = None if ratio is None or not must_win else ratio >= 1
    return Case(name, mine, "s", other, "≥ 1 x" if must_win else "", ok, ratio, both(ours, theirs))


def part_case(ours: Trials, theirs: Trials) -> Case:
    """The part of a recovery that is the launcher's; the rest is the script's and torch's own."""
    mine, other = (statistics.median(each.parts["script"]) if each.seconds else None for each in (ours, theirs))
    return Case("... of that, until the script runs anew", mine, "s", other)


def rate_case(name: str, ours: Trials, theirs: Trials) -> Case:
    """How many trials ended well; ours must all."""
    mine = 100 * len(ours.seconds) / max(ours.count, 1)
    other = 100 * len(theirs.seconds) / theirs.count if theirs.count else None
    note = f"ours {len(ours.seconds)} of {ours.count}"
    note += f", {TORCH} {len(theirs.seconds)} of {theirs.count} within {THEIRS_CAP_S:g} s" if theirs.count else ""
    return Case(name, mine, "%", other, "100 %", ours.failed == 0, None, note)


def orphan_case(name: str, ours: Trials, theirs: Trials) -> Case:
    """How many processes were left behind in all trials; none of ours may be."""
    other = theirs.orphans if theirs.count else None
    note = f"in {ours.count} trials of ours{f', {theirs.count} of {TORCH}' if theirs.count else ''}"
    return Case(name, ours.orphans, "", other, "0", ours.orphans == 0, None, note)


def quartiles(values: Sequence[float]) -> str:
    """Say where the middle half of the values lies, and the worst."""
    if len(values) < 4:
        return f"{', '.join(f'{value:.2f}' for value in sorted(values))} s"
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{low:.2f} / {middle:.2f} / {high:.2f} s, at worst {max(values):.2f}"


def both(ours: Trials, theirs: Trials) -> str:
    """Say where the middle half of both sides' successes lies."""
    sides = (("ours", ours), (TORCH, theirs))
    return "; ".join(f"{name} {quartiles(trials.seconds)}" for name, trials in sides if trials.seconds)


CASES = {
    "worker": worker_cases,
    "host": host_cases,
    "member": member_cases,
    "served": served_cases,
    "join": join_cases,
    "coordinator": coordinator_cases,
    "agent": agent_cases,
}


def run(full: bool) -> Results:
    """Run every case; `full` gives torchrun as many trials as ours."""
    return measure(Plan(TRIALS_FULL, THEIRS_FULL, THEIRS_SLOW_FULL) if full else Plan())


def measure(plan: Plan) -> Results:
    """Run the cases of a plan."""
    cases: list[Case] = []
    for name, case in CASES.items():
        if plan.wants(name):
            found = attempt(f"recovery: {name}", lambda case=case: case(plan))
            for each in found:
                print(f"  {each.name}: {each.ours} {each.unit}; {each.note}", file=sys.stderr, flush=True)
            cases += found
    rival = TORCH if any(case.theirs is not None for case in cases) else ""
    return Results(f"recovery of a plain torch script on {plan.device}, medians", cases, rival)


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="case", help=f"which: {', '.join(CASES)}; default: all")
    parser.add_argument("--trials", type=int, help=f"trials of each case for ours (default: {TRIALS})")
    parser.add_argument("--theirs", type=int, help=f"trials of a killed worker for torchrun (default: {THEIRS})")
    parser.add_argument("--theirs-slow", type=int, help=f"its trials of lost and new nodes (default: {THEIRS_SLOW})")
    parser.add_argument("--quick", action="store_true", help=f"{TRIALS_QUICK} trials of ours, one of torchrun's")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    options = parser.parse_args(argv)
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no case is called {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    usual = Plan(TRIALS_QUICK, 1, 1) if options.quick else Plan()
    plan = Plan(
        usual.trials if options.trials is None else options.trials,
        usual.theirs if options.theirs is None else options.theirs,
        usual.theirs_slow if options.theirs_slow is None else options.theirs_slow,
        options.device,
        tuple(options.cases),
    )
    results = measure(plan)
    print(results)
    if options.json:
        save(options.json, {"recovery": results})
    return 0 if results.ok else 1


if __name__ == "__main__":
    sys.exit(main())
