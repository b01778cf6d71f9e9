"""Every error that Holdfast raises, split by whose fault it is.

- `UsageError`: the caller's. The message says what to change.
- `PeerError`: the other side's. It sent something that no correct peer sends.
- `Unavailable`: the environment's. A retry may help.
- `InternalError`: ours. Please report it.

A worker's death is not an exception but a failure record. The rendezvous errors keep the names that users of
TorchElastic know, and each also says whose fault it is.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` would take longer than the rest of this module
if TYPE_CHECKING:
    from signal import Signals

    from holdfast.failures import Failure


class HoldfastError(Exception):
    """The root of all errors raised by Holdfast."""


class UsageError(HoldfastError, ValueError):
    """The caller asked for something that cannot be; the message says what to change."""


class PeerError(HoldfastError):
    """The other side of a connection broke the protocol or refused us."""


class Unavailable(HoldfastError):
    """Something outside is missing or out of reach for now; a retry may help."""


class InternalError(HoldfastError):
    """Holdfast broke one of its own rules; please report this."""


# -- what was launched -----------------------------------------------------------------------------------------


class JobFailedError(HoldfastError):
    """The program that was launched failed; Holdfast did what it was asked to do."""


class WorkerFailedError(JobFailedError):
    """A worker failed and no restart is left; the message holds the root cause and its remote traceback.

    `failures` are all that is known, the root cause first; `exit_code` is what a launcher should exit with.
    """

    def __init__(self, message: str, failures: tuple[Failure, ...] = (), exit_code: int = 1) -> None:
        super().__init__(message)
        self.failures = failures
        self.exit_code = exit_code


class SignalError(HoldfastError):
    """A signal ended the agent and its workers; `sigval` is the signal."""

    def __init__(self, message: str, sigval: Signals) -> None:
        super().__init__(message, sigval)
        self.sigval = sigval

    def __str__(self) -> str:
        return str(self.args[0])


# -- the wire ------------------------------------------------------------------------------------------------


class FrameError(PeerError):
    """Bytes arrived that are not a frame of ours."""


class UnknownMessage(FrameError):
    """A whole message arrived whose type this version does not know."""

    def __init__(self, tag: int) -> None:
        super().__init__(
            f"a message of an unknown type (tag {tag}) was ignored: the other side may have another holdfast version"
        )
        self.tag = tag


class HandshakeError(PeerError):
    """The other side did not prove the shared secret, or speaks another version."""


class WrongSecretError(HandshakeError):
    """The two sides do not have the same shared secret."""


class ConnectionLost(Unavailable, ConnectionError):
    """The connection to the coordinator is gone."""


# -- the store -----------------------------------------------------------------------------------------------


class StoreTimeoutError(Unavailable, TimeoutError):
    """A key did not appear in time."""


class StoreLimitError(UsageError):
    """A key, a value or the whole store would grow beyond its limit."""


# -- rendezvous, with the names that TorchElastic gave them ------------------------------------------------------


class RendezvousError(HoldfastError):
    """The root of what can go wrong while agents agree."""


class RendezvousClosedError(RendezvousError):
    """The run is closed: it ended, and its id cannot be used again."""


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """Not enough nodes came together in time."""


class RendezvousConnectionError(RendezvousError, Unavailable):
    """The coordinator cannot be reached."""


class RendezvousStateError(RendezvousError):
    """This node's settings or state do not fit the run it asked to join."""


class RendezvousGracefulExitError(RendezvousError):
    """This node left the run politely; nothing is wrong."""
