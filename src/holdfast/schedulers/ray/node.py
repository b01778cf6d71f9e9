"""The local supervisor of one replica on a node of Ray, in a process of its own.

It ends its replica when its standard input is closed: then the actor that started it is gone, and with it the job or
the node. It stays until then, so that it is the one to remove the replica's folder, however the job ends. So neither a
process nor a file of a job is left where Ray kills its own without notice.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from holdfast.schedulers.local.folders import JobFolder, boot_id
from holdfast.schedulers.local.record import JobRecord, ReplicaRecord
from holdfast.schedulers.local.supervisor import Supervisor
from holdfast.threads import start_thread


def main(path: str) -> int:
    """Run the replica in this folder to its end."""
    place = JobFolder(Path(path))
    request = place.read_request()
    assert request is not None, "the actor writes the request before it starts this"
    record = JobRecord(
        name=request.name,
        host=os.uname().nodename,
        boot_id=boot_id(),
        submitted_at=time.time(),
        replicas=[ReplicaRecord(role=each.role, id=each.id) for each in request.replicas],
    )
    place.write_state(record)
    start_thread(_end_with_actor, "ray-actor-watch")
    supervisor = Supervisor(place, request)
    try:
        supervisor.run()
    except BaseException as error:
        supervisor.give_up(f"its supervisor broke; please report this: {type(error).__name__}: {error}")
        raise
    (place.path / OVER).touch()
    _ALONE.wait()
    shutil.rmtree(place.path, ignore_errors=True)
    return 0


#: The file that says that a replica has ended, and all that it printed is there.
OVER = "over"
_ALONE = threading.Event()


def _end_with_actor() -> None:
    while os.read(0, 4096):
        pass
    _ALONE.set()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
