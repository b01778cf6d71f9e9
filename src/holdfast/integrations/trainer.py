"""Hugging Face's Trainer in process: its model, optimizer, schedule, callbacks and logs, in steps that can be undone.

The Trainer keeps everything that it does once: arguments, checkpoints, logs, evaluation. Its inner loop over the
batches of an epoch is replaced by one over the steps of a run, which calls the same methods and callbacks in the same
order: `training_step`, clipping, `on_step_begin`, `on_pre_optimizer_step`. So what a subclass overrides stays in use.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import Trainer

from holdfast.errors import UsageError
from holdfast.integrations.apart import require_apart, take_place
from holdfast.integrations.shared import Plan, join, launched_workers, part_of_step
from holdfast.torch.groups import TIMEOUT_S
from holdfast.torch.state import TorchState

if TYPE_CHECKING:
    from holdfast.checkpoint import Checkpointer, Notices
    from holdfast.torch.run import TorchRun, TorchStep

#: What every worker has for itself in the Trainer's state.
OWN_FIELDS = frozenset({"is_local_process_zero", "is_world_process_zero", "log_history", "stateful_callbacks"})
#: What the Trainer counts outside of its state.
COUNTS = ("_total_loss_scalar", "_globalstep_last_logged", "current_flos")


def survive(
    trainer: Trainer,
    *,
    min_workers: int | None = None,
    workers: int | None = None,
    backend: str = "auto",
    timeout: timedelta | float = TIMEOUT_S,
    checkpoints: Checkpointer | None = None,
    notices: Notices | None = None,
) -> None:
    """Make `trainer.train()` survive the loss of workers: the others continue in their process, or wait for new ones.

    The Trainer's batch is one of `per_device_train_batch_size * gradient_accumulation_steps * workers` samples, for
    any number of workers that are left; `workers` is by default the number that were launched. Fewer than `min_workers`
    wait for replacements: by default they go on. The other options are those of `holdfast.torch.elastic`.
    """
    require_apart()
    _refuse(trainer)
    count = workers if workers is not None else launched_workers()
    options = {
        "min_workers": 1 if min_workers is None else min_workers,
        "backend": backend,
        "timeout": timeout,
        "checkpoints": checkpoints,
        "notices": notices,
    }
    _Survivor(trainer, count, options).install()


def _refuse(trainer: Trainer) -> None:
    """Raise for what cannot survive in process, and say what to do instead."""
    args = trainer.args
    for name, asked in (
        ("fsdp", bool(args.fsdp)),
        ("deepspeed", bool(args.deepspeed)),
        ("auto_find_batch_size", args.auto_find_batch_size),
    ):
        if asked:
            raise UsageError(
                f"survive() cannot undo a step with {name}: leave survive() out, and let the workers restart from "
                "the Trainer's checkpoints"
            )
    if not hasattr(trainer, "_run_epoch"):
        raise UsageError("survive() needs transformers 5 or newer, whose Trainer has a loop that can be replaced")


class _TrainerPart:
    """What the Trainer counts and logs, as a part of the state: it goes to newcomers and into checkpoints."""

    def __init__(self, trainer: Trainer, batch: int) -> None:
        self._trainer = trainer
        self._batch = batch
        #: The log as text, and how many entries it had then: a long log is not written out in every step.
        self._log = (0, "[]")

    def state_dict(self) -> dict[str, Any]:
        """Return everything that is equal on all workers; cheap, as it is called in every step."""
        trainer = self._trainer
        history = trainer.state.log_history
        if self._log[0] != len(history):
            self._log = (len(history), json.dumps(history))
        fields = {
            field.name: getattr(trainer.state, field.name)
            for field in dataclasses.fields(trainer.state)
            if field.name not in OWN_FIELDS
        }
        return {
            "batch": self._batch,
            "fields": json.dumps(fields),
            "log": self._log[1],
            "callbacks": json.dumps([each.state() for each in self._callbacks()]),
            "counts": {name: getattr(trainer, name) for name in COUNTS},
            "loss": trainer._tr_loss,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what another worker, or this one earlier, returned."""
        trainer = self._trainer
        if state["batch"] != self._batch:
            raise UsageError(
                f"the other workers train with {state['batch']} samples in a step, this one with {self._batch}: give "
                "survive() the same number of `workers` everywhere"
            )
        for name, value in json.loads(state["fields"]).items():
            setattr(trainer.state, name, value)
        if state["log"] != self._log[1] or self._log[0] != len(trainer.state.log_history):
            trainer.state.log_history = json.loads(state["log"])
            self._log = (len(trainer.state.log_history), state["log"])
        for callback, known in zip(self._callbacks(), json.loads(state["callbacks"]), strict=True):
            for name, value in known["attributes"].items():
                setattr(callback, name, value)
        for name, value in state["counts"].items():
            setattr(trainer, name, value)
        trainer._tr_loss = state["loss"].to(trainer.args.device, copy=True)

    def _callbacks(self) -> list[Any]:
        from transformers.trainer_callback import ExportableState

        trainer = self._trainer
        return [each for each in trainer.callback_handler.callbacks if isinstance(each, ExportableState)]


