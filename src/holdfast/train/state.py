"""State: everything that training changes, and how it is rolled back, copied to a newcomer and saved."""

from __future__ import annotations

import copy
from typing import IO, TYPE_CHECKING, Any

from holdfast.checkpoint.layout import pack, unpack

if TYPE_CHECKING:
    import numpy as np


class State:
    """Everything that a worker needs to continue training: extend it for a state of your own.

    `capture_snapshot` and `apply_snapshot` are enough for everything else here to work: rollback, the transfer to
    newcomers, and checkpoints. A snapshot is a tree of dicts, lists, tuples, plain values and arrays that shares no
    memory with the state.
    """

    def sync(self, world_size: int, rank: int) -> None:
        """Make the state equal on all workers; called by all of them together when a round begins.

        By default the state of the most advanced worker is taken. Rebuild here what depends on the number of workers.
        """
        from holdfast.train.trainer import current

        del world_size, rank
        trainer = current()
        if trainer is not None:
            trainer.share_state()

    def capture_snapshot(self) -> Any:
        """Return a copy of the state, or None: then a failed step cannot be rolled back."""
        return None

    def capture_to_save(self) -> Any:
        """Return what a checkpoint keeps: by default a snapshot. It is written at once, so it may share memory."""
        return self.capture_snapshot()

    def apply_snapshot(self, snapshot: Any) -> None:
        """Take the values of a snapshot; it may come from another worker."""
        raise NotImplementedError(f"{type(self).__qualname__} captures no snapshots, so there is none to apply")

    def save(self, stream: IO[bytes]) -> None:
        """Write the state; by default its snapshot, in the layout of checkpoints."""
        for piece in pack(self.capture_snapshot()).pieces():
            stream.write(piece)

    def load(self, stream: IO[bytes]) -> None:
        """Read what `save` wrote."""
        self.apply_snapshot(unpack(stream.read()))

    def should_save_checkpoint(self, rank: int) -> bool:
        """Return whether now is the time to save a checkpoint; must be the same on all workers."""
        del rank
        return False

    # -- steps as transactions -----------------------------------------------------------------------------------

    def begin(self) -> Any:
        """Return what `roll_back` needs to undo the step; called before every step, so it must be cheap."""
        return self.capture_snapshot()

    def roll_back(self, mark: Any) -> bool:
        """Undo everything since `begin`; return whether that could be done. If not, a peer's state is taken."""
        if mark is None:
            return False
        self.apply_snapshot(mark)
        return True


class TreeState(State):
    """A state that is one tree of arrays: extend it with `tree` and `replace`."""

    def tree(self) -> Any:
        """Return the state itself, not a copy."""
        raise NotImplementedError

    def replace(self, tree: Any) -> None:
        """Take this tree, whose arrays belong to the state from now on."""
        raise NotImplementedError

    def capture_snapshot(self) -> Any:
        """Return a copy of the tree."""
        return copy.deepcopy(self.tree())

    def capture_to_save(self) -> Any:
        """Return the tree itself."""
        return self.tree()

    def apply_snapshot(self, snapshot: Any) -> None:
        """Take a copy of the snapshot."""
        self.replace(copy.deepcopy(snapshot))


class NumpyState(TreeState):
    """Arrays and plain values as attributes: `NumpyState(weights=np.zeros(4), best=0.0)`, then `state.weights -= ...`.

    Everything is copied before every step, so use it for models of a few megabytes.
    """

    def __init__(self, **values: np.ndarray[Any, Any] | Any) -> None:
        self.__dict__.update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Every value that was given is an attribute."""

        def __setattr__(self, name: str, value: Any) -> None:
            """Every value can be replaced."""

    def tree(self) -> dict[str, Any]:
        """Return every attribute."""
        return dict(self.__dict__)

    def replace(self, tree: dict[str, Any]) -> None:
        """Set every attribute; arrays that fit are filled in place, so that other references stay valid."""
        for name, value in tree.items():
            known: Any = self.__dict__.get(name)
            if _fits(known, value):
                known[...] = value
            else:
                self.__dict__[name] = value


def _fits(known: Any, value: Any) -> bool:
    shapes = getattr(known, "shape", None), getattr(value, "shape", None)
    types = getattr(known, "dtype", None), getattr(value, "dtype", None)
    writeable = getattr(getattr(known, "flags", None), "writeable", False)
    return shapes[0] is not None and shapes[0] == shapes[1] and types[0] == types[1] and bool(writeable)
