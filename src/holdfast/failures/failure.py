"""A failure: one thing that went wrong, as data that can be printed, sent and stored."""

from __future__ import annotations

import enum
import signal
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from holdfast.errors import PeerError
from holdfast.failures.stacks import Group
from holdfast.text import clean_data

#: The version of the record's layout; a reader refuses only newer ones.
FAILURE_VERSION = 1


class Kind(enum.Enum):
    """What sort of thing went wrong."""

    EXCEPTION = "exception"  #: an uncaught Python exception
    EXIT = "exit"  #: a non-zero exit code, with or without a SystemExit behind it
    SIGNAL = "signal"  #: a signal that we did not send
    OUT_OF_MEMORY = "out_of_memory"  #: killed by the kernel, which was out of memory
    TIMEOUT = "timeout"  #: it hung and was killed
    START = "start"  #: it could not be started at all
    LOST_NODE = "lost_node"  #: a whole node stopped answering
    VICTIM = "victim"  #: it failed because a peer went away, as it says itself
    STOPPED = "stopped"  #: we ended it ourselves


#: Kinds that can be a root cause; the others follow from another failure.
TRUE_KINDS = frozenset(Kind) - {Kind.VICTIM, Kind.STOPPED}


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of one worker or node, with all that is known about it.

    `exit_code` is negative for a signal and None if there was no process. `timestamp` is the host's wall
    clock, for people to read: no decision compares it with another host's.
    """

    kind: Kind
    message: str
    host: str = ""
    node: int | None = None
    role: str = ""
    local_rank: int | None = None
    rank: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    traceback: str = ""
    error_file: str = ""
    log_lines: tuple[str, ...] = ()
    log_files: tuple[str, ...] = ()
    round: int | None = None
    attempt: int | None = None
    timestamp: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)
    #: Where the workers were when it hung, equal stacks together.
    stacks: tuple[Group, ...] = ()
    #: Whether no restart can mend it, so that the job ends.
    ends_job: bool = False
    version: int = FAILURE_VERSION

    def __post_init__(self) -> None:
        # An exception that names a file may hold bytes that are no text; see `holdfast.text`.
        for each in fields(self):
            object.__setattr__(self, each.name, clean_data(getattr(self, each.name)))

    @property
    def is_true(self) -> bool:
        """Whether this can be a root cause, rather than the consequence of another failure."""
        return self.kind in TRUE_KINDS

    @property
    def signal_name(self) -> str:
        """The name of the signal that ended the worker, or an empty string."""
        return signal_name(self.exit_code)

    def to_json(self) -> dict[str, Any]:
        """Describe the failure as plain JSON data."""
        data = asdict(self)
        data["kind"] = self.kind.value
        data["log_lines"] = list(self.log_lines)
        data["log_files"] = list(self.log_files)
        data["stacks"] = [group.to_json() for group in self.stacks]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Failure:
        """Read what `to_json` wrote, here or on another node; unknown fields are left out."""
        version = data.get("version")
        if not isinstance(version, int) or version > FAILURE_VERSION:
            raise PeerError(
                f"a failure record of version {version!r} cannot be read; this is version {FAILURE_VERSION}"
            )
        known = {name: data[name] for name in (item.name for item in fields(cls)) if name in data}
        try:
            known["kind"] = Kind(known["kind"])
            known["log_lines"] = tuple(map(str, known.get("log_lines", ())))
            known["log_files"] = tuple(map(str, known.get("log_files", ())))
            known["stacks"] = tuple(map(Group.from_json, known.get("stacks", ())))
            return cls(**known)
        except (KeyError, ValueError, TypeError) as error:
            raise PeerError(f"this is not a failure record: {error}") from error


def signal_name(exit_code: int | None) -> str:
    """Name the signal behind a negative exit code: -9 is SIGKILL; empty for any other code."""
    if exit_code is None or exit_code >= 0:
        return ""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"SIG{-exit_code}"  # real-time signals have no name of their own
