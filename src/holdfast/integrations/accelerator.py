"""A drop-in for Accelerate's `Accelerator`, for loops that people write themselves.

The loop stays as it is. What comes out of the prepared data loader are this worker's batches, and a step of all workers
lasts from its first batch until the next step's is asked for. If a worker is lost in a step, the optimizers and
schedules of the others leave it out, as Accelerate does after an overflow, and the loader gives the step's samples
out again, dealt anew to those who are there.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import accelerate
import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader

from holdfast.errors import StopTrainingError, UsageError
from holdfast.integrations.apart import require_apart, take_place
from holdfast.integrations.shared import Plan, join, launched_workers, part_of_step
from holdfast.torch.groups import TIMEOUT_S
from holdfast.torch.state import TorchState
from holdfast.workers.bootstrap import ERROR_FILE_VARIABLE

if TYPE_CHECKING:
    from holdfast.checkpoint import Checkpointer, Notices
    from holdfast.torch.run import TorchRun, TorchStep


class Accelerator(accelerate.Accelerator):  # type: ignore[misc, unused-ignore]
    """An `Accelerator` whose training survives the loss of workers: the others continue, or wait for new ones.

    The first data loader that is prepared is the training's; others are for every worker as a whole. A step has
    `batch_size * gradient_accumulation_steps * workers` samples, for any number of workers that are left; `workers` is
    by default the number that were launched. Fewer than `min_workers` wait for replacements. `seed` sets the order of
    the samples. `checkpoints`, `notices`, `backend` and `timeout` are those of `holdfast.torch.elastic`; everything
    else is Accelerate's.
    """

    def __init__(
        self,
        *args: Any,
        min_workers: int = 1,
        workers: int | None = None,
        seed: int = 0,
        backend: str = "auto",
        timeout: timedelta | float = TIMEOUT_S,
        checkpoints: Checkpointer | None = None,
        notices: Notices | None = None,
        **options: Any,
    ) -> None:
        require_apart()
        super().__init__(*args, **options)
        self._workers = launched_workers() if workers is None else workers
        self._seed = seed
        self._join: dict[str, Any] = {
            "min_workers": min_workers,
            "backend": backend,
            "timeout": timeout,
            "checkpoints": checkpoints,
            "notices": notices,
        }
        self._batches: _Batches | None = None
        #: This worker's part in the training, once it has begun: `run.progress` counts the steps of all lives.
        self.run: TorchRun | None = None

    # -- what a program prepares ---------------------------------------------------------------------------------------

    def prepare_data_loader(self, data_loader: Any, *args: Any, **options: Any) -> Any:
        """Prepare a data loader; the first is the training's."""
        if self._batches is None and isinstance(data_loader, DataLoader):
            plan = Plan(data_loader, self.gradient_accumulation_steps * self._workers, seed=self._seed)
            self._batches = _Batches(self, plan, self.gradient_accumulation_steps)
            return self._batches
        return super().prepare_data_loader(data_loader, *args, **options)

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        """Prepare an optimizer; it leaves out steps that are undone."""
        placed = self.device_placement if device_placement is None else device_placement
        made = _Optimizer(optimizer, device_placement=placed, scaler=self.scaler)
        made.is_undone = lambda: self._batches is not None and self._batches.is_undone
        self._optimizers.append(made)
        return made

    # -- what a loop calls ---------------------------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Compute gradients; with the last batch of a step they become those of all workers."""
        super().backward(loss, **options)
        if self._batches is not None:
            self._batches.complete(self._models)

    @contextlib.contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Add gradients up over the batches of a step; which is the last is known from the step."""
        del models
        yield

    def begin(self) -> TorchRun:
        """Join the run; the training's loader does that with its first batch."""
        parts: dict[str, Any] = {}
        for name, things in (
            ("model", self._models),
            ("scheduler", self._schedulers),
            ("object", self._custom_objects),
        ):
            parts |= {f"{name}{index}": each for index, each in enumerate(things)}
        parts |= {f"optimizer{index}": each.optimizer for index, each in enumerate(self._optimizers)}
        if self.scaler is not None:
            parts["scaler"] = self.scaler
        if not self._models:
            raise UsageError("prepare the model before the first batch: accelerator.prepare(model, optimizer, loader)")
        self.run = join(TorchState(seed=self._seed, **parts), **self._join)
        atexit.register(self._leave_at_exit)
        return self.run

    def end_training(self) -> None:
        """Leave the run once all workers have done their last step."""
        self._leave(None)
        super().end_training()

    def _leave_at_exit(self) -> None:
        """Leave as one that failed where the program did: the others go on without this worker."""
        recorded = os.environ.get(ERROR_FILE_VARIABLE)
        in_step = self._batches is not None and self._batches.is_open
        if in_step or (recorded and Path(recorded).exists()):
            self._leave(RuntimeError("the program ended before its training did, or without end_training()"))
        else:
            self._leave(None)

    def _leave(self, error: BaseException | None) -> None:
        run, self.run = self.run, None
        if run is None:
            return
        if self._batches is not None and error is None:
            self._batches.close()
        run.__exit__(None if error is None else type(error), error, None)


