"""The program that Slurm starts on every node of a job: it runs one replica and writes down how it is.

It is the local supervisor, in the foreground: the replica's output, error file, retries and processes are looked after
as those of a local job. The record lies in the job's folder, where `holdfast status` and the batch program find it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.home import make_folders
from holdfast.schedulers import cluster
from holdfast.schedulers.local.folders import JobFolder, boot_id, write_json
from holdfast.schedulers.local.record import JobRecord, LocalRequest, ReplicaRecord
from holdfast.schedulers.local.render import DEFAULT_PATH
from holdfast.schedulers.local.supervisor import Supervisor
from holdfast.schedulers.slurm.folders import Run, read_request
from holdfast.schedulers.slurm.watch import BatchWatch
from holdfast.specs.states import AppState
from holdfast.wire.secret import SECRET_FILE_VARIABLE, VARIABLES

#: What the batch program tells the nodes: the run, where its first replica is, and a port there.
RUN_VARIABLE, FIRST_VARIABLE, PORT_VARIABLE = "HOLDFAST_SLURM_RUN", "HOLDFAST_SLURM_FIRST", "HOLDFAST_SLURM_PORT"
JOB_VARIABLE = "HOLDFAST_SLURM_JOB"
OURS = (RUN_VARIABLE, FIRST_VARIABLE, PORT_VARIABLE, JOB_VARIABLE)


def main(path: str, role: str, offset: str) -> int:
    """Run this node's replica to its end; returns its exit code."""
    folder = Path(path)
    number = int(os.environ["SLURM_PROCID"]) - int(offset)
    run = Run(folder, os.environ[RUN_VARIABLE])
    whole = read_request(folder)
    request = _own_request(cluster.portion(whole.job, role, number), run, os.environ)
    place = run.replica(role, number)
    make_folders(place.path)
    record = JobRecord(
        name=request.name,
        host=os.environ.get("SLURMD_NODENAME") or os.uname().nodename,
        boot_id=boot_id(),
        submitted_at=time.time(),
        replicas=[ReplicaRecord(role=role, id=number)],
    )
    write_json(place.path / "job.json", request.to_json())
    place.write_state(record)
    for name in OURS:
        os.environ.pop(name, None)  # they are not the app's
    watch = BatchWatch(run, whole, os.environ["SLURM_JOB_ID"], on_its_node=os.environ["SLURM_PROCID"] == "0")
    watch.start()
    try:
        code = _supervise(place, request)
    finally:
        watch.stop()
    watch.wait_heard()
    return code


def _own_request(portion: LocalRequest, run: Run, environ: Mapping[str, str]) -> LocalRequest:
    """Fill in what this node knows."""
    values = {
        f"{cluster.JOB_FOLDER}/logs": str(run.path / "logs"),
        cluster.JOB_FOLDER: str(run.job),
        cluster.JOB_ID: environ[JOB_VARIABLE],
        cluster.FIRST_HOST: environ[FIRST_VARIABLE],
        cluster.PORT: environ[PORT_VARIABLE],
        cluster.PATH: environ.get("PATH") or DEFAULT_PATH,
    }
    request = cluster.fill(portion, values)
    secret = run.job / "secret"
    for plan in request.replicas:
        if secret.exists() and not plan.env.keys() & set(VARIABLES):
            plan.env[SECRET_FILE_VARIABLE] = str(secret)
    return replace(request, roles=[])


def _supervise(place: JobFolder, request: LocalRequest) -> int:
    supervisor = Supervisor(place, request)
    try:
        supervisor.run()
    except BaseException as error:
        supervisor.give_up(f"its supervisor broke; please report this: {type(error).__name__}: {error}")
        raise
    record = place.read_state()
    assert record is not None
    if record.state == AppState.SUCCEEDED.name:
        return 0
    code = record.replicas[0].exit_code or 1
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except (HoldfastError, OSError) as error:
        print(f"holdfast: {error}", file=sys.stderr)
        sys.exit(1)
