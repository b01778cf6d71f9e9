"""The state of a training with torch: modules, optimizers, schedulers, scalers, random numbers, plain values.

Parameters are not copied before a step. They change only inside `optimizer.step()`, so a step that fails earlier has
only buffers and the like to put back. A step that fails inside or after it leaves a state that is no longer
whole; it is then taken from a peer. If that might leave no whole state anywhere, because the workers talk to each
other after an optimizer's step, parameters and optimizer state are copied just before it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch

from holdfast.errors import UsageError
from holdfast.facts import Fact, facts
from holdfast.torch.leaf import Copied, copy_slices, copy_tree, keep_on_device
from holdfast.torch.parts import ModulePart, OptimizerPart, Part, make_part
from holdfast.torch.randomness import seed_step
from holdfast.torch.sharded import from_slices, own_part
from holdfast.train.state import State

Rollback = Literal["auto", "copy", "peer"]


class TorchState(State):
    """Everything that a training with torch changes: `TorchState(model=net, optimizer=optimizer, best=0.0)`.

    Each of them is an attribute. Modules, optimizers, gradient scalers and everything with a `state_dict` (schedulers)
    are recognised by their type; anything else is a plain value.

    `rollback` says how a step that failed after `optimizer.step()` is undone: "copy" copies parameters and optimizer
    state before it, "peer" takes the state from another worker, and "auto" copies only if the workers talk to each
    other after the first optimizer's step, as with two optimizers.

    The random numbers of every step depend on `seed` (by default torch's own), the number of the step and which part of
    it is done, so that they are the same on any worker;
    `rng=False` leaves the generators alone.
    """

    def __init__(self, *, rollback: Rollback = "auto", seed: int | None = None, rng: bool = True, **parts: Any) -> None:
        if rollback not in ("auto", "copy", "peer"):
            raise UsageError(f"rollback is 'auto', 'copy' or 'peer', not {rollback!r}")
        if not parts:
            raise UsageError("a state needs at least one part: TorchState(model=..., optimizer=...)")
        self.__dict__.update(parts)
        self._parts: dict[str, Part] = {name: make_part(name, value, self.__dict__) for name, value in parts.items()}
        self._rng = rng
        self._seed = torch.initial_seed() if seed is None else seed
        self._rollback = rollback
        #: Whether to copy before an optimizer's step; with "auto" that is so until it is known to be needless.
        self._copies = rollback != "peer"
        self._talks = False
        #: Which part of a step this worker is about to do; by default its rank.
        self.part = 0
        self._undo: _Undo | None = None
        #: The copy of the step before, whose memory is used again.
        self._spare: _Undo | None = None
        #: Steps that were begun and not rolled back, less the one that is open.
        self._steps = 0
        self._open = False
        self._stepped = False
        self._operations_then = 0
        #: Counts the collectives of this worker; set by the run.
        self.count_operations: Callable[[], int] | None = None
        #: Waits until they have done their work, and raises if one never will; set by the run.
        self.settle: Callable[[], None] | None = None
        for part in self._optimizers():
            _watch(part.optimizer, self)

    # -- copies ----------------------------------------------------------------------------------------------------

    def sync(self, world_size: int, rank: int) -> None:
        """Take the state of the most advanced worker if this one's is not the same."""
        self.part = rank
        super().sync(world_size, rank)
        for module in self._modules():
            module.look()

    def capture_snapshot(self) -> Any:
        """Return a copy in this host's memory; a step that is open counts as done."""
        return self._capture(copy_tree)

    def capture_to_save(self) -> Any:
        """Return a copy whose sharded tensors can be restored by another number of workers."""
        return self._capture(copy_slices)

    def capture_on_device(self) -> Any:
        """Return what `capture_snapshot` does, but for tensors of a device: they are those of the state itself."""
        return self._capture(keep_on_device)

    def _capture(self, copied: Copied) -> Any:
        return {
            "parts": {name: part.capture(copied) for name, part in self._parts.items()},
            "seed": self._seed,
            "steps": self._steps + self._open,
        }

    def apply_snapshot(self, snapshot: Any) -> None:
        """Take the values of a snapshot, in place: tensors stay the same objects."""
        theirs = from_slices(snapshot["parts"])
        if theirs.keys() != self._parts.keys():
            raise UsageError(f"this state has {', '.join(self._parts)}, but the snapshot {', '.join(theirs)}")
        for name, part in self._parts.items():
            part.apply(theirs[name])
        self._seed, self._steps = snapshot["seed"], snapshot["steps"]
        self._open = self._stepped = False
        self._undo = None
        self._drop_gradients()

    # -- steps as transactions -------------------------------------------------------------------------------------

    def begin(self) -> Any:
        """Keep what a rollback needs: buffers and settings, but no parameters."""
        self._steps += self._open
        self._open, self._stepped = True, False
        self._spare, self._undo = (self._undo or self._spare) if self._copies else None, None
        self.reseed()
        return {name: part.begin() for name, part in self._parts.items()}

    def roll_back(self, mark: Any) -> bool:
        """Undo everything since `begin`; return whether that could be done."""
        self._open = False
        self.look_back()
        undo, self._undo = self._undo, None
        if self._stepped and undo is None:
            self._drop_gradients()
            return False
        if undo is not None:
            undo.restore()
        elif any(part.versions() != mark[part.name] for part in self._modules()):
            return False  # the program changed parameters without an optimizer
        for name, part in self._parts.items():
            part.roll_back(mark[name])
        return True

    def begin_after(self, steps: int) -> None:
        """Draw the random numbers that come after so many steps, which were done before this state was made."""
        self._steps = max(self._steps, steps)

    def reseed(self) -> None:
        """Seed the random numbers of a part of the step."""
        if self._rng:
            seed_step(self._seed, self._steps, self.part)

    def look_back(self) -> None:
        """Learn from a step whether the workers communicate after an optimizer's step."""
        if self._rollback != "auto" or not self._stepped or self.count_operations is None:
            return
        self._talks = self._talks or self.count_operations() > self._operations_then
        if self._talks and not self._copies:
            facts.publish(
                Fact(
                    "rollback_copies",
                    "the workers talk to each other after an optimizer's step, so parameters are copied before each "
                    "one from now on; what can be done before the first optimizer's step saves that",
                )
            )
        self._copies = self._talks

    def before_optimizer_step(self) -> None:
        """Called by every optimizer of this state before it changes anything.

        An optimizer must not run on sums that never arrived: then this raises, and the state is still whole.
        """
        if not self._open:
            return
        if self.settle is not None:
            self.settle()
        if self._stepped:
            return
        self._stepped = True
        if self.count_operations is not None:
            self._operations_then = self.count_operations()
        if self._copies:
            parameters = [parameter for part in self._modules() for parameter in part.parameters]
            self._undo = _Undo(parameters, [part.optimizer for part in self._optimizers()], self._spare)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _modules(self) -> list[ModulePart]:
        return [part for part in self._parts.values() if isinstance(part, ModulePart)]

    def _optimizers(self) -> list[OptimizerPart]:
        return [part for part in self._parts.values() if isinstance(part, OptimizerPart)]

    def _drop_gradients(self) -> None:
        for module in self._modules():
            for parameter in module.parameters:
                parameter.grad = None


class _Undo:
    """A copy of parameters and optimizer state, on the device where they are."""

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        optimizers: list[torch.optim.Optimizer],
        last: _Undo | None = None,
    ) -> None:
        self._states = [
            (optimizer, [(parameter, dict(values)) for parameter, values in optimizer.state.items()])
            for optimizer in optimizers
        ]
        self._tensors: list[torch.Tensor] = list(parameters)
        for _, entries in self._states:
            for _, values in entries:
                self._tensors += [value for value in values.values() if isinstance(value, torch.Tensor)]
        self._tensors = [own_part(tensor) for tensor in self._tensors]
        self._copies: list[torch.Tensor]
        with torch.no_grad():
            if last is not None and _alike(last._copies, self._tensors):
                self._copies = last._copies
                torch._foreach_copy_(self._copies, self._tensors)
            else:
                self._copies = [tensor.clone() for tensor in self._tensors]

    def restore(self) -> None:
        """Put everything back, into the same tensors."""
        with torch.no_grad():
            if self._tensors:
                torch._foreach_copy_(self._tensors, self._copies)
        for optimizer, entries in self._states:
            optimizer.state.clear()
            for parameter, values in entries:
                optimizer.state[parameter] = values


def _alike(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(
        a.shape == b.shape and a.dtype == b.dtype and a.device == b.device for a, b in zip(some, others, strict=True)
    )


def _watch(optimizer: torch.optim.Optimizer, state: TorchState) -> None:
    """Call a state before an optimizer changes anything; the optimizer does not keep the state alive."""
    known = weakref.ref(state)

    def hook(*_: Any) -> None:
        found = known()
        if found is not None:
            found.before_optimizer_step()

    optimizer.register_step_pre_hook(hook)