class _Optimizer(AcceleratedOptimizer):  # type: ignore[misc, unused-ignore]
    """An optimizer that leaves out steps that are undone, and does not clear gradients in the middle of one."""

    is_undone: Callable[[], bool]

    def step(self, closure: Any = None) -> None:
        """Change the parameters, once the gradients are those of all workers."""
        if not self.is_undone():
            super().step(closure)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Do nothing: gradients are cleared when a step begins."""

    @property
    def step_was_skipped(self) -> bool:
        """Whether the step was left out, because it was undone or because of an overflow."""
        return bool(self.is_undone() or self._is_overflow)


class _Batches:
    """The training's data loader: this worker's batches of the steps of one epoch after the other."""

    def __init__(self, accelerator: Accelerator, plan: Plan, accumulated: int) -> None:
        self.plan = plan
        self.dataset = plan.dataset
        self.batch_size = plan.micro_batch
        #: Whether the present step is undone and comes again.
        self.is_undone = False
        self._accelerator = accelerator
        self._accumulated = accumulated
        self._steps: Iterator[tuple[TorchStep, list[Any]]] = iter(())
        self._step: TorchStep | None = None
        #: A step that was asked for in one epoch and belongs to a later one.
        self._waiting: tuple[TorchStep, list[Any]] | None = None
        self._epoch = -1
        self._is_last = False

    def __len__(self) -> int:
        return len(self.plan) * self._accumulated

    def __iter__(self) -> Iterator[Any]:
        accelerator = self._accelerator
        self.close()
        if accelerator.run is None:
            self._steps = self.plan.steps(accelerator.begin(), steps=None, epochs=None, start=0)
        self._epoch += 1
        run = accelerator.run
        assert run is not None
        if self._waiting is None and run.ledger is not None and run.ledger.position:
            run.ledger.end_epoch(self._epoch - 1)  # the program left its loop in the middle of an epoch
        while (found := self._next()) is not None:
            step, batches = found
            self._enter(step)
            for index, batch in enumerate(batches or [self.plan.stand_in(run, step)]):
                if self.is_undone:
                    break
                self._is_last = index + 1 >= len(batches)
                accelerator.gradient_state._set_sync_gradients(self._is_last)
                if batches:
                    step.seed_micro_batch(index)
                yield send_to_device(batch, accelerator.device)
            self.close()

    @property
    def is_open(self) -> bool:
        """Whether the program is in the middle of a step."""
        return self._step is not None

    def complete(self, models: list[torch.nn.Module]) -> None:
        """Make the gradients those of all workers, if the step's last batch is done."""
        step, run = self._step, self._accelerator.run
        if step is None or run is None or not self._is_last or self.is_undone:
            return
        try:
            for model in models:
                step.reduce_gradients(model, weight=part_of_step(run, step))
        except Exception as error:  # the step decides whether that is a lost worker or an error of the program
            if not step.__exit__(type(error), error, error.__traceback__):
                raise
            self.is_undone = True

    def close(self) -> None:
        """End the step that is open."""
        step, self._step = self._step, None
        if step is None or self.is_undone:
            return
        try:
            step.__exit__(None, None, None)
        except StopTrainingError as order:
            self._accelerator._leave(order)
            raise SystemExit(0) from order

    def _next(self) -> tuple[TorchStep, list[Any]] | None:
        found = self._waiting or next(self._steps, None)
        self._waiting = None
        if found is not None and found[0].epoch > self._epoch:
            self._waiting = found
            return None
        return found

    def _enter(self, step: TorchStep) -> None:
        accelerator, run = self._accelerator, self._accelerator.run
        assert run is not None
        self._step, self.is_undone = step, False
        step.__enter__()
        take_place(run.rank)
        accelerator.gradient_accumulation_steps = max(len(step.micro_batches), 1)
        for optimizer in accelerator._optimizers:
            optimizer.optimizer.zero_grad(set_to_none=True)
