"""How many workers a node can hold: NVIDIA's GPUs are counted without torch, other accelerators by asking it.

Torch is asked in a process of its own: it takes seconds to import and must not stay in the agent.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import plugins
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

NVIDIA_SMI_TIMEOUT_S = 10.0
TORCH_TIMEOUT_S = 120.0
#: Device files that only a machine with an accelerator other than NVIDIA's has.
OTHER_DEVICES = ("kfd", "dri/renderD*", "accel/accel*", "accel*", "habanalabs*", "davinci[0-9]*", "neuron*")
#: Prints how many devices of a kind torch sees, or nothing if it knows no such kind.
_ASK_TORCH = """
import sys, torch
kind = sys.argv[1]
if kind == "auto":
    found = torch.accelerator if hasattr(torch, "accelerator") else torch.cuda
elif kind == "gpu":
    found = torch.cuda
else:
    known = ("xpu", torch._C._get_privateuse1_backend_name())
    found = getattr(torch, kind, None) if kind in known else None
if found is not None:
    print(found.device_count() if found.is_available() else 0)
elif kind == known[1]:
    print(0)
"""
#: The entry points of packages that torch imports by itself, and the name of its private backend without any of them.
TORCH_BACKENDS, PRIVATE_BACKEND = "torch.backends", "privateuseone"
#: The most workers of one node; a larger number is a typing error.
WORKERS_MAX = 4096


def gpu_count(env: Mapping[str, str] | None = None, root: Path = Path("/")) -> int:
    """Count the GPUs that workers started with this environment would see: NVIDIA's, on Linux.

    `CUDA_VISIBLE_DEVICES` decides if it is set; then the driver's own list, the device files, and
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


def ask_torch(kind: str, env: Mapping[str, str] | None = None) -> int | None:
    """Count the devices of a kind (auto, gpu, xpu, the private backend's name) as torch sees them.

    None if torch knows no such kind, is not installed, or does not answer.
    """
    if find_spec("torch") is None:
        return None
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _ASK_TORCH, kind],
            capture_output=True,
            text=True,
            timeout=TORCH_TIMEOUT_S,
            check=False,
            env=None if env is None else dict(env),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    return int(words[-1]) if words and words[-1].isdecimal() else None


def local_world_size(text: str, env: Mapping[str, str] | None = None, root: Path = Path("/")) -> int:
    """Read `--nproc-per-node`: a number, `cpu`, `gpu`, `xpu`, the name of torch's private backend, or `auto`.

    `auto` counts the accelerators that torch would use, and the CPUs if there are none.
    """
    if text.isdecimal() and int(text) > 0:
        if int(text) > WORKERS_MAX:
            raise UsageError(f"--nproc-per-node {text!r} is more than {WORKERS_MAX}, the most that one node can have")
        return int(text)
    if text == "cpu":
        return _cpus()
    if text in ("auto", "gpu"):
        devices = gpu_count(env) or (ask_torch(text, env) if _has_others(root) else 0) or 0
        if text == "gpu" and not devices:
            raise UsageError("--nproc-per-node gpu: no GPU is visible here (CUDA_VISIBLE_DEVICES may hide them)")
        return devices or _cpus()
    found = ask_torch(text, env) if _may_be_a_device(text) else None
    if found is None and text != "xpu":
        raise UsageError(f"--nproc-per-node {text!r} is neither a number above 0 nor one of auto, cpu, gpu, xpu")
    if not found:
        raise UsageError(f"--nproc-per-node {text}: torch sees no such device here")
    return found


def _may_be_a_device(text: str) -> bool:
    """Whether torch could know such a device: only packages that it loads by itself name its private backend."""
    return text in ("xpu", PRIVATE_BACKEND) or (text.isidentifier() and bool(plugins.every(TORCH_BACKENDS)))


def _has_others(root: Path) -> bool:
    return any(next((root / "dev").glob(pattern), None) is not None for pattern in OTHER_DEVICES)


def _cpus() -> int:
    """Count the CPUs that this process may use, as torch does."""
    return len(os.sched_getaffinity(0)) or 1
