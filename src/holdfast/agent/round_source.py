"""Where an agent gets its rounds: the interface of a source, and the source for each handler.

Our own handlers are sources themselves: the coordinator pushes its messages. Any other handler that users program
against has an adapter, which blocks and polls as TorchElastic's agent does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeGuard, runtime_checkable

from holdfast.agent.api import WorkerSpec
from holdfast.coordinator.messages import Cause, Place
from holdfast.errors import HoldfastError
from holdfast.rendezvous.api import has_all_of
from holdfast.rendezvous.events import AskFailed, MemberEffect, PeerCalled, RunEnded
from holdfast.wire.address import Endpoint
from holdfast.wire.secret import Secret
from holdfast.wire.tls import TlsFiles

#: Enter this around a call that only an exception can end: while inside, a signal raises one.
Blocking = Callable[[], AbstractContextManager[None]]


class RoundSource(Protocol):
    """One node's way to agree with the others on rounds.

    Methods with a body are optional: for a source without a coordinator.
    """

    #: Whether restarts are counted for the whole job, by the coordinator.
    counts_restarts: bool

    @property
    def node(self) -> str:
        """This node's name; empty if nodes have no names."""
        return ""

    @property
    def endpoint(self) -> Endpoint | None:
        """Where the coordinator is, if there is one."""
        return None

    @property
    def is_host(self) -> bool:
        """Whether the other nodes need this process to stay alive."""
        return False

    @property
    def poll_s(self) -> float | None:
        """How often `poll` must be called at this moment; None if everything is pushed."""

    def describe_spec(self, spec: WorkerSpec) -> None:
        """Set this node's workers; takes effect with the next ask."""
        del spec

    def listen(self, listener: Callable[[MemberEffect], None], blocking: Blocking | None = None) -> None:
        """Send all news to `listener`, which may be called on any thread and must not block."""

    def would_disturb(self) -> bool:
        """Return whether a round runs that an ask would break."""
        return False

    def ask(self, cause: Cause | None = None, number: int = 0) -> None:
        """Ask for a round; the listeners hear `RoundSealed` with this number, `RunEnded` or `AskFailed`."""

    def sentence(self) -> str:
        """Return the reason for the wait."""
        return ""

    def poll(self) -> None:
        """Look for news that is not pushed; the listeners get it."""

    def fail(self, cause: Cause) -> None:
        """Tell the other nodes that this one cannot continue the round."""

    def replace(self, cause: Cause) -> None:
        """Report that a worker failed here and is being replaced."""
        del cause

    def finish(self) -> None:
        """Tell the others that this node's workers have finished; the listeners hear when all have."""

    def leave(self, reason: str) -> bool:
        """Leave the run; the others regroup without this node."""

    def release(self, *, signalled: bool) -> None:
        """Release everything; `signalled` where a signal ended this node alone."""

    def error_of(self, unanswered: AskFailed | RunEnded) -> HoldfastError:
        """Return the exception for an ask that led to no round."""

    def variables(self, place: Place, workers: int) -> dict[str, str]:
        """Return the environment variables by which this node's workers reach the coordinator."""
        del place, workers
        return {}


@runtime_checkable
class Coordinated(Protocol):
    """A source with a coordinator behind it: nodes can call each other, and share a store for the whole run."""

    @property
    def node(self) -> str:
        """This node's name."""

    @property
    def place(self) -> Place | None:
        """This node's place in the current round."""

    @property
    def min_nodes(self) -> int:
        """How many nodes a round needs."""

    @property
    def secret(self) -> Secret:
        """The run's secret."""

    @property
    def tls(self) -> TlsFiles | None:
        """The TLS files in use."""

    def get_run_id(self) -> str:
        """Return the id of the run."""

    def store(self, *, whole_run: bool = False) -> Any:
        """Return the store of the round, or of the run."""

    def count_steps(self, steps: Callable[[], int]) -> None:
        """Have the others hear how many steps this node's workers have made."""

    def call(self, call: int, topic: str, body: str) -> None:
        """Ask every other node of the round; the listeners hear `PeerReplied`."""

    def reply(self, called: PeerCalled, body: str) -> None:
        """Answer another node's call."""


def rounds_of(spec: WorkerSpec, exit_barrier_timeout_s: float) -> RoundSource:
    """Return the source of a spec's handler: the handler itself, or an adapter around it."""
    handler: object = spec.rdzv_handler
    if is_source(handler):
        handler.describe_spec(spec)
        return handler
    from holdfast.compat.elastic.classic_rounds import ClassicRounds  # for handlers of others alone

    return ClassicRounds(spec.rdzv_handler, spec, exit_barrier_timeout_s)


def is_source(handler: object) -> TypeGuard[RoundSource]:
    """Return whether a handler is a source itself: its own class must have the methods."""
    return has_all_of(RoundSource, handler)
