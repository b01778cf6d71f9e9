"""A standby: a fork of the template that has done what it can beforehand, and waits to become a worker.

Loaded by its path into the fork (see `template.py`), so it imports nothing of ours. It opens the GPU that its worker
will use, and NCCL on it, where the agent says so, reports what that took, and waits. An order may come at any time, or
never.
"""
# This file is run by its path and imports only what every Python program may have loaded anyway.
# ruff: noqa: PTH123

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

REQUEST_BYTES_MAX = 4096
#: What a program can no longer change once its GPU is open.
CUDA_VARIABLES = frozenset(
    {
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_DEVICE_ORDER",
        "CUDA_MODULE_LOADING",
        "CUDA_VISIBLE_DEVICES",
    }
)
#: What it can no longer change once it has made a communicator; those that programs set most.
NCCL_VARIABLES = frozenset(
    f"NCCL_{name}"
    for name in ("DEBUG", "SOCKET_IFNAME", "IB_DISABLE", "IB_HCA", "P2P_DISABLE", "SHM_DISABLE", "NET", "ALGO", "PROTO")
)


def stand(seat: int, tie: Callable[[], None], imports: Any) -> tuple[dict[str, Any], list[int]]:
    """Prepare, report, wait; returns what this process is to become, and its streams."""
    control = socket.socket(fileno=seat)
    data = control.recv(REQUEST_BYTES_MAX)
    if not data:
        os._exit(1)  # the agent no longer wants it
    tie()
    wanted = json.loads(data)
    control.send(json.dumps(_prepare(wanted, imports)).encode())
    data, fds, _, _ = socket.recv_fds(control, REQUEST_BYTES_MAX, 4)
    if not data:
        os._exit(0)
    control.close()
    with open(fds[0], "rb") as file:
        order: dict[str, Any] = json.load(file)
    return order, fds[1:]


def _prepare(wanted: dict[str, Any], imports: Any) -> dict[str, Any]:
    """Open a GPU where there is one standby for each that is used; say what it took."""
    began = time.monotonic()
    report: dict[str, Any] = {"device": None, "devices": 0, "gpu_bytes": None, "problem": ""}
    torch: Any = sys.modules.get("torch")
    if torch is not None and "gpu" in wanted["may_open"]:
        try:
            used = min(wanted["workers"], torch.cuda.device_count()) if torch.cuda.is_available() else 0
            if 0 < used <= wanted["standbys"]:
                device = wanted["index"] % used
                with_nccl = "nccl" in wanted["may_open"]
                report.update(device=device, devices=used, gpu_bytes=_open(torch, device, with_nccl))
                imports.early |= CUDA_VARIABLES | (NCCL_VARIABLES if with_nccl else frozenset())
        except Exception as error:  # noqa: BLE001 - whatever a driver may raise
            report["problem"] = f"{type(error).__name__}: {error}"
    return {**report, "seconds": time.monotonic() - began}


def _open(torch: Any, device: int, with_nccl: bool) -> int | None:
    """Make this process's context on a GPU; returns the memory on it that this took, where that can be told."""
    before = _used(torch, device)
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        load_kernels(torch, with_nccl=with_nccl)
    after = _used(torch, device)
    return None if before is None or after is None else max(0, after - before)


def load_kernels(torch: Any, *, with_nccl: bool) -> None:
    """Do a small step as most programs do them, on the present GPU: what takes long is loading kernels the first time.

    No random number is drawn: the program's are those of a new process.
    """
    weight = torch.ones(64, 64, device="cuda", requires_grad=True)
    optimizer = torch.optim.AdamW([weight])
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
            sums = torch.nn.functional.linear(torch.ones(64, 64, device="cuda"), weight)
            loss = torch.nn.functional.gelu(sums).square().mean()
        loss.backward()
        optimizer.step()
    nccl: Any = sys.modules.get("torch.cuda.nccl")
    one = [torch.zeros(1, device="cuda")]
    if with_nccl and nccl is not None and nccl.is_available(one):
        nccl.all_reduce(one)  # over this process alone
    del weight, optimizer, sums, loss, one
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _used(torch: Any, device: int) -> int | None:
    """Return how much of a GPU's memory is in use, asked of the driver: CUDA would open it first."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        name = (uuid if uuid.startswith("GPU-") else f"GPU-{uuid}").encode()
        handle, memory = ctypes.c_void_p(), _Memory()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)):
            return None
        return None if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) else int(memory.used)
    except (OSError, AttributeError):
        return None
