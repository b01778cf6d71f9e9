"""The campaign: many seeded schedules on live jobs, each of which must end as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.chaos import inject
from holdfast.chaos.schedule import BY_WORKER, Fault, Kind, Schedule, choose
from holdfast.wire.ports import HeldPort

#: A run that takes longer than this has failed.
RUN_TIMEOUT_S = 120.0
LOOK_S = 0.02
#: How long a worker may be silent; hangs are among the faults.
HANG = "3s"
PAUSE_S = 0.02


@dataclass
class Verdict:
    """How one run ended: no complaint means that it ended as if nothing had happened."""

    schedule: Schedule
    complaints: list[str] = field(default_factory=list)
    struck: int = 0
    seconds: float = 0.0
    folder: str = ""

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.complaints


class Job:
    """One live job: a coordinator of its own and one or more agents."""

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self.schedule = schedule
        self.folder = folder
        (folder / inject.SCHEDULE_FILE).write_text(json.dumps(schedule.to_json()))
        self._held = HeldPort()
        self._env = {
            **os.environ,
            inject.FOLDER_VARIABLE: str(folder),
            "HOLDFAST_HOME": str(folder / "home"),
            "OMP_NUM_THREADS": "1",
        }
        self._coordinator = self._start_coordinator()
        self._agents = [self._start_agent(number) for number in range(schedule.agents)]
        self._left: set[int] = set()
        self._acted: set[int] = set()

    def run(self) -> list[str]:
        """Bring about what the workers cannot do to themselves, until the job is over; returns complaints."""
        deadline = time.monotonic() + RUN_TIMEOUT_S
        try:
            while any(agent.poll() is None for agent in self._agents):
                if time.monotonic() > deadline:
                    return ["the job did not end in time"]
                for fault in self.schedule.faults:
                    mark = inject.mark_of(self.folder, fault.number)
                    if fault.kind not in BY_WORKER and fault.number not in self._acted and mark.exists():
                        self._act(fault, mark)
                time.sleep(LOOK_S)
            codes = [agent.returncode for number, agent in enumerate(self._agents) if number not in self._left]
            return [] if not any(codes) else [f"agents ended with {codes}"]
        finally:
            self._close()

    def struck(self) -> int:
        """How many faults were brought about."""
        return sum(inject.mark_of(self.folder, fault.number).exists() for fault in self.schedule.faults)

    def _act(self, fault: Fault, mark: Path) -> None:
        try:
            told = json.loads(mark.read_text())
        except ValueError:
            return  # being written
        self._acted.add(fault.number)
        if fault.kind is Kind.COORDINATOR_RESTART:
            self._coordinator.kill()
            self._coordinator.wait()
            self._coordinator = self._start_coordinator()
        elif fault.kind is Kind.GROW:
            self._agents.append(self._start_agent(len(self._agents)))
        else:
            number = next((n for n, agent in enumerate(self._agents) if agent.pid == told["agent"]), None)
            if number is None:
                return
            self._left.add(number)
            if fault.kind is Kind.SHRINK:
                self._agents[number].send_signal(signal.SIGTERM)
            else:
                self._agents[number].kill()
                self._agents.append(self._start_agent(len(self._agents)))

    def _start_coordinator(self) -> subprocess.Popen[bytes]:
        command = ["serve", f"127.0.0.1:{self._held.port}", "--state-dir", str(self.folder / "records")]
        return self._start(command, "coordinator")

    def _start_agent(self, number: int) -> subprocess.Popen[bytes]:
        schedule = self.schedule
        nodes = f"1:{schedule.agents + 1}" if schedule.agents > 1 else "1"
        command = [
            *("launch", "--nnodes", nodes, "--nproc-per-node", str(schedule.workers_per_agent)),
            *("--rdzv-backend", "holdfast", "--rdzv-endpoint", f"127.0.0.1:{self._held.port}", "--rdzv-id", "chaos"),
            *("--rdzv-conf", "is_host=false", "--max-restarts", "50", "--last-call", "0.5", "--preload", "numpy"),
            *("--hang", HANG, "--log-dir", str(self.folder / "logs"), "--shutdown-timeout", "2", "--json"),
            *("-m", "holdfast.chaos.training", str(schedule.steps), str(PAUSE_S)),
        ]
        return self._start(command, f"agent-{number}")

    def _start(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "holdfast", *command], env=self._env, stdout=log, stderr=log, cwd=self.folder
            )

    def _close(self) -> None:
        for process in (*self._agents, self._coordinator):
            if process.poll() is None:
                process.terminate()
        for process in (*self._agents, self._coordinator):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._held.close()


def check(folder: Path, expected: dict[str, Any] | None) -> list[str]:
    """Look at what the workers left: the same bits for all, every sample as often as there were epochs."""
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]
    if not results:
        return ["no worker has left a result"]
    complaints = []
    first = results[0]
    for one in results:
        if (one["weights"], one["momentum"]) != (first["weights"], first["momentum"]):
            complaints.append(f"ranks {first['rank']} and {one['rank']} ended with different models")
        if expected is not None and (one["weights"], one["momentum"]) != (expected["weights"], expected["momentum"]):
            complaints.append(f"rank {one['rank']} ended with another model than the undisturbed run")
        if len(set(one["used"])) != 1:
            wrong = {index: count for index, count in enumerate(one["used"]) if count != one["used"][0]}
            complaints.append(f"rank {one['rank']}: samples were not used equally often: {str(wrong)[:200]}")
        elif expected is not None and one["used"] != expected["used"]:
            complaints.append(f"rank {one['rank']}: every sample was used {one['used'][0]} times")
    return complaints


def undisturbed() -> dict[str, Any]:
    """Return the result of one worker that nothing happens to."""
    schedule = Schedule(-1, 1, 1, choose(0, random.Random(0)).steps, ())
    verdict = run_one(schedule, None, keep=True)
    try:
        if verdict.complaints:
            raise RuntimeError(f"the undisturbed run failed: {verdict.complaints}; see {verdict.folder}")
        result: dict[str, Any] = json.loads(next(Path(verdict.folder).glob("result-*.json")).read_text())
        return result
    finally:
        shutil.rmtree(verdict.folder, ignore_errors=True)


def run_seed(seed: int, expected: dict[str, Any], *, keep: bool = False) -> Verdict:
    """Run the schedule of one seed."""
    return run_one(choose(seed, random.Random(seed)), expected, keep=keep)


def run_one(schedule: Schedule, expected: dict[str, Any] | None, *, keep: bool = False) -> Verdict:
    """Run one schedule; its folder stays where something is wrong, or where that is asked for."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast_chaos_"))
    began = time.monotonic()
    job = Job(schedule, folder)
    complaints = job.run() or check(folder, expected)
    verdict = Verdict(schedule, complaints, job.struck(), time.monotonic() - began, str(folder))
    if verdict.is_good and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict
