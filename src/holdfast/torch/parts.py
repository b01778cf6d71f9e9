"""The parts of a torch state: how each is copied, replaced, and undone.

`begin` is called before every step and must be cheap, so no part copies parameters there. They change only
inside `optimizer.step()`; everything else that a step changes (buffers, learning rates, a scaler) is small.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch

from holdfast.errors import UsageError
from holdfast.torch.leaf import Copied, copy_tree
from holdfast.torch.sharded import as_part_of, is_sharded, own_part

#: Buffers of up to this many numbers are copied before every step.
SMALL = 1 << 16


class Part(Protocol):
    """Something that training changes."""

    def capture(self, copied: Copied = copy_tree) -> Any:
        """Return a copy; `copied` says where to, and what becomes of sharded tensors."""

    def apply(self, tree: Any) -> None:
        """Take the values that `capture` returned, here or on another worker; objects stay the same objects."""

    def begin(self) -> Any:
        """Return what `roll_back` needs; parameters are not part of it."""

    def roll_back(self, mark: Any) -> None:
        """Undo all changes since `begin`, except to parameters."""


class ModulePart:
    """A module: its parameters, and its buffers, some of which change with every forward pass."""

    def __init__(self, name: str, module: torch.nn.Module) -> None:
        self.name = name
        self.module = module
        self.parameters: list[torch.nn.Parameter] = []
        #: Where each buffer is found, and a copy of it with the version that was copied.
        self._slots: list[tuple[dict[str, Any], str]] = []
        self._copies: list[tuple[torch.Tensor, int, torch.Tensor] | None] = []
        self.look()

    def look(self) -> None:
        """Find the parameters and buffers again; walking through a module is too slow for every step."""
        self.parameters = list(self.module.parameters())
        self._slots = [(each._buffers, name) for each in self.module.modules() for name in each._buffers]
        self._copies = [None] * len(self._slots)

    def versions(self) -> list[int]:
        """Count the changes of each parameter."""
        return [parameter._version for parameter in self.parameters]

    def capture(self, copied: Copied = copy_tree) -> Any:
        """Return a copy."""
        state = self.module.state_dict()
        hidden = {name: value for name, value in self.module.named_buffers() if name not in state}
        return copied({"state": dict(state), "hidden": hidden})

    def apply(self, tree: Any) -> None:
        """Become what `capture` returned, in place."""
        own_state = self.module.state_dict()
        try:
            if any(map(is_sharded, own_state.values())):
                self._take_parts(own_state, tree["state"])
            else:
                self.module.load_state_dict(tree["state"])
        except (RuntimeError, KeyError) as error:
            raise UsageError(f"the state does not fit this worker's '{self.name}': {error}") from error
        own = dict(self.module.named_buffers())
        with torch.no_grad():
            for name, value in tree["hidden"].items():
                own[name].copy_(value)
        self.look()

    def _take_parts(self, own: dict[str, Any], theirs: dict[str, Any]) -> None:
        if own.keys() != theirs.keys():
            raise KeyError(f"{sorted(own.keys() ^ theirs.keys())} is on one side only")
        with torch.no_grad():
            for name, value in theirs.items():
                if isinstance(value, torch.Tensor):
                    own_part(own[name]).copy_(value)

    def begin(self) -> Any:
        """Copy the buffers that may change; of large ones only those that have changed since they were copied last."""
        copies: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        for index, (home, name) in enumerate(self._slots):
            value, known = home[name], self._copies[index]
            if value is None:
                self._copies[index] = None
            elif known is None or known[0] is not value:
                self._copies[index] = (value, value._version, value.detach().clone())
            # Batch normalisation changes its statistics without counting it.
            elif known[1] != value._version or value.numel() <= SMALL:
                copies.append(known[2])
                values.append(value)
                self._copies[index] = (value, value._version, known[2])
        if copies:
            with torch.no_grad():
                torch._foreach_copy_(copies, values)
        return self.versions()

    def roll_back(self, mark: Any) -> None:
        """Put the buffers back, and drop the gradients."""
        del mark
        with torch.no_grad():
            for (home, name), known in zip(self._slots, self._copies, strict=True):
                if known is None:
                    home[name] = None
                    continue
                value, version, saved = known
                if value._version != version or value.numel() <= SMALL:
                    value.copy_(saved)
                home[name] = value
        # Copying back counts as a change too: the next step makes new copies.
        self._copies = [None] * len(self._slots)
        for parameter in self.parameters:
            parameter.grad = None


class OptimizerPart:
    """An optimizer: its own state changes only inside `step`, the options of its groups also outside of it."""

    def __init__(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        self.name = name
        self.optimizer = optimizer

    def capture(self, copied: Copied = copy_tree) -> Any:
        """Return a copy."""
        return copied(self.optimizer.state_dict())

    def apply(self, tree: Any) -> None:
        """Become what `capture` returned, in place."""
        try:
            if not self._fill(tree):
                self.optimizer.load_state_dict(self._as_shared_out(tree))
                self._fill(tree)
        except (ValueError, KeyError) as error:
            raise UsageError(f"the state does not fit this worker's '{self.name}': {error}") from error

    def _as_shared_out(self, tree: Any) -> Any:
        """Return what `capture` returned with the parts of sharded parameters' state as sharded tensors again."""
        flat = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        state = {
            key: {
                name: as_part_of(value, flat[key]) if _is_like(value, own_part(flat[key])) else value
                for name, value in values.items()
            }
            for key, values in tree["state"].items()
        }
        return {**tree, "state": state}

    def _fill(self, tree: Any) -> bool:
        """Copy into the tensors that are there, bit by bit; return whether all were there."""
        own = self.optimizer.state_dict()["state"]
        theirs = tree["state"]
        if own.keys() != theirs.keys() or any(own[key].keys() != theirs[key].keys() for key in own):
            return False
        flat = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        for key, values in theirs.items():
            mine = self.optimizer.state[flat[key]]
            for name, value in values.items():
                mine[name] = _filled(mine[name], value)
        self._set_groups([{k: v for k, v in group.items() if k != "params"} for group in tree["param_groups"]])
        return True

    def begin(self) -> Any:
        """Note what a rollback needs."""
        return [
            {key: _own(value) for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]

    def roll_back(self, mark: Any) -> None:
        """Undo what happened since `begin`."""
        self._set_groups(mark)

    def _set_groups(self, settings: list[dict[str, Any]]) -> None:
        for group, values in zip(self.optimizer.param_groups, settings, strict=True):
            for key in [key for key in group if key != "params" and key not in values]:
                del group[key]
            for key, value in values.items():
                group[key] = _filled(group.get(key), value)


class ScalerPart:
    """A gradient scaler, read without waiting for the device."""

    def __init__(self, name: str, scaler: Any) -> None:
        self.name = name
        self.scaler = scaler

    def capture(self, copied: Copied = copy_tree) -> Any:
        """Return a copy."""
        return copied(self.scaler.state_dict())

    def apply(self, tree: Any) -> None:
        """Become what `capture` returned, in place."""
        if tree:  # empty if the scaler is switched off
            self.scaler.load_state_dict(tree)
        self._forget()

    def begin(self) -> Any:
        """Note what a rollback needs."""
        tensors = getattr(self.scaler, "_scale", None), getattr(self.scaler, "_growth_tracker", None)
        return [None if tensor is None else tensor.clone() for tensor in tensors]

    def roll_back(self, mark: Any) -> None:
        """Undo what happened since `begin`."""
        self.scaler._scale, self.scaler._growth_tracker = mark
        self._forget()

    def _forget(self) -> None:
        """Forget which optimizers were unscaled in the step that is undone."""
        states = getattr(self.scaler, "_per_optimizer_states", None)
        if states is not None:
            states.clear()


class StatefulPart:
    """Anything with `state_dict` and `load_state_dict`: a scheduler, a data loader with a position."""

    def __init__(self, name: str, thing: Any) -> None:
        self.name = name
        self.thing = thing

    def capture(self, copied: Copied = copy_tree) -> Any:
        """Return a copy."""
        return copied(copy.deepcopy(self.thing.state_dict()))

    def apply(self, tree: Any) -> None:
        """Become what `capture` returned, in place."""
        self.thing.load_state_dict(copy.deepcopy(tree))

    def begin(self) -> Any:
        """Note what a rollback needs."""
        return copy.deepcopy(self.thing.state_dict())

    def roll_back(self, mark: Any) -> None:
        """Undo what happened since `begin`."""
        self.thing.load_state_dict(mark)


class ValuePart:
    """A plain value, a tensor or an array that is an attribute of the state."""

    def __init__(self, name: str, home: dict[str, Any]) -> None:
        self.name = name
        self._home = home

    def capture(self, copied: Copied = copy_tree) -> Any:
        """Return a copy."""
        return copied(_separate(self._home[self.name]))

    def apply(self, tree: Any) -> None:
        """Become what `capture` returned, in place."""
        self._home[self.name] = _filled(self._home[self.name], _separate(tree))

    def begin(self) -> Any:
        """Note what a rollback needs."""
        return copy.deepcopy(self._home[self.name])

    def roll_back(self, mark: Any) -> None:
        """Undo what happened since `begin`."""
        self._home[self.name] = _filled(self._home[self.name], mark)


def make_part(name: str, value: Any, home: dict[str, Any]) -> Part:
    """Return the part for an attribute of a state."""
    if isinstance(value, torch.nn.Module):
        return ModulePart(name, value)
    if isinstance(value, torch.optim.Optimizer):
        return OptimizerPart(name, value)
    if isinstance(value, torch.amp.GradScaler):
        return ScalerPart(name, value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return StatefulPart(name, value)
    return ValuePart(name, home)


def _is_like(value: Any, tensor: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == tensor.shape


def _separate(value: Any) -> Any:
    """Return a copy of anything but a tensor, which is copied anyway where it ends up."""
    return value if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _filled(known: Any, value: Any) -> Any:
    """Return the value; a tensor that fits is filled in place, one that does not goes to the device of the old one."""
    if not isinstance(value, torch.Tensor):
        return value
    if not isinstance(known, torch.Tensor):
        return value.clone()
    if is_sharded(known):
        with torch.no_grad():
            own_part(known).copy_(own_part(value))
        return known
    if known.shape != value.shape or known.dtype != value.dtype:
        return value.to(known.device, copy=True)
    with torch.no_grad():
        return known.copy_(value)
