"""The program in every pod of a job: it runs one replica, and leaves its last word in the termination message.

It is the local supervisor, in the foreground: the replica's error file, its output and all its processes are looked
after as those of a local job. What it prints are the replica's lines. Its last word says what the cluster cannot know:
which rank failed first, and its traceback.

A pod that is deleted or evicted gets SIGTERM, which is passed on to the replica: an agent of ours then leaves its round
politely. The exit code 143 tells the Job that this was no failure.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from holdfast.errors import HoldfastError, UnavailableError
from holdfast.health.address import PORT_VARIABLE as HEALTH_VARIABLE
from holdfast.home import HOME_VARIABLE, make_folders
from holdfast.schedulers import cluster
from holdfast.schedulers.kubernetes import code
from holdfast.schedulers.kubernetes.last_word import encode
from holdfast.schedulers.kubernetes.pod import SECRETS, TOLD_TO_END
from holdfast.schedulers.kubernetes.render import JOB_FOLDER, WORK_FOLDER
from holdfast.schedulers.local.capture import ConsoleLog
from holdfast.schedulers.local.folders import JobFolder, boot_id, write_json
from holdfast.schedulers.local.record import JobRecord, LocalRequest, ReplicaRecord
from holdfast.schedulers.local.render import DEFAULT_PATH
from holdfast.schedulers.local.supervisor import Supervisor
from holdfast.specs.states import AppState
from holdfast.wire.secret import SECRET_FILE_VARIABLE, VARIABLES, write_secret

#: What the Secret holds, by key: the request, the run's secret, and what the node is to know of the options.
REQUEST_KEY, SECRET_KEY, SETTINGS_KEY = "job.json.gz", "secret", "settings.json"
TERMINATION_LOG = Path("/dev/termination-log")


def main(role: str, number: str) -> int:
    """Run this pod's replica to its end; returns the exit code of the pod."""
    place = JobFolder(Path(JOB_FOLDER))
    request = _put_in_place(place, role, int(number))
    record = JobRecord(
        name=request.name,
        host=os.uname().nodename,
        boot_id=boot_id(),
        submitted_at=time.time(),
        replicas=[ReplicaRecord(role=role, id=int(number))],
    )
    write_json(place.path / "job.json", request.to_json())
    place.write_state(record)
    supervisor = Supervisor(place, request, ConsoleLog)
    try:
        supervisor.run()
    except BaseException as error:
        supervisor.give_up(f"its supervisor broke; please report this: {type(error).__name__}: {error}")
        raise
    finally:
        ended = place.read_state()
        assert ended is not None
        leave_word(ended.replicas[0])
    return exit_code(ended)


def exit_code(record: JobRecord) -> int:
    """Return the exit code that tells the Job what to do: nothing, to count a failure, or to start another pod."""
    if record.state == AppState.SUCCEEDED.name:
        return 0
    if record.state == AppState.CANCELLED.name:
        return TOLD_TO_END
    code = record.replicas[0].exit_code or 1
    code = 128 - code if code < 0 else code
    return code if code != TOLD_TO_END else 1  # a replica that another process ended has failed


def leave_word(record: ReplicaRecord, path: Path = TERMINATION_LOG) -> None:
    """Write how the replica ended where Kubernetes looks for it."""
    try:
        path.write_text(encode(record))
    except OSError as error:
        print(f"holdfast: the last word cannot be left in {path}: {error}", file=sys.stderr)


def _put_in_place(place: JobFolder, role: str, number: int) -> LocalRequest:
    """Unpack what travels with the job, and fill in what only this pod knows."""
    secrets, folder = Path(SECRETS), place.path
    make_folders(folder / cluster.BIN)
    portion = cluster.portion(code.read_request(secrets / REQUEST_KEY), role, number)
    settings = code.read_settings(secrets / SETTINGS_KEY)
    python = folder / cluster.BIN / "python"
    python.write_text(cluster.python_script(sys.executable))
    python.chmod(0o700)
    code.unpack(secrets, folder)
    values = {cluster.PATH: os.environ.get("PATH") or DEFAULT_PATH, WORK_FOLDER: str(Path.cwd())}
    request = cluster.fill(portion, values)
    # Where a Job starts its pod again, that is the retry.
    request.role_plans = [replace(plan, max_retries=0) for plan in request.role_plans]
    secret = secrets / SECRET_KEY
    for plan in request.replicas:
        if secret.exists() and not plan.env.keys() & set(VARIABLES):
            write_secret(folder / "secret", secret.read_bytes())
            plan.env[SECRET_FILE_VARIABLE] = str(folder / "secret")
        plan.env.setdefault(HOME_VARIABLE, str(folder / "home"))
        if port := settings.get("health_port"):
            plan.env.setdefault(HEALTH_VARIABLE, f"0.0.0.0:{port}")
    return replace(request, roles=[])


def _end_at_once(signum: int, frame: object) -> None:
    """End where the replica has not been started: the first process of a container ignores signals by default."""
    del signum, frame
    sys.exit(TOLD_TO_END)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end_at_once)
    try:
        sys.exit(main(*sys.argv[1:]))
    except (HoldfastError, OSError) as error:
        sentence = (
            str(error) if isinstance(error, UnavailableError | HoldfastError) else f"the pod cannot start: {error}"
        )
        print(f"holdfast: {sentence}", file=sys.stderr)
        leave_word(ReplicaRecord(role=sys.argv[1], id=int(sys.argv[2]), state="FAILED", exit_code=1, cause=sentence))
        sys.exit(1)
