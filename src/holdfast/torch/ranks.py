"""This process's rank among the workers, and its device; for scripts that any launcher starts.

A process that was not launched by an agent is the only one: rank 0 of 1.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist


def local_rank() -> int:
    """Return this process's number among those of its node."""
    text = os.environ.get("LOCAL_RANK")
    if text is None and dist.is_initialized():
        warnings.warn(
            "there is a process group but no LOCAL_RANK: start the script with a launcher, or set the variable; "
            "it is taken to be 0",
            UserWarning,
            stacklevel=2,
        )
    return int(text or 0)


def rank() -> int:
    """Return this process's number among all of its group; 0 if there is no group."""
    return dist.get_rank() if _is_there() else 0


def world_size() -> int:
    """Return how many processes the group has; 1 if there is no group."""
    return dist.get_world_size() if _is_there() else 1


def is_rank0() -> bool:
    """Whether this is the first process of all."""
    return rank() == 0


def is_local_rank0() -> bool:
    """Whether this is the first process of its node."""
    return local_rank() == 0


def local_device() -> torch.device:
    """Return this process's own GPU if its group (without a group: this machine) uses GPUs; else the CPU."""
    if dist.is_initialized():
        return local_cuda_device() if dist.get_backend() == "nccl" else torch.device("cpu")
    return local_cuda_device() if _has_gpus() else torch.device("cpu")


def local_cuda_device() -> torch.device:
    """Return the GPU of this process's number on its node."""
    return torch.device(f"cuda:{local_rank()}")


def init_pg(backend: str = "auto", **kwargs: Any) -> torch.device:
    """Join the process group of this run and return the device to work on.

    `auto` is nccl if there are GPUs, else gloo. Without a launcher the group is this process alone.
    """
    if backend == "auto":
        backend = "nccl" if _has_gpus() else "gloo"
    if not dist.is_torchelastic_launched():
        warnings.warn(
            "no launcher has started this script, so it is a group of one process: start it with `holdfast launch`",
            UserWarning,
            stacklevel=2,
        )
        kwargs = {"store": torch._C._distributed_c10d.HashStore(), "rank": 0, "world_size": 1, **kwargs}
    dist.init_process_group(backend, **kwargs)
    device = local_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


@contextmanager
def on_rank0_first() -> Iterator[None]:
    """Let the first process of all run the block, then the others."""
    with _first(is_rank0()):
        yield


@contextmanager
def on_local_rank0_first() -> Iterator[None]:
    """Let the first process of each node run the block, then the others."""
    with _first(is_local_rank0()):
        yield


@contextmanager
def _first(is_first: bool) -> Iterator[None]:
    if not is_first:
        _barrier()
    try:
        yield
    finally:
        # Also when the block fails: the others would wait for ever.
        if is_first:
            _barrier()


def _barrier() -> None:
    if _is_there():
        dist.barrier()


def _is_there() -> bool:
    return dist.is_available() and dist.is_initialized()


def _has_gpus() -> bool:
    return torch.cuda.is_available() and torch.cuda.device_count() > 0
