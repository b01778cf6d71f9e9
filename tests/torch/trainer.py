"""A worker that trains a small model with torch, and meets its fate where it is told to.

Run as a script with one JSON argument. `fates` maps "step moment" to what happens then, once: kill, kill both (the
coordinator too), stop or raise; "raise always" again and again. It tells what it does as JSON lines.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from holdfast.rendezvous.api import RendezvousParameters
from holdfast.torch import TorchRun, TorchState, TorchStep, elastic
from holdfast.train.membership import Membership, worker_settings

SAMPLES = 96


def tell(event: str, **data: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **data}) + "\n")
    sys.stdout.flush()


class Samples(torch.utils.data.Dataset):
    """Points and the class that each belongs to."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(SAMPLES, 12, generator=generator)
        self.labels = (self.inputs[:, :4].sum(1) > 0).long()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.inputs[index], self.labels[index], index


def make_model(options: dict[str, Any]) -> nn.Module:
    torch.manual_seed(options.get("model_seed", 3))
    norm = nn.BatchNorm1d(24) if options.get("norm") else nn.Identity()
    return nn.Sequential(nn.Linear(12, 24), norm, nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 2))


class Trainer:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.mode = options.get("mode", "reduce")
        self.fates = dict(options.get("fates", {}))
        size = options["size"]
        settings = worker_settings(size, is_host=False, **options.get("settings", {}))
        self.membership = Membership(
            RendezvousParameters(
                backend="holdfast", endpoint=options["endpoint"], run_id=options.get("run", "train"), **settings
            )
        )
        self.device = options.get("device", "cpu")
        model = make_model(options).to(self.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.state = TorchState(
            model=model,
            optimizer=optimizer,
            scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40),
            seen=torch.zeros(SAMPLES, dtype=torch.int64),
            rollback=options.get("rollback", "auto"),
            seed=11,
        )
        optimizer.register_step_pre_hook(lambda *_: self.meet("optimizer"))
        self.number = -1
        join = self.membership.join

        def tell_and_join(cause: str | None = None) -> Any:
            tell("asks", after=self.number)
            return join(cause)

        self.membership.join = tell_and_join  # type: ignore[method-assign]

    def meet(self, moment: str) -> None:
        when = f"{self.number} {moment}"
        fate = self.fates.pop(when, None)
        if fate is None:
            return
        if fate == "raise always":
            self.fates[when] = fate
        tell("fate", fate=fate, number=self.number, moment=moment)
        if fate == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fate == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif fate == "kill both":
            os.kill(int(self.options["server"]), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        elif fate.startswith("raise"):
            raise RuntimeError("a mistake of this worker alone")
        elif fate.startswith("await"):
            while self.membership.newcomers < 1:
                self.membership.wait_broken(0.01)

    def body(self, run: TorchRun, step: TorchStep, data: Any, model: nn.Module) -> None:
        state = self.state
        self.meet("forward")
        state.optimizer.zero_grad()
        self.mark(run, step)
        if self.mode == "total":
            for micro in data:
                self.loss(model, micro).backward()
                step.add_gradients(model)
            self.meet("reduce")
            step.total_gradients(model)
        else:
            if data is not None:
                self.loss(model, data).backward()
            self.meet("reduce")
            if self.mode == "reduce":
                step.reduce_gradients(model)
        state.optimizer.step()
        self.meet("after")
        if self.options.get("talk"):
            dist.all_reduce(torch.ones(4))
        state.scheduler.step()

    def loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        inputs, labels, _ = data
        return nn.functional.cross_entropy(model(inputs.to(self.device)), labels.to(self.device))

    def mark(self, run: TorchRun, step: TorchStep) -> None:
        """Count every sample of the step, on any worker."""
        assert run.ledger is not None
        portion = step.portion
        samples = run.ledger.samples(portion.epoch, portion.start, portion.stop)
        self.state.seen[list(samples)] += 1

    def run(self) -> None:
        options = self.options
        micro = {"micro_batch": options["micro_batch"]} if "micro_batch" in options else {}
        backend = options.get("backend", "gloo")
        with elastic(self.state, backend=backend, membership=self.membership) as run:
            model = run.ddp(self.state.model) if self.mode == "ddp" else self.state.model
            source = run.batches(
                Samples(),
                options.get("batch", 24),
                epochs=options.get("epochs", 5),
                num_workers=options.get("loaders", 0),
                **micro,
            )
            for step, data in source:
                self.number = step.number
                tell("begin", number=step.number, rank=run.rank, world=run.world_size, round=run.round)
                with step:
                    self.body(run, step, data, model)
                if run.progress > step.number:
                    tell("step", number=step.number, rank=run.rank, world=run.world_size)
        tell("done", digest=digest(self.state), seen=self.state.seen.tolist(), weights=weights(self.state))


def weights(state: TorchState) -> list[float]:
    return [float(value) for parameter in state.model.parameters() for value in parameter.detach().reshape(-1)[:5]]


def digest(state: TorchState) -> str:
    """Every bit of the model and of the optimizer."""
    found = hashlib.sha256()
    for value in state.model.state_dict().values():
        found.update(value.cpu().numpy().tobytes())
    for values in state.optimizer.state_dict()["state"].values():
        for value in values.values():
            found.update(value.cpu().numpy().tobytes())
    found.update(repr(state.scheduler.state_dict()).encode())
    return found.hexdigest()


if __name__ == "__main__":
    torch.set_num_threads(1)
    Trainer(json.loads(sys.argv[1])).run()
