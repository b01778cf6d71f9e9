"""The nodes of a job whose batch program was lost: they finish the job without it, or give it back to the queue.

The batch program runs on the first node and shows that it lives by a beat in the job's folder. With `--no-kill` Slurm
would leave a job without it as it is until its time is over. So the other nodes look. Where the training goes on
without the first node, the job goes on; when all its replicas have ended, they write down how, and cancel what is left
of the job in Slurm. Where it cannot go on, or did not succeed, they give it back to the queue.

Looks are counted, not seconds: a job that is suspended looks at nothing.
"""

from __future__ import annotations

import sys
import threading
import time

from holdfast.rendezvous.settings import TAKEOVER
from holdfast.schedulers import cluster
from holdfast.schedulers.slurm import client
from holdfast.schedulers.slurm.decide import outlives_first
from holdfast.schedulers.slurm.folders import Run
from holdfast.schedulers.slurm.parse import BatchRecord, expand_nodes
from holdfast.schedulers.slurm.render import SlurmRequest
from holdfast.specs.states import AppState, ReplicaStatus, is_terminal
from holdfast.threads import start_thread

#: How often the batch program is looked at before it counts as lost, and how often in the end, when a node waits.
LOOKS, LAST_LOOKS = 10, 100
#: How often Slurm is asked which nodes are left.
NODES_EVERY_S = 5.0
LOST = "the node with the batch program was lost"


class BatchWatch:
    """One node's look at the batch program."""

    def __init__(self, run: Run, request: SlurmRequest, job_id: str, *, on_its_node: bool) -> None:
        self._run = run
        self._request = request
        self._job_id = job_id
        #: Nothing is left to look for: this node would be lost with the batch program, or has given the job back.
        self._idle = on_its_node
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._beat = ""
        self._lost = False

    def start(self) -> None:
        """Begin to look, in the background."""
        self._beat = self._run.read_beat()
        if not self._idle:
            self._thread = start_thread(self._look, "slurm-batch-watch")

    def stop(self) -> None:
        """Look no more in the background: this node's replica has ended."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def wait_heard(self) -> None:
        """Wait until the batch program shows that it lives, and will see to the end; without it, do so here."""
        if self._idle:
            return
        for _ in range(LAST_LOOKS):
            record = self._run.read_batch()
            if self._lost or self._run.read_beat() != self._beat or (record is not None and record.ended):
                break
            time.sleep(self._request.lost_after_s / LAST_LOOKS)
        else:
            self._lost = True
        if self._lost:
            self._conclude()

    def _look(self) -> None:
        pause, same = self._request.lost_after_s / LOOKS, 0
        while not self._over.wait(pause):
            beat = self._run.read_beat()
            self._beat, same = beat, same + 1 if beat == self._beat else 0
            if same < LOOKS:
                continue
            self._lost = True
            if not outlives_first(self._request, self._sizes(), by_default=TAKEOVER):
                self._idle = True  # Slurm ends this node's replica now; that is not the job's end
                return self._give_back(LOST)
            print(f"holdfast: {LOST}; the job goes on without it", file=sys.stderr, flush=True)
            return None
        return None

    def _sizes(self) -> dict[str, int]:
        return (self._run.read_batch() or BatchRecord()).sizes

    # -- without the batch program -------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        """Do what the batch program would at the end; of several nodes that do, Slurm heeds the first."""
        ended = cluster.conclude(self._request.job.role_plans, self._wait_replicas())
        if ended.state is not AppState.SUCCEEDED:
            return self._give_back(f"{LOST}; {ended.msg}")
        record = self._run.read_batch() or BatchRecord()
        record.msg, record.ended, record.ended_at = ended.msg, AppState.SUCCEEDED.name, time.time()
        self._run.write_batch(record)
        return client.cancel(self._job_id)

    def _wait_replicas(self) -> list[ReplicaStatus]:
        """Wait until no other replica runs on a node that is left, and return how all have ended."""
        first = self._request.groups[0].role
        sizes = self._sizes()
        while True:
            nodes = {name for info in client.find_patiently(self._job_id) for name in expand_nodes(info.nodes)}
            found = self._run.records(self._request.job)
            replicas, running = [], False
            for plan in self._request.job.replicas:
                record = found.get((plan.role, plan.id))
                status = cluster.status_of(record) if record is not None else None
                if status is None or plan.id >= sizes.get(plan.role, 0):
                    continue
                replicas.append(cluster.lost(status, "its node was lost"))
                is_left = status.hostname in nodes and (plan.role, plan.id) != (first, 0)
                running = running or (is_left and not is_terminal(status.state))
            if not running:
                return replicas
            time.sleep(NODES_EVERY_S)

    def _give_back(self, why: str) -> None:
        """Give the job back to the queue, or end it where it may not be requeued; not one that is ending already."""
        infos = client.find_patiently(self._job_id)
        if not infos or infos[0].state != "RUNNING":
            return
        record = self._run.read_batch() or BatchRecord()
        refused = "it may not be requeued"
        if self._request.requeue:
            record.requeues += 1
            record.msg = f"{why}; the job went back to the queue"
            self._run.write_batch(record)
            refused = client.requeue(self._job_id)
        if refused:
            record.msg, record.ended, record.ended_at = f"{why}: {refused}", AppState.FAILED.name, time.time()
            self._run.write_batch(record)
            client.cancel(self._job_id)
