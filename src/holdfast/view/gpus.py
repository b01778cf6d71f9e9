"""What GPUs do for processes of this host, by `nvidia-smi` where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

#: How long nvidia-smi may take; a driver in trouble takes forever.
TIMEOUT_S = 5.0
_GPUS = "--query-gpu=uuid,index,utilization.gpu"
_PROCESSES = "--query-compute-apps=pid,gpu_uuid,used_memory"
_FORMAT = "--format=csv,noheader,nounits"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What one process uses of its GPUs: how busy they are, in percent, and the bytes that it holds there."""

    busy_percent: float
    memory_bytes: int


def read_gpus() -> dict[int, GpuUse]:
    """Return the use of GPUs by process id; empty without nvidia-smi, or where it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    try:
        gpus, processes = (
            subprocess.run(
                [program, query, _FORMAT], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
            ).stdout
            for query in (_GPUS, _PROCESSES)
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return parse(gpus.splitlines(), processes.splitlines())


def parse(gpus: Iterable[str], processes: Iterable[str]) -> dict[int, GpuUse]:
    """Read nvidia-smi's lines; those that are not of the known form are left out."""
    busy: dict[str, float] = {}
    for line in gpus:
        uuid, _, percent = (cell.strip() for cell in (*line.split(","), "", "")[:3])
        if percent.replace(".", "", 1).isdecimal():
            busy[uuid] = float(percent)
    found: dict[int, GpuUse] = {}
    for line in processes:
        pid, uuid, mebibytes = (cell.strip() for cell in (*line.split(","), "", "")[:3])
        if pid.isdecimal():
            before = found.get(int(pid), GpuUse(0.0, 0))
            held = int(mebibytes) << 20 if mebibytes.isdecimal() else 0
            found[int(pid)] = GpuUse(max(before.busy_percent, busy.get(uuid, 0.0)), before.memory_bytes + held)
    return found
