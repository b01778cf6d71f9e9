"""Every error that Holdfast raises, split by whose fault it is.

    HoldfastError
    ├── UsageError        the caller's: the message says what to change
    ├── PeerError         the other side's: a peer, a plugin or a file broke its contract
    ├── UnavailableError  the environment's: a retry may help
    ├── JobFailedError    the launched program's: Holdfast did what it was asked to do
    ├── RendezvousError   what can go wrong while nodes agree, by TorchElastic's names
    └── InternalError     ours: please report it

A worker's death is a failure record (`holdfast.failures.Failure`); only what launches makes an error of it. Where a
builtin exception says the same (`ValueError`, `TimeoutError`...), an error derives from that too. The names of 0.1.0,
and those of TorchElastic and TorchX, are kept in `holdfast.compat.errors`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` would take longer than the rest of this module
if TYPE_CHECKING:
    from collections.abc import Mapping
    from signal import Signals
    from typing import Any

    from holdfast.failures import Failure
    from holdfast.specs import AppStatus


class HoldfastError(Exception):
    """The root of all errors raised by Holdfast."""


class UsageError(HoldfastError, ValueError):
    """The caller asked for something that cannot be; the message says what to change."""


class PeerError(HoldfastError):
    """The other side broke its contract: a peer, a plugin, or what was written to a file."""


class UnavailableError(HoldfastError):
    """Something outside is missing or out of reach for now; a retry may help."""


class JobFailedError(HoldfastError):
    """The program that was launched failed; Holdfast did what it was asked to do."""


class InternalError(HoldfastError):
    """Holdfast broke one of its own rules; please report this."""


# -- the wire and the store ------------------------------------------------------------------------------------


class FrameError(PeerError):
    """Bytes arrived that are not a frame of ours."""


class UnknownMessageError(FrameError):
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


class ConnectionLostError(UnavailableError, ConnectionError):
    """The connection to the coordinator is gone."""


class StoreTimeoutError(UnavailableError, TimeoutError):
    """A key did not appear in time."""


class StoreLimitError(UsageError):
    """A key, a value or the whole store would grow beyond its limit."""


# -- rendezvous, with the names that TorchElastic gave them ----------------------------------------------------


class RendezvousError(HoldfastError):
    """The root of what can go wrong while agents agree."""


class RendezvousClosedError(RendezvousError):
    """The run is closed: it ended, and its id cannot be used again."""


class RendezvousTimeoutError(RendezvousError, UnavailableError, TimeoutError):
    """Not enough nodes came together in time."""


class RendezvousConnectionError(RendezvousError, UnavailableError):
    """The coordinator cannot be reached."""


class RendezvousStateError(RendezvousError):
    """This node's settings or state do not fit the run it asked to join."""


class RendezvousGracefulExitError(RendezvousError):
    """This node left the run on purpose; nothing is wrong."""


# -- launching, and workers ------------------------------------------------------------------------------------


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

    def __init__(self, msg: str, sigval: Signals) -> None:
        super().__init__(msg, sigval)
        self.sigval = sigval

    def __str__(self) -> str:
        return str(self.args[0])


class NoTimerClientError(UsageError, RuntimeError):
    """A timer was set in a process that no agent watches; TorchElastic has it as a `RuntimeError`."""


class UnknownRunError(UsageError):
    """No run of this id has left a journal on this host; the message names the latest that have."""


# -- jobs ------------------------------------------------------------------------------------------------------


class ComponentNotFoundError(UsageError):
    """There is no component of this name; the message says what may have been meant."""


class ComponentValidationError(UsageError):
    """A function is not a component; the message says what is wrong with it, and where."""


class InvalidRunConfigError(UsageError):
    """A run option is missing or has a wrong value; `cfg_key` names it."""

    def __init__(self, invalid_reason: str, cfg_key: str = "", cfg: Mapping[str, Any] | str | None = None) -> None:
        super().__init__(invalid_reason)
        self.cfg_key = cfg_key
        self.cfg = cfg


class WrongDefaultError(UsageError, TypeError):
    """The default of a run option is not of its type."""


class UnknownResourceError(UsageError, KeyError):
    """There is no named resource of this name."""

    __str__ = UsageError.__str__  # a KeyError would show its message in quotes


class MalformedAppHandleError(UsageError):
    """This is not a job handle; the message shows what one looks like."""

    def __init__(self, app_handle: str) -> None:
        super().__init__(
            f"'{app_handle}' is not the handle of a job, which looks like local://holdfast/echo-x7k2 "
            "(`holdfast list` shows yours)"
        )


class UnknownSchedulerError(UsageError):
    """There is no scheduler of this name."""

    def __init__(self, scheduler_backend: str) -> None:
        super().__init__(f"there is no scheduler '{scheduler_backend}'; `holdfast runopts` lists the ones that exist")


class UnknownAppError(UsageError):
    """There is no job of this handle, or there is none any more."""

    def __init__(self, app_handle: str) -> None:
        super().__init__(f"there is no job {app_handle}; `holdfast list` lists the ones that exist")


class AppStatusError(JobFailedError):
    """The job did not succeed; `status` says how it is doing."""

    def __init__(self, status: AppStatus, *args: object) -> None:
        super().__init__(*args)
        self.status = status


class JobCancelledError(JobFailedError):
    """The job was cancelled before it had a result."""


class RemoteTracebackError(JobFailedError):
    """The cause of an exception that came back from a worker: its traceback there, as text."""

    def __str__(self) -> str:
        return f"\n{str(self.args[0]).rstrip()}"


class JobTimeoutError(UnavailableError, TimeoutError):
    """A job did not end in time; it goes on."""


class LogUnwrittenError(UnavailableError, RuntimeError):
    """A job has ended and the file that was to hold its output was never there."""


class PluginBrokenError(PeerError):
    """An installed plugin cannot be loaded; the message names it, where it comes from, and its error."""


# -- training in process, and checkpoints ----------------------------------------------------------------------


class RoundOverError(UnavailableError, RuntimeError):
    """The round ended under this step: it is rolled back, the workers regroup, and the step is done again."""


class ReplicaLostError(UnavailableError, RuntimeError):
    """A worker that holds another part of the same copy of the model is gone, so this one cannot go on."""


class StopTrainingError(HoldfastError):
    """Raised by a step: this worker leaves the training, for good and without harm to the others."""


class NotRetryableError(HoldfastError):
    """Raised by a step: trying again cannot help, so this worker ends and the others go on."""


class TrainingLostError(NotRetryableError):
    """The training cannot continue, and no restart can mend that: the job ends, whatever restarts it has left.

    Raised where no worker and no checkpoint has the state of the steps that were done. `ends_job` is what the agent
    goes by; it can be set on any exception.
    """

    ends_job = True


class CorruptShardError(PeerError):
    """These bytes are not a whole state: cut off, damaged, or something else."""


class ShardMissingError(UnavailableError):
    """The shard was there and is no more: dropped, overwritten by a newer one, or lost with its host."""


def __getattr__(name: str) -> Any:
    """Answer for names of 0.1.0: an `except` clause looks its name up only when an exception is on its way."""
    if not name.startswith("_"):
        from holdfast.compat.errors import find

        return find(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
