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
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.chaos import inject
from holdfast.chaos.judge import is_same_size, judge
from holdfast.chaos.schedule import BY_WORKER, REPLICA, Fault, Kind, Schedule, choose
from holdfast.wire.ports import HeldPort

#: A run that takes longer than this has failed; a busy machine needs more patience.
RUN_TIMEOUT_S = 180.0
LOOK_S = 0.02
#: How long a worker may be silent; hangs are among the faults.
HANG_S = 3.0


@dataclass(frozen=True)
class Training:
    """One of the programs that the campaign runs."""

    module: str
    preload: str
    #: How long a step takes at least: long enough for a replacement to come while there is something left to do.
    pause_s: float
    #: How many workers hold one copy of the model.
    replica: int = 1

    def arguments(self, schedule: Schedule) -> tuple[str, ...]:
        """Return what its command line says of a schedule, beside the number of steps and how long each takes."""
        del schedule
        return ()

    def calm(self, schedule: Schedule) -> Schedule:
        """Return the schedule without faults that must end alike: here that of one worker, as for any other number."""
        return Schedule(-1, 1, 1, schedule.steps, ())


@dataclass(frozen=True)
class TorchTraining(Training):
    """Training with torch, every second schedule through DistributedDataParallel."""

    backend: str = "gloo"

    def arguments(self, schedule: Schedule) -> tuple[str, ...]:
        """Random numbers are only for those who keep their size: others draw them differently."""
        mode = ("reduce", "ddp")[schedule.seed // 2 % 2]
        size = (str(schedule.world_size), "0.2") if schedule.keeps_size else ("1", "0.0")
        return (mode, *size, self.backend)

    def calm(self, schedule: Schedule) -> Schedule:
        """As many workers, on one node; the seed says how they train."""
        kind = schedule.seed % 4 if schedule.keeps_size else schedule.seed % 4 | 1
        return Schedule(kind, 1, schedule.world_size, schedule.steps, ())


@dataclass(frozen=True)
class ReplicaTraining(Training):
    """Training with torch, with copies of the model that are split over workers."""

    backend: str = "gloo"

    def arguments(self, schedule: Schedule) -> tuple[str, ...]:
        """Say how many workers there must be, and what they talk through."""
        return (str(schedule.world_size if schedule.keeps_size else 1), self.backend)

    def calm(self, schedule: Schedule) -> Schedule:
        """As many workers, on one node."""
        return Schedule(0, 1, schedule.world_size, schedule.steps, ())


RING = Training("holdfast.chaos.training", "numpy", 0.02)
TORCH = ("holdfast.chaos.torch_training", "torch,torch._dynamo,torch.nn.parallel")
GLOO = TorchTraining(*TORCH, 0.06)
#: On a GPU a replacement takes longer to come: it opens the GPU first.
NCCL = TorchTraining(*TORCH, 0.15, backend="nccl")
SHARDED = ("holdfast.chaos.replica_training", "torch,torch._dynamo,torch.distributed.fsdp")
#: By the name of what the workers sum their gradients with.
TRAININGS: dict[str, Training] = {
    "ring": RING,
    "gloo": GLOO,
    "nccl": NCCL,
    "replicas": ReplicaTraining(*SHARDED, 0.06, replica=REPLICA),
    "replicas-nccl": ReplicaTraining(*SHARDED, 0.15, replica=REPLICA, backend="nccl"),
}


@dataclass
class Verdict:
    """How one run ended: no complaint means that it ended as if nothing had happened."""

    schedule: Schedule
    complaints: list[str] = field(default_factory=list)
    struck: int = 0
    seconds: float = 0.0
    folder: str = ""
    #: Whether it had to be equal to the undisturbed run bit by bit, since every step was done by as many workers.
    is_bit_equal: bool = False

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.complaints


class Job:
    """One live job: a coordinator of its own and one or more agents."""

    def __init__(self, schedule: Schedule, training: Training, folder: Path, patience: float = 1.0) -> None:
        self.schedule = schedule
        self._patience = patience
        self.training = training
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
        deadline = time.monotonic() + RUN_TIMEOUT_S * self._patience
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
            *("--rdzv-conf", "is_host=false", "--max-restarts", "50", "--last-call", "0.5"),
            *("--preload", self.training.preload),
            *(
                "--hang",
                f"{HANG_S * self._patience:g}s",
                "--log-dir",
                str(self.folder / "logs"),
                "--shutdown-timeout",
                "2",
                "--json",
            ),
            *(
                "-m",
                self.training.module,
                str(schedule.steps),
                str(self.training.pause_s),
                *self.training.arguments(schedule),
            ),
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


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return what the workers left that trained to the end."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]


class Undisturbed:
    """The results of runs to which nothing happens; each is made when it is first asked for."""

    def __init__(self, training: Training, patience: float = 1.0) -> None:
        self.training = training
        self.patience = patience
        self._lock = threading.Lock()
        self._results: dict[Schedule, dict[str, Any]] = {}

    def result(self, schedule: Schedule) -> dict[str, Any]:
        """Return what a schedule must end with."""
        calm = self.training.calm(schedule)
        with self._lock:
            if calm not in self._results:
                self._results[calm] = self._run(calm)
            return self._results[calm]

    def _run(self, calm: Schedule) -> dict[str, Any]:
        verdict = run_one(calm, self.training, None, keep=True, patience=self.patience)
        if verdict.complaints:
            raise RuntimeError(f"the undisturbed run failed: {verdict.complaints}; see {verdict.folder}")
        result = read_results(Path(verdict.folder))[0]
        shutil.rmtree(verdict.folder, ignore_errors=True)
        return result


def run_seed(seed: int, undisturbed: Undisturbed, *, keep: bool = False) -> Verdict:
    """Run the schedule of one seed."""
    schedule = choose(seed, random.Random(seed), undisturbed.training.replica)
    expected = undisturbed.result(schedule)
    return run_one(schedule, undisturbed.training, expected, keep=keep, patience=undisturbed.patience)


def run_one(
    schedule: Schedule,
    training: Training,
    expected: dict[str, Any] | None,
    *,
    keep: bool = False,
    patience: float = 1.0,
) -> Verdict:
    """Run one schedule; its folder stays where something is wrong, or where that is asked for."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast_chaos_"))
    began = time.monotonic()
    job = Job(schedule, training, folder, patience)
    complaints, results = job.run(), read_results(folder)
    verdict = Verdict(schedule, complaints or judge(results, expected), job.struck(), folder=str(folder))
    verdict.is_bit_equal = expected is not None and all(is_same_size(one, expected) for one in results)
    verdict.seconds = time.monotonic() - began
    if verdict.is_good and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict
