"""The in-process loop for torch: a process group for every round, and steps that know about gradients.

    model, optimizer = ...
    state = holdfast.torch.TorchState(model=model, optimizer=optimizer)
    with holdfast.torch.elastic(state) as run:
        for step, (inputs, labels) in run.batches(dataset, batch=64, epochs=3):
            with step:
                optimizer.zero_grad()
                loss_function(model(inputs), labels).backward()
                step.reduce_gradients(model)
                optimizer.step()

With `model = run.ddp(model)` the gradients are averaged during the backward pass instead.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from holdfast.errors import RoundOverError, UsageError
from holdfast.timer.heartbeat import pause, resume
from holdfast.torch.data import StepLoader
from holdfast.torch.ddp import ElasticDDP
from holdfast.torch.device import is_lost, warm_up
from holdfast.torch.gradients import Reducer, give_gradients, sum_with_ring, take_gradients
from holdfast.torch.groups import TIMEOUT_S, RoundGroups
from holdfast.torch.handover import DeviceCarrier
from holdfast.torch.state import TorchState
from holdfast.train.ledger import MicroBatch, Portion
from holdfast.train.machine import NEWS_WAIT_S
from holdfast.train.membership import Membership, RoundView, from_environ
from holdfast.train.run import Run, Step
from holdfast.train.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from holdfast.checkpoint import Checkpointer, Notices
    from holdfast.torch.replicas import Data, Replica
    from holdfast.train.given import Rounds


class TorchBackend:
    """The parts of a training with torch that live as long as a round: process groups, and modules that use them.

    `groups` is None if there are none: with `backend="ring"` gradients go over the ring.
    """

    def __init__(self, groups: RoundGroups | None, state: State, replica: Replica | None = None) -> None:
        self.groups = groups
        self.replica = replica
        #: How many collectives with other replicas all workers of this one are known to have behind them.
        self._agreed = 0
        self.ring_sums = 0
        self.wrapped: list[ElasticDDP] = []
        self._state = state
        self._view: RoundView | None = None
        self._reducers: weakref.WeakKeyDictionary[torch.nn.Module, Reducer] = weakref.WeakKeyDictionary()
        if isinstance(state, TorchState):
            state.count_operations = self._operations
            state.settle = self._settle_groups if replica is None else self._settle_replica

    def open(self, view: RoundView, membership: Rounds) -> None:
        """Form the process group, and wrap what stands on it."""
        self._view = view
        if self.groups is None:
            return
        self._agreed = 0
        self.groups.form(view, membership)
        try:
            for each in self.wrapped:
                each.wrap()
        except RuntimeError as error:
            if not membership.wait_broken(NEWS_WAIT_S):
                raise
            raise RoundOverError(str(membership.broken)) from error

    def close(self) -> None:
        """Release the process groups, which ends every wait in them."""
        for each in self.wrapped:
            each.unwrap()
        if self.groups is not None:
            for reducer in self._reducers.values() if self.groups.is_nccl else ():
                reducer.forget()
            self.groups.close()

    def settle(self) -> None:
        """Wait until the step's collectives have done their work, and learn from the step what rollback needs."""
        self._settle_groups()
        if isinstance(self._state, TorchState):
            self._state.look_back()

    def is_own(self, error: BaseException) -> bool:
        """Whether this process's GPU has failed, or has no memory left for it."""
        return isinstance(error, torch.cuda.OutOfMemoryError) or is_lost()

    @property
    def broadcast(self) -> Callable[[bytes | None, int], bytes] | None:
        """Sends bytes from one replica's worker to its column; None where the ring does that."""
        return None if self.replica is None or self.groups is None else self.groups.broadcast

    @property
    def carrier(self) -> DeviceCarrier | None:
        """Moves the state over NCCL; None where it travels as bytes."""
        if self.groups is None or not self.groups.is_nccl or self.replica is not None or self._view is None:
            return None
        if not isinstance(self._state, TorchState):
            return None
        return DeviceCarrier(self._state, self.groups.exchange, self._view.rank, self._view.world_size)

    def reducer(self, module: torch.nn.Module) -> Reducer:
        """Return the reducer for the gradients of a module; it is made once."""
        if module not in self._reducers:
            self._reducers[module] = Reducer(module)
        return self._reducers[module]

    def _settle_groups(self) -> None:
        if self.groups is not None:
            self.groups.settle()

    def _settle_replica(self) -> None:
        """Make sure that every worker of this replica has its sums, before any of them changes its parameters."""
        assert self.replica is not None
        assert self.groups is not None
        if self.groups.operations() != self._agreed:
            self.agree(self._settle_groups)

    def agree(self, act: Callable[[], object]) -> None:
        """Do something with the other replicas that must succeed on all workers of this one."""
        assert self.replica is not None
        assert self.groups is not None
        self.replica.agree(act)
        self._agreed = self.groups.operations()

    def _operations(self) -> int:
        return self.ring_sums + (self.groups.operations() if self.groups is not None else 0)


class TorchRun(Run):
    """One worker's part in a training with torch; made by `elastic`.

    Inside `with step:` the default process group of torch is that of the present round.
    """

    def __init__(
        self,
        state: State,
        membership: Rounds,
        groups: RoundGroups | None,
        *,
        replica: Replica | None = None,
        data: Data = "worker",
        **options: Any,
    ) -> None:
        self.backend = TorchBackend(groups, state, replica)
        if replica is not None:
            options.update(decider=replica.decider(membership), shard=(replica.index, replica.size))
        super().__init__(state, membership, backend=self.backend, **options)
        self.replica = replica
        self._data = data
        self.present: TorchStep | None = None

    # -- what programs call --------------------------------------------------------------------------------------------

    def __enter__(self) -> TorchRun:
        return self

    @property
    def share(self) -> tuple[int, int]:
        """Which share of every step's samples this worker has, and how many shares there are."""
        if self.replica is None or self._data == "replica":
            return self.rank, self.world_size
        size = self.replica.size
        return self.rank * size + self.replica.index, self.world_size * size

    @property
    def mesh(self) -> DeviceMesh:
        """The workers of the present round as replicas and parts: dimensions "replicate" and "shard".

        It says who is where. Collectives of a replica go over `Replica.mesh`; those between replicas are the run's.
        """
        from torch.distributed.device_mesh import DeviceMesh

        size, index = (1, 0) if self.replica is None else (self.replica.size, self.replica.index)
        device = "cpu" if self.groups is None or not self.groups.is_nccl else "cuda"
        ranks = torch.arange(self.world_size * size).reshape(self.world_size, size)
        mesh = DeviceMesh(device, ranks, mesh_dim_names=("replicate", "shard"), _init_backend=False)
        # torch takes the place of this worker from the default group, which is that of the replica alone.
        mesh._coordinate_on_dim = (self.rank, index)
        return mesh

    @property
    def groups(self) -> RoundGroups | None:
        """The process groups of the present round; None with `backend="ring"`."""
        return self.backend.groups

    def steps(self, *args: Any, **options: Any) -> Iterator[TorchStep]:
        """Yield the steps that are left, as `Run.steps` does, each with methods for gradients."""
        if isinstance(self.state, TorchState):
            self.state.begin_after(options.get("start", 0))
        return cast("Iterator[TorchStep]", super().steps(*args, **options))

    def batches(
        self,
        dataset: Any,
        batch: int,
        *,
        steps: int | None = None,
        start: int = 0,
        micro_batch: int = 0,
        epochs: int | Literal["auto"] | None = "auto",
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        scale_batch: bool = False,
        **loader: Any,
    ) -> Iterator[tuple[TorchStep, Any]]:
        """Yield every step that is left with the data of this worker's share, loaded by torch's `DataLoader`.

        Arguments that `Run.steps` does not have go to the loader: `num_workers`, `collate_fn`, `pin_memory`. Data is
        one batch or, with micro-batches, a list of them; None if this worker has no sample in the step.
        """
        source = StepLoader(dataset, loader)
        for step in self.steps(
            len(dataset),
            batch,
            steps=steps,
            start=start,
            micro_batch=micro_batch,
            epochs=epochs,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            scale_batch=scale_batch,
        ):
            assert self.ledger is not None
            yield step, source.load(step, self.ledger, *self.share)

    def ddp(self, module: torch.nn.Module, **options: Any) -> ElasticDDP:
        """Return the module with `DistributedDataParallel` around it, which is made anew for every round."""
        if self.replica is not None:
            raise UsageError("DistributedDataParallel holds a whole model: with replicas use fully_shard or your own")
        if self.groups is None:
            raise UsageError(
                "DistributedDataParallel needs a process group: give elastic() a backend other than 'ring'"
            )
        wrapped = ElasticDDP(module, self._weight, options)
        self.backend.wrapped.append(wrapped)
        if self._trainer.has_round:
            wrapped.wrap()
        return wrapped

    def new_group(self, ranks: Sequence[int] | None = None, **options: Any) -> Any:
        """Make a process group of some ranks that ends with the round; for every round anew, by all workers."""
        if self.groups is None or self.replica is not None:
            raise UsageError("groups of a round need its process group: there is none with 'ring', nor with replicas")
        return self.groups.new_group(ranks, **options)

    def make_step(self, portion: Portion) -> Step:
        """Return a step that knows about gradients."""
        if self.replica is not None and len(portion) < self.share[1]:
            raise UsageError(
                f"a step of {len(portion)} samples leaves some of {self.share[1]} workers without any, and a replica "
                "needs all of its own: use drop_last=True, or a larger batch"
            )
        self.present = TorchStep(self, portion)
        return self.present

    def _weight(self) -> float:
        """This worker's share of the samples in the present step, relative to an even share."""
        if self.present is None:
            return 1.0
        return self.present.own_samples * self.world_size / self.present.samples


class TorchStep(Step):
    """One step of all workers together, with methods for gradients and losses of torch."""

    _run: TorchRun

    def __enter__(self) -> TorchStep:
        self._set_part(0)
        super().__enter__()
        return self

    @property
    def own_samples(self) -> int:
        """How many of the step's samples this worker has."""
        return sum(len(micro.indices) for micro in self.micro_batches)

    @property
    def weight(self) -> float:
        """Which part of the step's samples this worker has."""
        return self.own_samples / self.samples

    @property
    def loss_scale(self) -> float:
        """What to multiply this worker's mean loss with, so that `fully_shard`'s plain mean counts every sample alike.

        It is 1 where all workers of a replica have equally many samples.
        """
        replica = self._run.replica
        return 1.0 if replica is None else self.own_samples * replica.size / self._replica_samples()

    def _replica_samples(self) -> int:
        """How many of the step's samples this worker's replica has."""
        run, replica = self._run, self._run.replica
        if replica is None or run.share[1] == run.world_size:
            return self.own_samples
        assert run.ledger is not None
        first, shares = run.rank * replica.size, run.share[1]
        dealt = (run.ledger.deal(self.portion, first + part, shares) for part in range(replica.size))
        return sum(len(micro.indices) for share in dealt for micro in share)

    def reduce_gradients(self, module: torch.nn.Module, *, weight: float | None = None) -> None:
        """Turn every gradient from the mean over this worker's own samples into the mean over all samples of the step.

        `weight` is what this worker's gradients count, by default its part of the samples; those of all workers add up
        to 1. The running statistics of batch normalisation are averaged with them, so that all workers stay equal.
        """
        run = self._run
        if self._busy_s is None:
            self._busy_s = time.monotonic() - self._began
        pause()  # waiting for another worker is not a hang
        backend = run.backend
        if backend.groups is not None:
            reducer, begin_sum = backend.reducer(module), backend.groups.begin_sum
            if run.replica is None:
                reducer.reduce(self.weight if weight is None else weight, begin_sum)
            else:
                part = self._replica_samples() / self.samples if weight is None else weight
                reducer.align()  # here, since a worker that has lost the others of its column would not come to it
                backend.agree(lambda: reducer.reduce(part, begin_sum))
        else:
            backend.ring_sums += 1
            backend.reducer(module).reduce(self.weight if weight is None else weight, sum_with_ring(run.ring))
        resume()

    def add_gradients(self, module: torch.nn.Module) -> None:
        """Take over the gradients of one micro-batch, the next in order, and clear them; see `total_gradients`."""
        done = len(self._parts)
        if done == len(self.micro_batches):
            raise UsageError(f"this worker has {done} micro-batches in this step, and all have been added")
        micro: MicroBatch = self.micro_batches[done]
        self.add(take_gradients(_trained(module), len(micro.indices) / self.samples))
        self.seed_micro_batch(done + 1)

    def seed_micro_batch(self, index: int) -> None:
        """Seed the random numbers for one of this worker's micro-batches, so that they are the same on any worker.

        A step does that for the first, and `add_gradients` for the one that comes next.
        """
        state = self._run.state
        if self._set_part(index) and isinstance(state, TorchState):
            state.reseed()

    def total_gradients(self, module: torch.nn.Module) -> None:
        """Make every gradient the mean over all samples of the step, summed micro-batch by micro-batch in their order.

        This uses the ring, and gives the same bits for any number of workers.
        """
        self._run.backend.ring_sums += 1
        give_gradients(_trained(module), self.total())

    def sum(self, tensor: torch.Tensor) -> None:
        """Make a tensor the sum over all workers, in place; call it before `optimizer.step()`."""
        backend, groups = self._run.backend, self._run.groups
        if groups is None:
            backend.ring_sums += 1
            sum_with_ring(self._run.ring)(tensor)()
        elif backend.replica is None:
            groups.begin_sum(tensor)()
        else:
            torch.distributed.all_reduce(tensor)
            backend.agree(lambda: groups.begin_sum(tensor)())

    def mean(self, value: torch.Tensor | float) -> float:
        """Turn a mean over this worker's own samples, such as its loss, into the mean over all samples of the step.

        Call it before `optimizer.step()`, like everything else that communicates with the other workers.
        """
        import numpy as np

        run, weight = self._run, self.weight
        own = value.detach().item() if isinstance(value, torch.Tensor) else value
        mine = weight * own if weight else 0.0

        def total(number: float) -> float:
            run.backend.ring_sums += 1
            return float(run.ring.all_reduce(np.array([number]))[0])

        if run.replica is None:
            return total(mine)
        if run.share[1] == run.world_size:  # all workers of the replica have the same samples
            mine /= run.replica.size
        return run.replica.sum(mine, total)

    def _set_part(self, index: int) -> bool:
        """Seed the random numbers of one of this worker's micro-batches; return whether there is one."""
        state = self._run.state
        if not isinstance(state, TorchState) or index >= len(self.micro_batches):
            return False
        state.part = self.micro_batches[index].number
        return True


