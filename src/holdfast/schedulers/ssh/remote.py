"""The program on a host. Each call is one order from the user's machine, answered with one line of JSON.

What it runs are local jobs of this host, one for each replica, with the local scheduler's own means. So they outlive
the connection, and `holdfast list` on the host shows them too.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
import tarfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError, UnavailableError
from holdfast.launcher.slurm import port_of
from holdfast.schedulers import cluster
from holdfast.schedulers.api import LogQuery
from holdfast.schedulers.local.record import LocalRequest
from holdfast.schedulers.local.render import DEFAULT_PATH
from holdfast.schedulers.local.scheduler import LocalScheduler
from holdfast.schedulers.replies import Stream
from holdfast.schedulers.shipping import extract
from holdfast.specs.states import AppState
from holdfast.wire.secret import SECRET_FILE_VARIABLE, VARIABLES, write_secret

Order = Mapping[str, Any]
#: How many ports are tried for the first replica.
PORT_TRIES = 100


def main(order: Order, packages: str) -> None:
    """Do what the order says, and exit; `packages` is where Holdfast was found, or empty where it is installed."""
    verbs: dict[str, Callable[[Order, LocalScheduler, str], dict[str, Any] | None]] = {
        "probe": probe,
        "submit": submit,
        "describe": describe,
        "log": log,
        "end": end,
    }
    try:
        answer = verbs[order["verb"]](order, LocalScheduler(order["session"]), packages)
        if answer is not None:
            print(json.dumps(answer), flush=True)
    except HoldfastError as error:
        print(json.dumps({"error": str(error), "kind": type(error).__name__}), flush=True)
    except BrokenPipeError:
        os._exit(1)  # the one who asked is gone


def probe(order: Order, scheduler: LocalScheduler, packages: str) -> dict[str, Any]:
    """Say what this host is, and name a port that is free."""
    del scheduler, packages
    for attempt in range(PORT_TRIES):
        port = port_of(order["app_id"], attempt)
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("", port))
            except OSError:
                continue
            return {"port": port, "hostname": os.uname().nodename}
    raise UnavailableError(f"none of {PORT_TRIES} ports is free on {os.uname().nodename}")


def submit(order: Order, scheduler: LocalScheduler, packages: str) -> dict[str, Any]:
    """Put a replica's job in place, with its code and its secret, and start it."""
    request = LocalRequest.from_json(order["request"])
    folder = scheduler.job_folder(request.app_id)
    values = {
        cluster.JOB_FOLDER: str(folder),
        cluster.FIRST_HOST: order["first_host"],
        cluster.PORT: str(order["port"]),
        cluster.PATH: os.environ.get("PATH") or DEFAULT_PATH,
        HOME: str(Path.home()),
    }
    request = cluster.fill(request, values)
    for plan in request.replicas:
        if order["secret"] and not plan.env.keys() & set(VARIABLES):
            plan.env[SECRET_FILE_VARIABLE] = str(folder / "secret")

    def fill(draft: Path) -> None:
        (draft / cluster.BIN).mkdir()
        python = draft / cluster.BIN / "python"
        python.write_text(cluster.python_script(sys.executable, packages))
        python.chmod(0o700)
        if order["secret"]:
            write_secret(draft / "secret", bytes.fromhex(order["secret"]))
        if order["has_code"]:
            with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as tar:
                extract(tar, draft)

    scheduler.start(request, fill)
    return {}


#: Stands for the home folder of the host.
HOME = "<home folder>"


def describe(order: Order, scheduler: LocalScheduler, packages: str) -> dict[str, Any]:
    """Say how a replica is doing."""
    del packages
    found = scheduler.describe(order["id"])
    if found is None:
        return {"replica": None}
    replica = dataclasses.asdict(found.roles_statuses[0].replicas[0])
    return {"replica": {**replica, "state": AppState(replica["state"]).name}}


def log(order: Order, scheduler: LocalScheduler, packages: str) -> None:
    """Write a replica's lines, each behind its time; then a line of JSON that says that this is all."""
    del packages
    times = [None if text is None else datetime.fromtimestamp(text, UTC) for text in (order["since"], order["until"])]
    stream = Stream(order["streams"]) if order["streams"] else None
    query = LogQuery(order["role"], order["number"], order["regex"], times[0], times[1], order["follow"], stream)
    for at, line in scheduler.read_log(order["id"], query):
        print(json.dumps([at, line]), flush=order["follow"])
    print(json.dumps({"over": True}), flush=True)


def end(order: Order, scheduler: LocalScheduler, packages: str) -> dict[str, Any]:
    """End a replica's job: politely, at once, or for good with all that it has left."""
    del packages
    act = {"cancel": scheduler.cancel, "kill": scheduler.kill, "delete": scheduler.delete}[order["how"]]
    act(order["id"])
    return {}
