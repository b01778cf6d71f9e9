"""The events of an election, from its owner and from etcd, and its effects. Pure.

Every question to etcd has a number; its answer, or `EtcdFailed`, carries the same one.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.machine import Tick


@dataclass(frozen=True, slots=True)
class Carrier:
    """What the key of a run says: which process carries the coordinator, where, and in which term."""

    address: str
    #: The candidate that wrote it, a name that no other process has.
    candidate: str
    term: int
    #: The key's revision; it changes with every election and with nothing else.
    revision: int


# -- events from the owner -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """A coordinator is needed; answered by `Carry`, `Follow` or `LookFailed`."""


@dataclass(frozen=True, slots=True)
class Reached:
    """This node is connected to the carrier that it was told to follow."""


@dataclass(frozen=True, slots=True)
class AskPermit:
    """A round of a run is ready to be sealed; answered by `Permit`. `record` is what etcd must hold before."""

    run: str
    record: bytes


@dataclass(frozen=True, slots=True)
class KeepRecord:
    """What a successor must know of a run has changed; None if the run was forgotten."""

    run: str
    record: bytes | None


@dataclass(frozen=True, slots=True)
class CarriedAway:
    """The coordinator in this process has ended; another may be opened under the same key."""


@dataclass(frozen=True, slots=True)
class Resign:
    """This process ends. `forget` are the runs that are over for good, whose records no successor needs."""

    forget: tuple[str, ...] = ()


# -- events from etcd and from the network -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyRead:
    """What the key says, None if there is none; and the last term that was ever given, with its key's revision."""

    ask: int
    carrier: Carrier | None
    term: int
    term_revision: int


@dataclass(frozen=True, slots=True)
class Knocked:
    """Whether an address refused every connection: the coordinator there is closed, whatever became of its process."""

    ask: int
    gone: bool


@dataclass(frozen=True, slots=True)
class Elected:
    """The transaction of `Stand` succeeded; `records` are what earlier carriers left."""

    ask: int
    lease: int
    revision: int
    records: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class NotElected:
    """Another candidate was quicker: the key or the term has changed."""

    ask: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease has so many seconds from now, 0 if it ran out; and what the key says."""

    ask: int
    seconds: int
    carrier: Carrier | None


@dataclass(frozen=True, slots=True)
class Written:
    """The transaction of a `Write` succeeded: this process still is the carrier, and etcd holds the record."""

    ask: int


@dataclass(frozen=True, slots=True)
class NotWritten:
    """The transaction of a `Write` was refused: this process is not the carrier any more."""

    ask: int


@dataclass(frozen=True, slots=True)
class EtcdFailed:
    """No answer to a question; it may have been carried out all the same."""

    ask: int
    reason: str


ElectionEvent = (
    Look
    | Reached
    | AskPermit
    | KeepRecord
    | CarriedAway
    | Resign
    | KeyRead
    | Knocked
    | Elected
    | NotElected
    | Renewed
    | Written
    | NotWritten
    | EtcdFailed
    | Tick
)

# -- effects: questions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadKey:
    """Read the key and the term."""

    ask: int


@dataclass(frozen=True, slots=True)
class Knock:
    """Find out whether the coordinator at an address is closed."""

    ask: int
    address: str


@dataclass(frozen=True, slots=True)
class Stand:
    """Make a lease; then, if key and term still have these revisions (0: absent), write both, and read the records."""

    ask: int
    term: int
    revision: int
    term_revision: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease, then read the key."""

    ask: int
    lease: int


@dataclass(frozen=True, slots=True)
class Write:
    """If the key still has this revision, write the record of a run, or remove it."""

    ask: int
    run: str
    record: bytes | None
    revision: int


@dataclass(frozen=True, slots=True)
class Revoke:
    """End a lease, and the key with it; if the key has this revision, remove these records first. Not answered."""

    lease: int
    revision: int = 0
    forget: tuple[str, ...] = ()


# -- effects: what the owner does ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Carry:
    """This process is the carrier; open a coordinator with these records unless one is open."""

    term: int
    records: tuple[tuple[str, bytes], ...] = ()
    #: Whether the carrier before is surely gone. Otherwise its node may come back, and is worth waiting for.
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Follow:
    """Another process is the carrier, at this address."""

    address: str


@dataclass(frozen=True, slots=True)
class LookFailed:
    """There is no coordinator for now."""

    reason: str


@dataclass(frozen=True, slots=True)
class StepDown:
    """Close the coordinator at once: this process is not the carrier any more."""

    reason: str
    #: Whether another process was elected.
    deposed: bool


@dataclass(frozen=True, slots=True)
class Permit:
    """Whether the run may seal a round, at this moment; not where this process is not the carrier."""

    run: str
    allowed: bool = True


@dataclass(frozen=True, slots=True)
class EtcdAway:
    """etcd cannot be reached; told once."""

    reason: str


@dataclass(frozen=True, slots=True)
class EtcdBack:
    """etcd answers again."""

    away_s: float
    tries: int


ElectionEffect = (
    ReadKey
    | Knock
    | Stand
    | Renew
    | Write
    | Revoke
    | Carry
    | Follow
    | LookFailed
    | StepDown
    | Permit
    | EtcdAway
    | EtcdBack
)