class _Shape:
    """Stands for the training data where the Trainer only wants to know how much there is."""

    def __init__(self, loader: Any, length: int) -> None:
        self.loader = loader
        self.dataset = loader.dataset
        self.batch_size = loader.batch_size
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class _Survivor:
    """One Trainer's training: takes the place of a few of its methods."""

    def __init__(self, trainer: Trainer, workers: int, options: dict[str, Any]) -> None:
        self._trainer = trainer
        self._workers = workers
        self._options = options
        self._stack = ExitStack()
        self._run: TorchRun | None = None
        self._state: TorchState | None = None
        self._steps: Iterator[tuple[TorchStep, Any]] = iter(())
        #: A step that was asked for in one epoch and belongs to a later one.
        self._waiting: tuple[TorchStep, Any] | None = None
        self._plan: Plan | None = None

    def install(self) -> None:
        """Replace the Trainer's loop over batches, and what it thinks of other processes."""
        trainer = self._trainer
        self._whole, self._finalize = trainer._inner_training_loop, trainer._finalize_training
        self._get_loader: Callable[[], Any] = trainer.get_train_dataloader
        trainer._inner_training_loop = self.train
        trainer._run_epoch = self.run_epoch
        trainer._finalize_training = self.finalize
        trainer.get_train_dataloader = self.get_train_dataloader
        trainer.get_total_train_batch_size = lambda _: self._batch

    @property
    def _batch(self) -> int:
        """How many samples a step has, over all workers."""
        return int(self._trainer._train_batch_size) * self._accumulated * self._workers

    @property
    def _accumulated(self) -> int:
        return int(self._trainer.args.gradient_accumulation_steps)

    # -- what the Trainer calls ----------------------------------------------------------------------------------------

    def train(self, *args: Any, **options: Any) -> Any:
        """Train as the Trainer does, and leave the run at the end or with the error that ended it."""
        self._run = self._waiting = None
        try:
            with ExitStack() as stack:
                self._stack = stack
                return self._whole(*args, **options)
        finally:
            self._steps = iter(())
        # A run swallows only the order to leave: the others go on, and this worker has no result.
        raise SystemExit(0)

    def get_train_dataloader(self) -> _Shape:
        """Return the Trainer's own loader with the length that it has over all workers."""
        args = self._trainer.args
        seed = args.seed if args.data_seed is None else args.data_seed
        plan = self._plan = Plan(self._get_loader(), self._accumulated * self._workers, seed=seed)
        return _Shape(plan.loader, len(plan) * self._accumulated)

    def run_epoch(self, *, model: torch.nn.Module, epoch: int, **context: Any) -> None:
        """Do the steps of one epoch that are left."""
        trainer = self._trainer
        if self._run is None:
            self._begin(model)
        past = True
        for step, batches in self._steps_of(epoch):
            past = False
            learning_rate, grad_norm = self._do(step, batches, model)
            if step.committed:
                self._after(step, context, model, epoch, learning_rate, grad_norm)
            control = trainer.control
            if control.should_training_stop:
                return
            if control.should_epoch_stop:
                assert self._run is not None
                assert self._run.ledger is not None
                self._run.ledger.end_epoch(epoch)
        if not past:
            handler = trainer.callback_handler
            trainer.control = handler.on_epoch_end(trainer.args, trainer.state, trainer.control)
            self._tell(context, model, epoch, None, None)
        if self._waiting is None:
            trainer.control.should_training_stop = True

    def finalize(self, *args: Any, **options: Any) -> Any:
        """Leave the run once all workers have done their last step, and let the Trainer sum up."""
        self._stack.close()
        state = self._trainer.state
        if self._trainer.args.load_best_model_at_end and state.best_global_step and not state.best_model_checkpoint:
            folder = os.path.join(self._trainer.args.output_dir, f"checkpoint-{state.best_global_step}")  # noqa: PTH118
            state.best_model_checkpoint = folder
        return self._finalize(*args, **options)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _begin(self, model: torch.nn.Module) -> None:
        """Join the run: from here on the workers belong together."""
        trainer = self._trainer
        parts: dict[str, Any] = {
            "model": trainer.accelerator.unwrap_model(model),
            "optimizer": getattr(trainer.optimizer, "optimizer", trainer.optimizer),
            "scheduler": trainer.lr_scheduler,
            "trainer": _TrainerPart(trainer, self._batch),
        }
        if trainer.accelerator.scaler is not None:
            parts["scaler"] = trainer.accelerator.scaler
        self._state = TorchState(seed=trainer.args.seed, **parts)
        self._run = self._stack.enter_context(join(self._state, **self._options))
        assert self._plan is not None
        self._steps = self._plan.steps(
            self._run, steps=trainer.state.max_steps, epochs=None, start=trainer.state.global_step
        )

    def _steps_of(self, epoch: int) -> Iterator[tuple[TorchStep, Any]]:
        """Yield the steps up to the end of an epoch; a newcomer finds that some epochs are over already."""
        while True:
            step, batches = self._waiting or next(self._steps, (None, None))
            self._waiting = None
            if step is None:
                return
            assert batches is not None
            if step.epoch > epoch:
                self._waiting = step, batches
                return
            yield step, batches

    def _do(self, step: TorchStep, batches: list[Any], model: torch.nn.Module) -> tuple[Any, Any]:
        trainer = self._trainer
        args, handler, accelerator = trainer.args, trainer.callback_handler, trainer.accelerator
        assert self._run is not None
        learning_rate = grad_norm = None
        with step:
            take_place(self._run.rank)
            trainer.state.is_world_process_zero = self._run.rank == 0
            trainer.control = handler.on_step_begin(args, trainer.state, trainer.control)
            self._compute(step, batches, model)
            limit = args.max_grad_norm if args.max_grad_norm and args.max_grad_norm > 0 else float("inf")
            grad_norm = accelerator.clip_grad_norm_(model.parameters(), limit)
            trainer.control = handler.on_pre_optimizer_step(args, trainer.state, trainer.control)
            trainer.optimizer.step()
            trainer.control = handler.on_optimizer_step(args, trainer.state, trainer.control)
            learning_rate = trainer._get_learning_rate()
            if not accelerator.optimizer_step_was_skipped and not _waits_for_metrics(trainer.lr_scheduler):
                trainer.lr_scheduler.step()
            model.zero_grad()
        return learning_rate, grad_norm

    def _compute(self, step: TorchStep, batches: list[Any], model: torch.nn.Module) -> None:
        """Compute this worker's share of the gradients, and make them and the loss those of the whole step."""
        trainer = self._trainer
        device = trainer.args.device
        assert self._run is not None
        share = part_of_step(self._run, step)
        batches, items = trainer.get_batch_samples(iter(batches), len(batches), device)
        items = self._share_of_items(step, items, share)
        trainer.current_gradient_accumulation_steps = max(len(batches), 1)
        trainer.accelerator.gradient_state._set_sync_gradients(True)
        loss = torch.zeros((), dtype=torch.float64, device=device)
        flos, tokens = 0.0, trainer.state.num_input_tokens_seen
        for index, inputs in enumerate(batches):
            step.seed_micro_batch(index)
            loss += trainer.training_step(model, inputs, items)
            flos += float(trainer.floating_point_ops(inputs))
            trainer._track_num_input_tokens(inputs)
        step.reduce_gradients(model, weight=share)
        sums = torch.tensor([0.0, flos, trainer.state.num_input_tokens_seen - tokens], dtype=torch.float64)
        sums = sums.to(device)
        sums[0] = loss * share
        step.sum(sums)
        total, flos, seen = sums.tolist()
        if trainer.args.logging_nan_inf_filter and not torch.isfinite(sums[0]):
            trainer._tr_loss += trainer._tr_loss / (1 + trainer.state.global_step - trainer._globalstep_last_logged)
        else:
            trainer._tr_loss += total
        trainer.current_flos += flos
        trainer.state.num_input_tokens_seen = tokens + int(seen)

    def _share_of_items(self, step: TorchStep, items: Any, share: float) -> Any:
        """Return this worker's part of the tokens (or labels) of the whole step, by which the loss is divided.

        It is not how many this worker has itself: then its mean would count as much as that of one with more tokens.
        """
        if not self._trainer.args.average_tokens_across_devices:
            return items
        device = self._trainer.args.device
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        if items is not None:
            sums[0], sums[1] = items, 1.0
        step.sum(sums)
        return (sums[0] * share).to(torch.float32) if items is not None and sums[1] else items

    def _after(
        self,
        step: TorchStep,
        context: dict[str, Any],
        model: torch.nn.Module,
        epoch: int,
        learning_rate: Any,
        grad_norm: Any,
    ) -> None:
        """Count the step, and log, save and evaluate where that is due."""
        trainer, state = self._trainer, self._trainer.state
        assert self._plan is not None
        state.global_step = step.number + 1
        state.epoch = epoch + step.portion.stop / self._plan.samples
        trainer.control = trainer.callback_handler.on_step_end(trainer.args, state, trainer.control)
        self._tell(context, model, epoch, learning_rate, grad_norm)

    def _tell(
        self, context: dict[str, Any], model: torch.nn.Module, epoch: int, learning_rate: Any, grad_norm: Any
    ) -> None:
        trainer = self._trainer
        trainer._maybe_log_save_evaluate(
            trainer._tr_loss,
            grad_norm,
            model,
            context.get("trial"),
            epoch,
            context.get("ignore_keys_for_eval"),
            context["start_time"],
            learning_rate=learning_rate,
        )


def _waits_for_metrics(scheduler: Any) -> bool:
    return isinstance(scheduler, ReduceLROnPlateau) or type(scheduler).__name__ == "GreedyLR"
