"""One replica of the in-process bench on torchft's side: its gloo or NCCL group, Manager and Optimizer.

Its `DistributedDataParallel` (0.2.0) mostly ends the survivor with an AssertionError when a collective fails at once,
as it does after a kill. So gradients are reduced after the backward pass, each by a call of its own.
"""

from __future__ import annotations

import os
import uuid
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import Manager, Optimizer, ProcessGroupGloo, ProcessGroupNCCL
from work import BATCH, SAMPLES, Log, compute, make, options


def main() -> None:
    told = options()
    log = Log(told["log"])
    device = told.get("device", "cpu")
    os.environ["NCCL_HOSTID"] = f"host-{os.getpid()}"  # replicas that share a GPU say that they are on several hosts
    make_group = ProcessGroupNCCL if device == "cuda" else ProcessGroupGloo
    model, optimizer, inputs, labels = make(device)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=make_group(timeout=timedelta(seconds=told.get("timeout_s", 5))),
        load_state_dict=lambda state: (
            model.load_state_dict(state["model"]),
            optimizer.load_state_dict(state["optim"]),
        ),
        state_dict=lambda: {"model": model.state_dict(), "optim": optimizer.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=told["endpoint"],
        replica_id=f"replica-{uuid.uuid4()}",
    )
    managed = Optimizer(manager, optimizer)
    number = 0
    while True:
        picked = torch.randint(0, SAMPLES, (BATCH,))
        before = manager.current_step()
        managed.zero_grad()
        compute(model, inputs[picked], labels[picked], told["sleep_s"])
        for work in [manager.allreduce(parameter.grad) for parameter in model.parameters()]:
            work.wait()
        managed.step()
        number = manager.current_step()
        if number > before:
            log.step(number, manager.num_participants())


if __name__ == "__main__":
    main()