def elastic(
    state: State,
    *,
    backend: str = "auto",
    timeout: timedelta | float = TIMEOUT_S,
    membership: Membership | None = None,
    checkpoints: Checkpointer | None = None,
    notices: Notices | None = None,
    min_workers: int = 1,
    replicas_of: str | int | None = None,
    data: Data = "worker",
) -> TorchRun:
    """Take part in a training with torch that survives the loss of workers; use it as a context manager.

    `backend` is one of `torch.distributed`'s, "ring" for our own, or "auto": NCCL if the state has a module on a GPU,
    else gloo. `timeout` is the longest that a collective may take while no worker is known to be gone. The rest is as
    in `holdfast.elastic`.

    With `replicas_of` ("node", or a number of workers) some workers hold one copy of the model together; see
    `holdfast.torch.replica`. `data` then says whether each worker has samples of its own, as `fully_shard` wants it, or
    each replica, as tensor parallelism does ("replica").
    """
    if replicas_of is not None:
        from holdfast.torch.replicas import ColumnGroup, replica

        its = replica(replicas_of, backend=backend, timeout=timeout)
        rounds = its.rounds(lambda: membership or from_environ(min_workers=min_workers, replica=its.size))
        columns = RoundGroups(its.backend, timeout, ColumnGroup(its.index))
        if checkpoints is not None and checkpoints.gather is None:
            checkpoints.gather = its.gather
        return TorchRun(state, rounds, columns, checkpoints=checkpoints, notices=notices, replica=its, data=data)
    if backend == "auto":
        backend = "nccl" if _on_gpu(state) else "gloo"
    groups = None if backend == "ring" else RoundGroups(backend, timeout)
    if backend == "nccl":
        warm_up()
    made = membership if membership is not None else from_environ(min_workers=min_workers)
    return TorchRun(state, made, groups, checkpoints=checkpoints, notices=notices)


def _on_gpu(state: State) -> bool:
    modules = [value for value in vars(state).values() if isinstance(value, torch.nn.Module)]
    return any(parameter.is_cuda for module in modules for parameter in module.parameters())


def _trained(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
