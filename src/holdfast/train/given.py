"""What a trainer is given from outside: rounds, collectives, a position, and where decisions are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import queue
    import socket

    from holdfast.coordinator.messages import Cause, Place
    from holdfast.rendezvous.events import MemberEffect, RunEnded
    from holdfast.store.client import StoreClient
    from holdfast.train import events as t
    from holdfast.train.membership import RoundView
    from holdfast.train.trainer import Trainer
    from holdfast.wire.address import Endpoint
    from holdfast.wire.secret import Secret


class Meeting(Protocol):
    """A rendezvous through which workers that train in process can meet: its coordinator pushes all news."""

    @property
    def endpoint(self) -> Endpoint:
        """Where the coordinator is."""

    @property
    def secret(self) -> Secret:
        """The run's secret."""

    @property
    def is_connected(self) -> bool:
        """Whether the coordinator can be reached at present."""

    @property
    def ended(self) -> RunEnded | None:
        """How the run ended, once it has."""

    @property
    def store_space(self) -> str:
        """The name of this round's keys."""

    def listen(self, listener: Callable[[MemberEffect], None]) -> None:
        """Send all news to `listener`, on another thread."""

    def listen_for_peers(self, port: int) -> None:
        """Tell the others where the one before this worker may connect to it."""

    def count_steps(self, steps: Callable[[], int]) -> None:
        """Have the others hear how many steps this worker has made."""

    def next_round(self, cause: Cause | None = None) -> Place:
        """Block until there is a round."""

    def store(self) -> StoreClient:
        """Return the store of the round."""

    def note(self, text: str) -> None:
        """Have people who look at the run see this of the worker."""

    def sentence(self) -> str:
        """Return the reason for a wait."""

    def close(self, reason: str, *, failed: bool = False) -> None:
        """End the run for all workers."""

    def leave(self, reason: str) -> bool:
        """Leave for good."""


class Rounds(Protocol):
    """How a worker takes part in rounds, as far as its trainer needs to know."""

    #: Where the worker before this one connects; None where this worker has no place of its own in the ring.
    listener: socket.socket | None
    #: What was heard, for the trainer to hear before anything else.
    news: queue.SimpleQueue[t.TrainerEvent]

    @property
    def broken(self) -> str | None:
        """Why the round is over; None while it runs."""

    @property
    def is_connected(self) -> bool:
        """Whether the coordinator can be reached at present."""

    @property
    def ended(self) -> RunEnded | None:
        """How the training ended, once it has."""

    def join(self, cause: str | None = None) -> RoundView:
        """Block until there is a round; `cause` says what this worker ended the last one for."""

    def on_break(self, breaker: Callable[[str], None]) -> None:
        """Have `breaker` called when the round is over; at once where it is already."""

    def wait_broken(self, timeout_s: float) -> bool:
        """Wait for the news that the round is over; says whether it came in time."""

    def store_address(self) -> tuple[str, str]:
        """Return the coordinator's address and the name of this round's keys there."""

    def note(self, text: str) -> None:
        """Have people who look at the run see this of the worker."""

    def close_run(self, reason: str, *, failed: bool = False) -> None:
        """End the training for all workers."""

    def leave(self, reason: str) -> None:
        """Leave for good."""


class Backend(Protocol):
    """The collectives that a state brings along, such as torch's process groups; they live as long as a round."""

    def open(self, view: RoundView, membership: Rounds) -> None:
        """Make them for a round; raises `RoundOverError` where the round did not last until then."""

    def close(self) -> None:
        """Let go of them, which ends whatever still waits; safe to call at any time."""

    def settle(self) -> None:
        """Wait until every collective of the step has done its work; raises `RoundOverError` where one never will."""

    def is_own(self, error: BaseException) -> bool:
        """Whether an error of a step is certainly this worker's own, such as the failure of its device."""

    @property
    def broadcast(self) -> Callable[[bytes | None, int], bytes] | None:
        """Sends bytes from one rank to all others; None where the ring does that."""

    @property
    def carrier(self) -> Carrier | None:
        """Moves states by itself; None where they travel as bytes."""


class Carrier(Protocol):
    """Moves a state from device to device, while our ring carries what is not on one."""

    def describe(self, position: Any) -> bytes:
        """Return what all workers have to know of this worker's state before it travels, with its position."""

    def carry(self, described: bytes | memoryview, to: Sequence[int]) -> tuple[Any, int]:
        """Send or receive a state.

        Returns it where this worker is one of `to`, as a tree with its position, and its size in bytes.
        """


class NoBackend:
    """For states whose workers talk over our ring alone, which has done its work when it returns."""

    def open(self, view: RoundView, membership: Rounds) -> None:
        """There is nothing to make."""

    def close(self) -> None:
        """There is nothing to let go of."""

    def settle(self) -> None:
        """Nothing is under way."""

    def is_own(self, error: BaseException) -> bool:
        """There is no device that could fail."""
        del error
        return False

    @property
    def broadcast(self) -> None:
        """The ring does that."""

    @property
    def carrier(self) -> None:
        """The state travels as bytes."""


class Position(Protocol):
    """How far a training is; it goes wherever the state goes."""

    step: int

    def snapshot(self) -> Any:
        """Describe it as plain data."""

    def restore(self, data: Any) -> None:
        """Become what another worker's snapshot says."""


class StepCount:
    """A position that is a number of steps and nothing else."""

    def __init__(self) -> None:
        self.step = 0

    def snapshot(self) -> int:
        """Return the number."""
        return self.step

    def restore(self, data: Any) -> None:
        """Take over a number."""
        self.step = int(data)


class Decider(Protocol):
    """Where it is decided what follows from an event."""

    #: Whether this worker cannot go on without the others that do what is decided there.
    shares_fate: bool

    def drive(self, trainer: Trainer, event: t.TrainerEvent) -> t.TrainerEffect | None:
        """Have the trainer carry out what follows from an event; returns the answer to the program."""

    def close(self) -> None:
        """Let go of everything; safe to call at any time."""
