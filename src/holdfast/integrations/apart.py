"""Lets Accelerate believe that a worker is alone: its processes belong to Holdfast's rounds, which come and go.

Accelerate forms a process group as soon as `TrainingArguments` or an `Accelerator` are made, for as long as the process
lives. A worker that replaces a dead one would wait there for others that never come. So under `holdfast launch` this
module, which must be imported before, keeps Accelerate from it: there is one process, whose index is its rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, PartialState

from holdfast.errors import UsageError
from holdfast.torch.randomness import cuda_in_use
from holdfast.workers.plan import MEMBER_FILE_VARIABLE

#: By these Accelerate learns that there are other processes.
SIZE_VARIABLES = ("LOCAL_RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def stay_apart() -> None:
    """Keep Accelerate from forming a process group in a worker of Holdfast; elsewhere this does nothing."""
    if MEMBER_FILE_VARIABLE not in os.environ or getattr(PartialState, "_holdfast", False):
        return
    begin = PartialState.__init__

    def begin_apart(self: Any, cpu: bool = False, **options: Any) -> None:
        was_there = bool(PartialState._shared_state)
        options.pop("backend", None)
        with _hidden():
            begin(self, cpu, **options)
        if not was_there:
            self.process_index = int(os.environ.get("RANK", "0"))
            self.local_process_index = int(os.environ.get("LOCAL_RANK", "0"))

    PartialState.__init__ = begin_apart
    PartialState._holdfast = True
    _see_one_gpu()


def require_apart() -> None:
    """Raise unless Accelerate has been kept from forming a process group."""
    if dist.is_initialized():
        raise UsageError(
            "there is a process group already: import holdfast.integrations.accelerate before TrainingArguments or an "
            "Accelerator are made, and leave init_process_group to Holdfast"
        )


def take_place(rank: int) -> None:
    """Tell Accelerate this worker's rank in the present round: rank 0 is its main process, which logs and saves."""
    for each in (PartialState, AcceleratorState):
        if "process_index" in each._shared_state:
            each._shared_state["process_index"] = rank


@contextmanager
def _hidden() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in SIZE_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)


def _see_one_gpu() -> None:
    """Leave this worker only the GPU of its number on the node: a process that believes to be alone uses the first."""
    if cuda_in_use():
        return
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]
    if len(seen) > 1 and local_rank < len(seen):
        os.environ["CUDA_VISIBLE_DEVICES"] = seen[local_rank]
