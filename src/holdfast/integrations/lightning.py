"""Lightning in process: `Trainer(strategy=HoldfastStrategy())`.

    from holdfast.integrations.lightning import HoldfastStrategy

    trainer = lightning.Trainer(strategy=HoldfastStrategy(), max_epochs=3)
    trainer.fit(module, loader)

Lightning runs its loops as on one device. Its training data comes from a run, a step of all workers for each batch that
it asks for. Forward, backward and the optimizer's step of one batch are one call of a strategy, and it returns once the
step counts: if a worker is lost, it is undone and done again in there, with the samples that are then this worker's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from holdfast.errors import StopTrainingError, UsageError
from holdfast.integrations.shared import Plan, join, launched_workers, part_of_step
from holdfast.torch.groups import TIMEOUT_S
from holdfast.torch.state import TorchState

if TYPE_CHECKING:
    from holdfast.checkpoint import Checkpointer, Notices
    from holdfast.torch.run import TorchRun, TorchStep


class HoldfastStrategy(SingleDeviceStrategy):  # type: ignore[misc, unused-ignore]
    """Lets Lightning's training survive the loss of workers: the others continue in their process, or wait.

    A step has `batch_size * accumulate_grad_batches * workers` samples, for any number of workers that are left;
    `workers` is by default the number that were launched. Fewer than `min_workers` wait for replacements. `seed` sets
    the order of the samples. The other options are those of `holdfast.torch.elastic`.
    """

    strategy_name = "holdfast"

    def __init__(
        self,
        *,
        min_workers: int = 1,
        workers: int | None = None,
        seed: int = 0,
        backend: str = "auto",
        timeout: timedelta | float = TIMEOUT_S,
        checkpoints: Checkpointer | None = None,
        notices: Notices | None = None,
        **options: Any,
    ) -> None:
        options.setdefault("device", _own_device())
        super().__init__(**options)
        self.global_rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._workers = launched_workers() if workers is None else workers
        self._seed = seed
        self._join: dict[str, Any] = {
            "min_workers": min_workers,
            "backend": backend,
            "timeout": timeout,
            "checkpoints": checkpoints,
            "notices": notices,
        }
        self._feed: _Feed | None = None
        self._run: TorchRun | None = None
        #: The step that this worker is inside of, and gradients of its micro-batches before the last.
        self._step: TorchStep | None = None
        self._earlier: list[torch.Tensor | None] = []
        self._corrections: list[Callable[[], None]] = []

    # -- who is who ----------------------------------------------------------------------------------------------------

    @property
    def is_global_zero(self) -> bool:
        """Whether this worker is rank 0 of the present round, which logs and saves."""
        return bool(self.global_rank == 0)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Sum or average over all workers inside of a training step; elsewhere a worker's own value stands.

        That is so too where workers have different numbers of micro-batches, and so different numbers of values.
        """
        del group
        run, step = self._run, self._step
        if run is None or step is None or run.ledger is None:
            return tensor
        if run.ledger.micro_batches_of(step.portion, run.world_size) % run.world_size:
            return tensor
        total = torch.as_tensor(tensor, device=self.root_device).detach().clone()
        if not total.is_floating_point():
            total = total.to(torch.float32)
        step.sum(total)
        return total / run.world_size if str(reduce_op).lower() in ("mean", "avg") else total

    # -- the data ------------------------------------------------------------------------------------------------------

    def process_dataloader(self, dataloader: Any) -> Any:
        """Let the training's batches come from the run; what is evaluated is left alone."""
        trainer = self._trainer
        if not trainer.training and self._feed is not None:
            return dataloader
        if trainer.state.fn != "fit" or not (trainer.training or trainer.state.stage is None):
            return dataloader
        if self._feed is not None:
            raise UsageError("HoldfastStrategy takes one training data loader, and takes it once")
        batches = int(trainer.accumulate_grad_batches) * self._workers
        trainer.accumulate_grad_batches = 1  # the batches of a step are the strategy's own
        self._feed = _Feed(self, Plan(dataloader, batches, seed=self._seed))
        return self._feed

    def barrier(self, name: str | None = None, *_: Any, **__: Any) -> None:
        """Join the run before the training's loop begins; workers wait for each other nowhere else."""
        trainer = self._trainer
        if name != "run-stage" or not trainer.training or self._run is not None:
            return
        if not trainer.lightning_module.automatic_optimization:
            raise UsageError("HoldfastStrategy needs automatic optimization: it undoes and repeats whole steps")
        trainer.fit_loop.setup_data()
        if self._feed is None:
            raise UsageError("HoldfastStrategy found no training data: give trainer.fit a data loader")
        self._begin(self._feed)

    def _begin(self, feed: _Feed) -> None:
        trainer = self._trainer
        callbacks = _CallbacksPart(trainer)
        parts: dict[str, Any] = {"model": self.lightning_module, "callbacks": callbacks}
        parts |= {f"optimizer{index}": each for index, each in enumerate(self.optimizers)}
        parts |= {f"scheduler{index}": each.scheduler for index, each in enumerate(self.lr_scheduler_configs)}
        if getattr(self.precision_plugin, "scaler", None) is not None:
            parts["scaler"] = self.precision_plugin.scaler
        state = TorchState(seed=self._seed, **parts)
        start = int(trainer.global_step)
        self._run = join(state, **self._join)
        steps = trainer.max_steps if trainer.max_steps != -1 else None
        epochs = trainer.fit_loop.max_epochs if trainer.fit_loop.max_epochs not in (-1, None) else None
        feed.begin(self._run, steps=steps, epochs=epochs, start=start)
        self._take_place()
        if self._run.progress != start:
            _move_loops(trainer, self._run, feed.plan)
        callbacks.is_new = False

    # -- steps ---------------------------------------------------------------------------------------------------------

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **options: Any) -> Any:
        """Do one step of all workers, as often as it takes until it counts."""
        feed, run = self._feed, self._run
        if feed is None or run is None or feed.step is None:
            return super().optimizer_step(optimizer, closure, model, **options)
        number, result = feed.step.number, None
        while feed.step is not None and feed.step.number == number:
            step = feed.step
            try:
                with step:
                    self._step = step
                    result = closure()
                    self._add_earlier()
                    step.reduce_gradients(self.lightning_module, weight=part_of_step(run, step))
                    # The gradients are complete now, so a closure that computes nothing is left for the optimizer.
                    super().optimizer_step(optimizer, lambda: result, model, **options)  # noqa: B023
            except StopTrainingError as order:
                self._leave(order)
                raise SystemExit(0) from order
            finally:
                self._step = None
            if step.committed:
                feed.step = None
                return result
            feed.advance()
            self._take_place()
        # Another worker had come to the end of this step, and this one has taken over its state.
        self._remember_schedule()
        return result

    def training_step(self, *args: Any, **options: Any) -> Any:
        """Compute the loss of this worker's micro-batches: one, or more while workers are missing."""
        feed = self._feed
        if self._step is None or feed is None:
            return super().training_step(*args, **options)
        first, rest = args[0], args[1:]
        batches = feed.batches(first)
        self._earlier = []
        for index, batch in enumerate(batches[:-1]):
            if index == 0:
                self.optimizers[0].zero_grad(set_to_none=True)
            self._step.seed_micro_batch(index)
            output = super().training_step(batch, *rest, **options)
            loss = output if isinstance(output, torch.Tensor) else output["loss"]
            self.backward(loss, self.optimizers[0])
        if len(batches) > 1:
            self._earlier = [parameter.grad for parameter in self.lightning_module.parameters()]
            for parameter in self.lightning_module.parameters():
                parameter.grad = None
            self._step.seed_micro_batch(len(batches) - 1)
        return super().training_step(batches[-1], *rest, **options)

    def backward(self, closure_loss: Any, optimizer: Any, *args: Any, **options: Any) -> Any:
        """Let every micro-batch count the same."""
        if self._step is not None and len(self._step.micro_batches) > 1:
            closure_loss = closure_loss / len(self._step.micro_batches)
        return super().backward(closure_loss, optimizer, *args, **options)

    def prepare(self, batch: Any) -> Any:
        """Do with a batch what Lightning's loop does before it hands it to the module."""
        batch = self.precision_plugin.convert_input(batch)
        batch = self.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
        return self.batch_to_device(batch, dataloader_idx=0)

    def before_next(self) -> None:
        """Take note that Lightning is done with a step."""
        corrections, self._corrections = self._corrections, []
        for each in corrections:
            each()

    # -- the end -------------------------------------------------------------------------------------------------------

    def on_train_end(self) -> None:
        """Leave the run once all workers have done their last step."""
        self._leave(None)

    def on_exception(self, exception: BaseException) -> None:
        """Leave the run with the error that ended the training."""
        self._leave(exception)

    def teardown(self) -> None:
        """Leave the run if nothing else did, and release everything."""
        self._leave(None)
        self._feed = None
        super().teardown()

    def _leave(self, error: BaseException | None) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.__exit__(None if error is None else type(error), error, None)

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _trainer(self) -> Any:
        return self.lightning_module.trainer

    def _take_place(self) -> None:
        assert self._run is not None
        self.global_rank = rank_zero_only.rank = self._run.rank

    def _add_earlier(self) -> None:
        if not self._earlier:
            return
        for parameter, gradient in zip(self.lightning_module.parameters(), self._earlier, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self._earlier = []

    def _remember_schedule(self) -> None:
        """Lightning is about to advance the schedules for a step that they have had already; put them back after."""
        for config in self.lr_scheduler_configs:
            scheduler, known = config.scheduler, dict(config.scheduler.state_dict())
            rates = [dict(group) for group in self.optimizers[0].param_groups]

            def put_back(scheduler: Any = scheduler, known: Any = known, rates: Any = rates) -> None:
                scheduler.load_state_dict(known)
                for group, values in zip(self.optimizers[0].param_groups, rates, strict=True):
                    group.update({key: value for key, value in values.items() if key != "params"})

            self._corrections.append(put_back)


class _Feed:
    """What Lightning's loop takes for the training's data loader: one item for each step that is left in an epoch."""

    def __init__(self, strategy: HoldfastStrategy, plan: Plan) -> None:
        self.plan = plan
        self.dataset = plan.dataset
        self.batch_size = plan.micro_batch
        self.step: TorchStep | None = None
        self._strategy = strategy
        self._data: list[Any] = []
        self._first: Any = None
        self._steps: Iterator[tuple[TorchStep, list[Any]]] = iter(())
        self._run: TorchRun | None = None

    def begin(self, run: TorchRun, *, steps: int | None, epochs: int | None, start: int) -> None:
        """Take the first step: from here on the workers belong together."""
        self._run = run
        self._steps = self.plan.steps(run, steps=steps, epochs=epochs, start=start)
        self.advance()

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        strategy = self._strategy
        strategy.before_next()
        if self.step is None:
            self._close_epoch()
            self.advance()
        if self.step is None:
            raise StopIteration
        self._first = self._data[0] if self._data else self._stand_in()
        return self._first

    def advance(self) -> None:
        """Take the next step, or the same one again if it was undone."""
        self.step, self._data = next(self._steps, (None, []))
        self._first = None

    def batches(self, first: Any) -> list[Any]:
        """Return this worker's micro-batches, ready for the module; Lightning has prepared the first already."""
        if self._first is None:  # a step that is done again has other samples
            return [self._strategy.prepare(batch) for batch in self._data or [self._stand_in()]]
        self._first, others = None, [self._strategy.prepare(batch) for batch in self._data[1:]]
        return [first, *others]

    def _stand_in(self) -> Any:
        assert self.step is not None
        assert self._run is not None
        return self.plan.stand_in(self._run, self.step)

    def _close_epoch(self) -> None:
        """Leave out the rest of an epoch that Lightning has ended early, as with limit_train_batches."""
        assert self._run is not None
        ledger = self._run.ledger
        epoch = self._strategy._trainer.fit_loop.epoch_progress.current.processed
        if ledger is not None and ledger.epoch < epoch and ledger.position:
            ledger.end_epoch(ledger.epoch)


class _CallbacksPart:
    """What Lightning's callbacks know, as a part of the state: a worker that is new takes it over."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.is_new = True

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every callback that has one."""
        found = {each.state_key: each.state_dict() for each in self._trainer.callbacks}
        return {key: state for key, state in found.items() if state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what another worker's callbacks know; those of a worker that went on know it themselves."""
        if not self.is_new:
            return
        for each in self._trainer.callbacks:
            if each.state_key in state:
                each.load_state_dict(state[each.state_key])


def _move_loops(trainer: Any, run: TorchRun, plan: Plan) -> None:
    """Set Lightning's loops to where the run is, as a checkpoint from the middle of an epoch would."""
    ledger = run.ledger
    assert ledger is not None
    epoch, done, step = ledger.epoch, -(-ledger.position // plan.batch), ledger.step
    fit = trainer.fit_loop
    for tracker in (fit.epoch_progress.total, fit.epoch_progress.current):
        tracker.ready = tracker.started = epoch + (done > 0)
        tracker.processed = tracker.completed = epoch
    optimizer = fit.epoch_loop.automatic_optimization.optim_progress.optimizer
    for progress in (fit.epoch_loop.batch_progress, optimizer.step, optimizer.zero_grad):
        for tracker, count in ((progress.total, step), (progress.current, done)):
            for name in ("ready", "started", "processed", "completed"):
                if hasattr(tracker, name):
                    setattr(tracker, name, count)
    fit.epoch_loop._batches_that_stepped = step
    fit.restarting = done > 0


def _own_device() -> torch.device:
    """Return the GPU of this worker's number on its node, or the CPU where there are none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
