"""Faults inside a worker: `at(moment, step, rank)` does what the schedule says, once for the whole job."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from holdfast.chaos.schedule import BY_WORKER, OF_REPLICAS, REPLICA, Kind, Moment

#: The folder of the run: the schedule lies in it, and every fault that was brought about leaves a mark.
FOLDER_VARIABLE = "HOLDFAST_CHAOS_FOLDER"
SCHEDULE_FILE = "schedule.json"


def mark_of(folder: Path, number: int) -> Path:
    """Return the file that says that a fault was brought about, by which process and when."""
    return folder / f"fault-{number}.json"


def at(moment: Moment, step: int, rank: int) -> None:
    """Bring about the faults that are due here."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return
    for fault in _faults(folder):
        if fault["moment"] == moment and fault["rank"] == rank and fault["step"] <= step:
            _strike(fault, Path(folder), step)


def note_pid(rank: int, world_size: int) -> None:
    """Let other workers find this one, and know how many there are."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        _place[:] = [rank, world_size]
        draft = Path(folder) / f"worker-{rank}.{os.getpid()}"
        draft.write_text(str(os.getpid()))
        draft.rename(Path(folder) / f"worker-{rank}.pid")


def _kill_mates(kind: Kind, folder: Path) -> None:
    """Kill this worker and those that the fault is about; one that has just died already is left alone."""
    rank, world_size = _place
    first = rank - rank % REPLICA
    mates = range(first, first + REPLICA) if kind is Kind.REPLICA_KILL else [(rank + REPLICA) % world_size]
    for mate in mates:
        with contextlib.suppress(OSError, ValueError):
            if mate != rank:
                os.kill(int((folder / f"worker-{mate}.pid").read_text()), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


#: The rank and the world size with which this worker was started.
_place = [0, 1]

_cache: dict[str, list[dict[str, Any]]] = {}


def _faults(folder: str) -> list[dict[str, Any]]:
    if folder not in _cache:
        _cache[folder] = json.loads((Path(folder) / SCHEDULE_FILE).read_text())["faults"]
    return _cache[folder]


def _strike(fault: dict[str, Any], folder: Path, step: int) -> None:
    what = {"pid": os.getpid(), "agent": os.getppid(), "step": step, "time": time.time(), **fault}
    path = mark_of(folder, fault["number"])
    try:
        with path.open("x") as mark:
            json.dump(what, mark)
    except FileExistsError:
        return
    kind = Kind(fault["kind"])
    if kind not in BY_WORKER:
        return  # the campaign sees the mark and acts
    if kind is Kind.SIGKILL:
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind in OF_REPLICAS:
        _kill_mates(kind, folder)
    elif kind is Kind.SIGSTOP:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind is Kind.EXIT:
        os._exit(3)
    elif kind is Kind.HANG:
        while True:
            time.sleep(3600)
    else:
        raise ValueError("a failure for the sake of it")
