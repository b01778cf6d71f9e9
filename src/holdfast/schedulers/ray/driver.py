"""The program of a job on Ray: it places one replica on a node each, and drives the machine of local jobs with them.

Retries, their meaning and the end of a job are decided by that machine. This program decides only where replicas run:
the least number of them is placed together or not at all; further ones, and those whose node was lost, when there is a
node for them. A start on another node after a loss is not a retry. All that replicas print is printed here, line by
line, as JSON; see `parse`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from holdfast.machine import Tick
from holdfast.schedulers import cluster
from holdfast.schedulers.local.machine import (
    CancelAsked,
    JobBegun,
    JobEnded,
    JobEvent,
    JobMachine,
    ReplicaEnded,
    ReplicaStarted,
    StartReplica,
    StopReplica,
)
from holdfast.schedulers.local.record import LocalRequest
from holdfast.schedulers.ray.actor import NodeActor, free_port
from holdfast.schedulers.ray.parse import record
from holdfast.schedulers.ray.render import bundle, fits, in_order, least, meets_at_driver
from holdfast.specs.states import AppState
from holdfast.wire.secret import make_key, write_secret
from holdfast.workers.linux import set_parent_death_signal

#: How long more nodes than the least are waited for, and how often is looked whether there are any.
MORE_S, LOOK_S = 5.0, 1.0
#: How long a replica that must run may be without a node, once its own was lost.
LOST_S = 60.0
#: How long an actor may take to begin on a node that is there.
BEGIN_S = 120.0
JOB_FILE = "job.json"


@dataclass
class Place:
    """Where a replica runs."""

    actor: Any
    node: str
    address: str
    #: The one question that is open at any time.
    question: Any = None


@dataclass
class Waiting:
    """A replica that has no node."""

    since: float
    #: Whether it has run before, on a node that was lost.
    was_lost: bool = False
    #: An actor that was asked for, and the node where it will be.
    asked: tuple[Any, Any, str] | None = field(default=None)


class Driver:
    """Runs one job to its end."""

    def __init__(self, job: LocalRequest, ray: Any) -> None:
        self._job = job
        self._ray = ray
        self._make_actor = ray.remote(NodeActor)
        self._machine = JobMachine(job.role_plans, [(each.role, each.id) for each in job.replicas])
        self._events: deque[JobEvent] = deque()
        self._roles = {role.name: role for role in job.roles}
        self._places: dict[int, Place] = {}
        self._waiting: dict[int, Waiting] = {}
        self._running: set[int] = set()
        self._lost: set[int] = set()
        self._secret = make_key()
        self._first, self._port = "", 0
        self._group: Any = None
        self._written = ""
        self._cancelled = False
        self._serving: subprocess.Popen[bytes] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-ray-"))

    def run(self) -> int:
        """Run the job; returns the exit code of the program."""
        signal.signal(signal.SIGTERM, self._on_term)
        self._place_all()
        if not self._places:
            return 1  # it was cancelled before there were nodes
        if meets_at_driver(self._job):
            self._serve()
        else:
            first = self._places[0]
            self._first, self._port = first.address, self._ray.get(first.actor.port.remote(self._job.app_id))
        self._events.append(JobBegun())
        self._settle()
        while self._machine.ended is None:
            self._wait()
            self._fill_places()
            if self._cancelled:
                self._events.append(CancelAsked())
            due = self._machine.wakeup()
            if due is not None and due <= time.monotonic():
                self._events.append(Tick())
            self._settle()
        for place in self._places.values():
            place.actor.clean.remote()
        self._tell(final=True)
        return 0 if self._machine.ended.state is AppState.SUCCEEDED else 1

    def _on_term(self, number: int, frame: object) -> None:
        del number, frame
        self._cancelled = True

    # -- where replicas run --------------------------------------------------------------------------------------------

    def _bundle(self, number: int) -> dict[str, float]:
        return bundle(self._roles[self._job.replicas[number].role])

    def _place_all(self) -> None:
        """Place as many replicas as there are nodes for, on a node each; at least the least number."""
        order, minimum = in_order(self._job), least(self._job)
        while not self._cancelled:
            there = sum(1 for node in self._nodes() if fits(self._bundle(0), node["Resources"]))
            wanted = max(minimum, min(len(order), there))
            for count in range(wanted, minimum - 1, -1):
                if self._try_group(order[:count], forever=count == minimum):
                    for number in order[count:]:
                        self._waiting[number] = Waiting(time.monotonic())
                    return

    def _try_group(self, numbers: list[int], *, forever: bool) -> bool:
        """Place these replicas together; returns whether that came about."""
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group([self._bundle(number) for number in numbers], strategy="STRICT_SPREAD")
        ready, told = group.ready(), False
        deadline = time.monotonic() + MORE_S
        while not self._ray.wait([ready], timeout=LOOK_S)[0]:
            if self._cancelled or (not forever and time.monotonic() > deadline):
                remove_placement_group(group)
                return False
            if not told and time.monotonic() > deadline:
                told = True
                there = len(self._nodes())
                need = f"{len(numbers)} nodes, each with {self._bundle(numbers[0])}"
                print(
                    record(waiting=f"it needs {need}; the cluster has {there} nodes, and not enough is free"),
                    flush=True,
                )
        self._group = group
        for index, number in enumerate(numbers):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
            self._places[number] = self._make_place(number, strategy)
        return True

    def _make_place(self, number: int, strategy: Any) -> Place:
        actor, where = self._ask_actor(number, strategy)
        node, address = self._ray.get(where, timeout=BEGIN_S)
        return Place(actor, node, address)

    def _ask_actor(self, number: int, strategy: Any) -> tuple[Any, Any]:
        wanted = self._bundle(number)
        more = {name: amount for name, amount in wanted.items() if name not in ("CPU", "GPU", "memory")}
        actor = self._make_actor.options(
            num_cpus=wanted["CPU"],
            num_gpus=wanted.get("GPU", 0),
            memory=wanted.get("memory"),
            resources=more or None,
            scheduling_strategy=strategy,
            max_concurrency=4,
            max_restarts=0,
        ).remote()
        return actor, actor.where.remote()

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _fill_places(self) -> None:
        """Start replicas that wait, on nodes that have none."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        used = {place.node for place in self._places.values()}
        used |= {waiting.asked[2] for waiting in self._waiting.values() if waiting.asked is not None}
        for number, waiting in list(self._waiting.items()):
            if waiting.asked is not None:
                self._look_at(number, waiting)
                continue
            free = [node for node in self._nodes() if node["NodeID"] not in used]
            found = next((node for node in free if fits(self._bundle(number), node["Resources"])), None)
            if found is not None:
                strategy = NodeAffinitySchedulingStrategy(found["NodeID"], soft=False)
                waiting.asked = (*self._ask_actor(number, strategy), found["NodeID"])
                used.add(found["NodeID"])
            elif waiting.was_lost and self._is_needed(number) and time.monotonic() - waiting.since > LOST_S:
                self._give_up(number, "its node was lost, and there is no other")
        if self._waiting and not self._running and not self._events and self._machine.wakeup() is None:
            for number, waiting in list(self._waiting.items()):  # the others have ended
                if waiting.was_lost:
                    self._give_up(number, "its node was lost, and no other was found before the others had ended")
                else:  # it never ran, and is not needed any more
                    del self._waiting[number]
                    self._events.append(ReplicaEnded(number, 0, "", False, time.time()))

    def _look_at(self, number: int, waiting: Waiting) -> None:
        assert waiting.asked is not None
        actor, where, node = waiting.asked
        if not self._ray.wait([where], timeout=0)[0]:
            return
        try:
            _, address = self._ray.get(where)
        except self._ray.exceptions.RayError:
            waiting.asked = None  # that node is gone too
            return
        del self._waiting[number]
        self._lost.discard(number)
        self._places[number] = Place(actor, node, address)
        self._start(number)

    def _is_needed(self, number: int) -> bool:
        role = self._roles[self._job.replicas[number].role]
        if role.min_replicas is None:
            return True
        live = sum(self._job.replicas[each].role == role.name for each in self._running)
        return live < role.min_replicas

    def _give_up(self, number: int, why: str) -> None:
        del self._waiting[number]
        self._events.append(ReplicaEnded(number, None, why, False, time.time()))

    # -- replicas ------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Hand every event to the machine and do what it says."""
        while self._events:
            for effect in self._machine.handle(self._events.popleft(), time.monotonic()):
                match effect:
                    case StartReplica(number):
                        self._start(number)
                    case StopReplica(number, hard):
                        self._stop(number, hard)
                    case JobEnded():
                        pass
        self._tell()

    def _start(self, number: int) -> None:
        place = self._places.get(number)
        if place is None:
            self._waiting.setdefault(number, Waiting(time.monotonic(), was_lost=number in self._lost))
            return
        plan = self._job.replicas[number]
        part = cluster.portion(self._job, plan.role, plan.id)
        part.role_plans[0].max_retries = 0  # retries are the machine's
        part.roles = []
        try:
            pid = self._ray.get(
                place.actor.start.remote(part.to_json(), self._first, self._port, self._secret), timeout=BEGIN_S
            )
        except self._ray.exceptions.RayError:
            self._lose(number)
            return
        self._running.add(number)
        place.question = place.actor.poll.remote()
        self._events.append(ReplicaStarted(number, pid, time.time()))

    def _stop(self, number: int, hard: bool) -> None:
        if number in self._waiting:
            del self._waiting[number]
            self._events.append(ReplicaEnded(number, None, "", True, time.time()))
        elif number in self._running:
            self._places[number].actor.stop.remote(hard)

    def _wait(self) -> None:
        """Wait until a replica has something to say."""
        questions = {place.question: number for number, place in self._places.items() if place.question is not None}
        if not questions:
            time.sleep(LOOK_S)
            return
        ready, _ = self._ray.wait(list(questions), num_returns=1, timeout=LOOK_S)
        for question in ready:
            number = questions[question]
            try:
                self._hear(number, self._ray.get(question))
            except self._ray.exceptions.RayError:
                self._lose(number)

    def _hear(self, number: int, said: dict[str, Any]) -> None:
        plan, place = self._job.replicas[number], self._places[number]
        for line in said["lines"]:
            print(record(of=[plan.role, plan.id], line=line))
        sys.stdout.flush()
        ended = said["ended"]
        if ended is None:
            place.question = place.actor.poll.remote()
            return
        place.question = None
        self._running.discard(number)
        stopped = ended["state"] == AppState.CANCELLED.name
        self._events.append(
            ReplicaEnded(
                number,
                ended.get("exit_code"),
                ended.get("cause", ""),
                stopped,
                ended.get("ended_at") or time.time(),
                error=ended.get("error", ""),
                reason=ended.get("reason"),
                last_line=ended.get("last_line", ""),
            )
        )

    def _lose(self, number: int) -> None:
        """A replica's node was lost: it waits for another, unless the job is ending."""
        place = self._places.pop(number)
        self._running.discard(number)
        self._lost.add(number)
        plan = self._job.replicas[number]
        note = f"{time.time():.6f} h [holdfast: the node {place.address} was lost]"
        print(record(of=[plan.role, plan.id], line=note), flush=True)
        if self._cancelled:
            self._events.append(ReplicaEnded(number, None, "its node was lost", True, time.time()))
        else:
            self._waiting[number] = Waiting(time.monotonic(), was_lost=True)

    # -- what the driver does itself -----------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Run the coordinator here, on the node that no job outlives anyway."""
        folder = self._folder
        write_secret(folder / "secret", self._secret)
        self._first, self._port = self._ray.util.get_node_ip_address(), free_port(self._job.app_id)
        words = [sys.executable, "-P", "-m", "holdfast", "serve", f"0.0.0.0:{self._port}", "--quiet"]
        words += ["--secret-file", str(folder / "secret"), "--state-dir", str(folder / "state")]
        self._serving = subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=set_parent_death_signal)

    def close(self) -> None:
        """End what this program has started."""
        if self._serving is not None:
            self._serving.terminate()
            self._serving.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _tell(self, *, final: bool = False) -> None:
        """Write down how the replicas are doing, if that has changed."""
        progress = self._machine.snapshot()
        asked = [each for each in progress.replicas if each.started_at is not None or final is False]
        shown = msgspec.structs.replace(progress, replicas=asked)
        hosts = {
            f"{self._job.replicas[number].role}/{self._job.replicas[number].id}": place.address
            for number, place in self._places.items()
        }
        line = record(progress=msgspec.to_builtins(shown), hosts=hosts)
        if line != self._written:
            self._written = line
            print(line, flush=True)


def main() -> int:
    """Run the job whose request lies in the current folder."""
    job = LocalRequest.from_json(json.loads(Path(JOB_FILE).read_text()))
    import ray

    ray.init(address="auto", log_to_driver=False, logging_level="WARNING")
    driver = Driver(job, ray)
    try:
        return driver.run()
    finally:
        driver.close()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # Ray ends the actors with their job
