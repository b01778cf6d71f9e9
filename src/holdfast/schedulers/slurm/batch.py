"""The program that Slurm starts on the first node of a job: it runs the step, and what comes after it.

A step is one `srun` over all nodes. Where nodes are lost, or tasks fail, the others go on; when none is left the
replicas' own records say how the step ended, and `decide` says what comes next. Slurm's notice before the time limit
arrives here as SIGUSR1 and is passed on to all replicas as SIGTERM, which workers know as a notice: they save and
leave.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import HoldfastError, UnavailableError
from holdfast.launcher.slurm import port_of
from holdfast.launcher.slurm_address import reachable
from holdfast.schedulers import cluster
from holdfast.schedulers.slurm import client
from holdfast.schedulers.slurm.decide import After, Move, decide
from holdfast.schedulers.slurm.folders import Run, read_request
from holdfast.schedulers.slurm.node import FIRST_VARIABLE, JOB_VARIABLE, PORT_VARIABLE, RUN_VARIABLE
from holdfast.schedulers.slurm.parse import BatchRecord, JobInfo, expand_nodes
from holdfast.schedulers.slurm.render import SlurmRequest, step_command
from holdfast.specs.states import AppState, ReplicaStatus, is_terminal

#: When the job's time is up, in seconds since the epoch; newer versions of Slurm set it themselves.
END_VARIABLE = "SLURM_JOB_END_TIME"
#: How long a record that another node has just written may take to be seen here, as on NFS.
APPEAR_S = 5.0
LOOK_S = 0.2
#: How often the other nodes are shown that this program lives.
BEAT_S = 1.0
#: How long Slurm may take to end us after a requeue was asked for.
REQUEUE_S = 120.0


class Batch:
    """One start of a job by Slurm."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._request: SlurmRequest = read_request(folder)
        self._environ = environ
        self._job_id = environ["SLURM_JOB_ID"]
        array = environ.get("SLURM_ARRAY_JOB_ID")
        number = environ.get("SLURM_ARRAY_TASK_ID", "0") if array else "0"
        self._app_id = f"{array}_{number}" if array else self._job_id
        self._run = Run(folder, number)
        self._record = self._run.read_batch() or BatchRecord()
        self._noticed = self._ending = False
        self._beats = 0

    def run(self) -> int:
        """Run steps until the job has ended; returns its exit code."""
        signal.signal(signal.SIGUSR1, self._on_notice)
        signal.signal(signal.SIGTERM, self._on_end)
        self._record.starts += 1
        self._record.ended, self._record.ended_at = "", None
        while True:
            ended, lost = self._run_step()
            move, sentence = decide(self._after(ended, lost))
            self._record.msg = sentence
            print(f"holdfast: {move}: {sentence or 'all replicas have succeeded'}", flush=True)
            if move is Move.REQUEUE:
                self._requeue()
            if move is not Move.AGAIN:
                return self._conclude(ended)
            self._record.failures += 1

    # -- a step --------------------------------------------------------------------------------------------------------

    def _run_step(self) -> tuple[cluster.Ended, bool]:
        """Run one step to its end; returns how it ended, and whether nodes were lost."""
        groups = self._nodes()
        self._run.forget_replicas()
        self._record.steps += 1
        self._record.sizes = {group.role: len(nodes) for group, nodes in zip(self._request.groups, groups, strict=True)}
        self._run.write_batch(self._record)
        words = step_command(self._request, [len(nodes) for nodes in groups], [",".join(nodes) for nodes in groups])
        step = subprocess.Popen(words, env=self._step_environ(groups[0][0]))
        while step.poll() is None:
            self._beats += 1
            self._run.beat(self._beats)
            try:
                step.wait(BEAT_S)
            except subprocess.TimeoutExpired:
                pass
        left = self._nodes()
        replicas = self._replicas()
        fewer = any(len(now) < len(before) for now, before in zip(left, groups, strict=True))
        return cluster.conclude(self._request.job.role_plans, replicas), fewer

    def _step_environ(self, first: str) -> dict[str, str]:
        port = port_of(self._app_id, self._record.steps)
        found = {
            RUN_VARIABLE: self._run.path.name,
            JOB_VARIABLE: self._app_id,
            FIRST_VARIABLE: reachable(first),
            PORT_VARIABLE: str(port),
        }
        if END_VARIABLE not in self._environ and (infos := self._ask()) and infos[0].ended:
            found[END_VARIABLE] = str(int(infos[0].ended))
        return {**self._environ, **found}

    def _nodes(self) -> list[list[str]]:
        """Return the nodes of every group that are left."""
        infos = self._ask()
        known = [expand_nodes(info.nodes) for info in infos if info.nodes]
        if len(known) == len(self._request.groups):
            return known
        names = [f"SLURM_JOB_NODELIST_HET_GROUP_{n}" for n in range(len(self._request.groups))]
        return [expand_nodes(self._environ.get(name) or self._environ["SLURM_JOB_NODELIST"]) for name in names]

    def _ask(self) -> list[JobInfo]:
        """Return what Slurm knows of the job; nothing where its controller stays away: the job goes on without it."""
        try:
            return client.find_patiently(self._job_id)
        except UnavailableError:
            return []

    def _replicas(self) -> list[ReplicaStatus]:
        """Return how the replicas of a step that is over have ended; one that left no last word was lost."""
        deadline = time.monotonic() + APPEAR_S
        while True:
            found = self._run.records(self._request.job)
            replicas = []
            for plan in self._request.job.replicas:
                if plan.id >= self._record.sizes[plan.role]:
                    continue
                record = found.get((plan.role, plan.id))
                status = cluster.status_of(record) if record is not None else None
                replicas.append(status or cluster.unstarted(plan.role, plan.id, AppState.PENDING))
            if all(is_terminal(each.state) for each in replicas) or time.monotonic() > deadline:
                return [cluster.lost(each, "its node was lost, or its task could not be started") for each in replicas]
            time.sleep(LOOK_S)

    # -- what comes after ----------------------------------------------------------------------------------------------

    def _after(self, ended: cluster.Ended, lost: bool) -> After:
        left = self._nodes()
        enough = all(len(nodes) >= group.nodes_min for nodes, group in zip(left, self._request.groups, strict=True))
        over = self._record.requeues >= self._request.requeues_max
        return After(
            ended,
            notice="workers were told to leave, because the job's time is nearly over" if self._noticed else "",
            ending=self._ending,
            may_requeue=self._request.requeue and not over,
            why_not=f"it was requeued {self._record.requeues} times already" if over else "it may not be requeued",
            failures=self._record.failures,
            max_retries=cluster.retries(self._request.job),
            lost_nodes=lost,
            enough_nodes=enough,
        )

    def _requeue(self) -> None:
        """Give the job back to the queue; Slurm then ends this program. Returns only where that did not happen."""
        self._record.requeues += 1
        self._run.write_batch(self._record)
        if said := client.requeue(self._job_id):
            self._record.msg += f"; but Slurm refused that: {said}"
            return
        deadline = time.monotonic() + REQUEUE_S
        while not self._ending and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        sys.exit(0)  # the job's state is Slurm's now

    def _conclude(self, ended: cluster.Ended) -> int:
        state = AppState.CANCELLED if self._ending and ended.state is not AppState.SUCCEEDED else ended.state
        self._record.ended, self._record.ended_at = state.name, time.time()
        self._run.write_batch(self._record)
        return ended.exit_code

    # -- signals -------------------------------------------------------------------------------------------------------

    def _on_notice(self, number: int, frame: object) -> None:
        del number, frame
        if not self._noticed:
            self._noticed = True
            if said := client.signal_steps(self._job_id, "TERM"):
                print(f"holdfast: the replicas could not be told to leave: {said}", file=sys.stderr, flush=True)

    def _on_end(self, number: int, frame: object) -> None:
        del number, frame
        self._ending = True


if __name__ == "__main__":
    try:
        sys.exit(Batch(Path(sys.argv[1]), os.environ).run())
    except (HoldfastError, OSError) as error:
        print(f"holdfast: {error}", file=sys.stderr)
        sys.exit(1)
