"""Garbage: random and mutated frames against a live coordinator that has a job on it.

    python -m bench.garbage                 100,000 pieces, a table
    python -m bench.garbage --frames 2000   fewer

Real frames are captured from a small run, then ground: bits flipped, lengths, tags and versions wrong, nested deep,
absurd values, old proofs, wrong secrets, half frames left open; half of it from peers that have not proven the secret,
half from peers that have. Meanwhile a job of several nodes beats and uses its store, and must not be disturbed.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import statistics
import sys
import threading
import time
from pathlib import Path

from bench._agents import Agent
from bench._attack import Attacker
from bench._capture import capture
from bench._mill import Mill
from bench._served import Served
from bench.harness import Case, Results, raise_file_limit, save
from holdfast.coordinator.machine import run_space
from holdfast.coordinator.messages import RunSettings
from holdfast.coordinator.query import ask_coordinator
from holdfast.store.client import StoreClient
from holdfast.wire.loop import io_thread

FRAMES, FRAMES_FULL = 100_000, 300_000
JOB, JOB_NODES, JOB_LEASE_S = "job", 4, 2.0
ATTACKERS = 3
SEED = 20_240
PATIENCE_S = 60.0
#: What the memory may grow by before we call it growing: buffers and tables that are made once.
GROWTH_MB_MAX, LATE_GROWTH_MB_MAX = 8.0, 2.0


class Job:
    """A job of several nodes that are told nothing while all is well."""

    def __init__(self, served: Served, run: str = JOB, nodes: int = JOB_NODES) -> None:
        self._served, self._run, self._nodes = served, run, nodes
        self.agents: list[Agent] = []

    def start(self) -> None:
        """Gather the nodes."""
        io_thread().wait(self._start(), PATIENCE_S)

    def stop(self) -> None:
        """Let go of every connection."""
        io_thread().wait(self._stop(), PATIENCE_S)

    async def _start(self) -> None:
        changed = asyncio.Event()
        settings = RunSettings(self._nodes, self._nodes)
        self.agents = [
            Agent(number, self._run, settings, self._served.endpoint, self._served.secret, changed.set, JOB_LEASE_S)
            for number in range(self._nodes)
        ]
        for agent in self.agents:
            agent.ask()
        while not all(agent.round for agent in self.agents):
            changed.clear()
            await changed.wait()

    async def _stop(self) -> None:
        for agent in self.agents:
            agent.close()

    def disturbances(self) -> int:
        """Count what the nodes should not have noticed: broken rounds, lost connections, the end of the run."""
        return sum(
            (agent.links - 1) + (agent.rounds - 1) + agent.breaks + (agent.end is not None) for agent in self.agents
        )


def run(full: bool) -> Results:
    """Attack with the usual number of frames."""
    return attack(FRAMES_FULL if full else FRAMES)


def attack(frames: int, seed: int = SEED) -> Results:
    """Send so many pieces of garbage and look at what they did."""
    total = frames
    with Served() as served:
        bodies = capture(served.endpoint, served.secret, served.secret_file)
        attackers = [Attacker(served.endpoint, served.secret, Mill(bodies, seed + n)) for n in range(ATTACKERS)]
        files_before, rss_before = served.open_files(), served.rss_bytes()
        # The job comes to a coordinator that has seen some already: what is left of it must not harm either.
        for _ in range(frames // 10):
            attackers[0].send_one()
        frames -= frames // 10
        job = Job(served)
        job.start()
        start = time.perf_counter()
        with StoreClient.connect(served.endpoint, run_space(JOB), secret=served.secret) as store:
            rss_half, worst_ms, typical_ms = send_all(attackers, frames, served, store)
        seconds = time.perf_counter() - start
        rss_after = served.rss_bytes()
        for attacker in attackers:
            attacker.close()
        files_wanted = files_before + JOB_NODES
        files_left = max(wait_for_files(served, files_wanted) - files_wanted, 0)
        cases = [
            Case.seen("pieces of garbage sent", total, "", f"in {seconds:.0f} s, {len(bodies)} frames captured"),
            *outcome_cases(attackers),
            Case.at_most("things that the job noticed", job_trouble(served, job), "", 0, f"{JOB_NODES} nodes"),
            Case.at_most("failures to serve a new run", int(not serves_anew(served)), "", 0),
            Case.at_most("tracebacks in the coordinator's log", log_count(served, "Traceback"), "", 0),
            Case.at_most("connections left behind", files_left, "", 0),
            Case.at_most(
                "memory growth", mb(rss_after - rss_before), "MB", GROWTH_MB_MAX, f"from {mb(rss_before):.0f} MB"
            ),
            Case.at_most("... of that in the second half", mb(rss_after - rss_half), "MB", LATE_GROWTH_MB_MAX),
            Case.seen("refusals in the log", log_count(served, "refused"), ""),
            Case.seen("a question to the job's store meanwhile", typical_ms, "ms", f"at worst {worst_ms:.3g} ms"),
            Case.seen("runs that the coordinator holds now", len(ask_coordinator(served.endpoint, served.secret)), ""),
        ]
        job.stop()
    return Results("garbage against a coordinator with a job on it", cases)


def send_all(attackers: list[Attacker], frames: int, served: Served, store: StoreClient) -> tuple[int, float, float]:
    """Attack from several threads while the job asks its store; returns memory at half-time, and times in ms."""
    todo = collections.deque(range(frames))
    errors: list[BaseException] = []

    def send(attacker: Attacker) -> None:
        try:
            while True:
                todo.pop()
                attacker.send_one()
        except IndexError:
            return  # all is sent
        except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=send, args=(attacker,), daemon=True) for attacker in attackers]
    for thread in threads:
        thread.start()
    rss_half = 0
    times_ms: list[float] = []
    while any(thread.is_alive() for thread in threads):
        threads[0].join(0.05)
        start = time.perf_counter()
        store.add("steps", 1)
        times_ms.append(1000 * (time.perf_counter() - start))
        if not rss_half and len(todo) <= frames // 2:
            rss_half = served.rss_bytes()
    if errors:
        raise RuntimeError("the coordinator stopped answering") from errors[0]
    return rss_half, max(times_ms), statistics.median(times_ms)


def outcome_cases(attackers: list[Attacker]) -> list[Case]:
    """Say what became of each kind of garbage."""
    total: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for attacker in attackers:
        for key, counter in attacker.outcomes.items():
            total[key].update(counter)
    return [
        Case.seen(
            f"  {stage}: {kind}",
            sum(counter.values()),
            "",
            ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(counter.items())),
        )
        for (stage, kind), counter in sorted(total.items())
    ]


def job_trouble(served: Served, job: Job) -> int:
    """Count what went wrong with the job, by its own account and by the coordinator's."""
    trouble = job.disturbances()
    reports = ask_coordinator(served.endpoint, served.secret, JOB)
    if len(reports) != 1:
        return trouble + 1
    report = reports[0]
    round_ = job.agents[0].round
    trouble += round_ is None or report["round"] != round_.round.number or report["stage"] != "sealed"
    connected = [node for node in report["nodes"] if node["connected"]]
    return trouble + (len(connected) != len(job.agents))


def serves_anew(served: Served) -> bool:
    """Say whether a run that comes now is served as if nothing had been."""
    later = Job(served, run="later", nodes=2)
    later.start()
    later.stop()
    return served.is_up


def wait_for_files(served: Served, wanted: int) -> int:
    """Wait until the coordinator has let go of the connections; returns how many files it still holds open."""
    deadline = time.monotonic() + PATIENCE_S
    while (count := served.open_files()) > wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    return count


def log_count(served: Served, word: str) -> int:
    """Count the lines of the coordinator's log that hold a word."""
    with served.log_path.open(errors="replace") as log:
        return sum(word in line for line in log)


def mb(count: float) -> float:
    """Return bytes as megabytes."""
    return count / 1e6


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.garbage", description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=FRAMES, help="how many pieces to send (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    options = parser.parse_args(argv)
    raise_file_limit()
    results = attack(options.frames, options.seed)
    print(results)
    if options.json:
        save(options.json, {"garbage": results})
    return 0 if results.ok else 1


if __name__ == "__main__":
    sys.exit(main())
