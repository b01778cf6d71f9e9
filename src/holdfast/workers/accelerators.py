"""How many workers a node can hold: GPUs are counted without importing torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

NVIDIA_SMI_TIMEOUT_S = 10.0
#: The most workers of one node; whoever asks for more has mistyped.
WORKERS_MAX = 4096


def gpu_count(env: Mapping[str, str] | None = None, root: Path = Path("/")) -> int:
    """Count the GPUs that workers started with this environment would see: NVIDIA's, on Linux.

    `CUDA_VISIBLE_DEVICES` decides where it is set; then the driver's own list, the device files, and
    nvidia-smi.
    """
    present = len(gpu_addresses(root)) or _device_files(root) or _ask_nvidia_smi(root)
    visible = (os.environ if env is None else env).get("CUDA_VISIBLE_DEVICES")
    return present if visible is None else len(visible_devices(visible, present))


def visible_devices(text: str, present: int) -> list[str]:
    """Read `CUDA_VISIBLE_DEVICES` as CUDA does: up to the first number that does not exist."""
    devices: list[str] = []
    for item in (part.strip() for part in text.split(",")):
        if not item or (item.lstrip("-").isdecimal() and not 0 <= int(item) < present):
            break
        devices.append(item)
    return devices if present else []


def gpu_addresses(root: Path = Path("/")) -> list[str]:
    """Return the PCI addresses of the GPUs that the NVIDIA driver has, in its order."""
    folder = root / "proc/driver/nvidia/gpus"
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _device_files(root: Path) -> int:
    folder = root / "dev"
    return sum(1 for entry in folder.iterdir() if re.fullmatch(r"nvidia\d+", entry.name)) if folder.is_dir() else 0


def _ask_nvidia_smi(root: Path) -> int:
    program = shutil.which("nvidia-smi")
    if program is None or root != Path("/"):
        return 0
    try:
        result = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(1 for line in result.stdout.splitlines() if line.startswith("GPU "))


def local_world_size(text: str, env: Mapping[str, str] | None = None) -> int:
    """Read `--nproc-per-node`: a number, `cpu`, `gpu`, or `auto` (GPUs if there are any, else CPUs)."""
    if text.isdecimal() and int(text) > 0:
        if int(text) > WORKERS_MAX:
            raise UsageError(f"--nproc-per-node {text!r} is more than {WORKERS_MAX}, the most that one node can have")
        return int(text)
    if text not in ("auto", "cpu", "gpu"):
        raise UsageError(f"--nproc-per-node {text!r} is neither a number above 0 nor one of auto, cpu, gpu")
    gpus = gpu_count(env) if text != "cpu" else 0
    if text == "gpu" and not gpus:
        raise UsageError("--nproc-per-node gpu: no NVIDIA GPU is visible here (CUDA_VISIBLE_DEVICES may hide them)")
    return gpus or os.cpu_count() or 1
