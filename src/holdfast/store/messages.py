"""The messages between a store and its clients. Pure.

A client opens a channel with `StoreHello` and then has one request at a time; every request gets one answer
with the same `id`. The store remembers a channel's last answered write, so a client that lost its connection
may open the channel again and resend the request without an answer: it takes effect once. `StoreBye` has no
answer.

`space` is the namespace of a request: a run, or a run and a round. The store gives it no meaning.
"""

from __future__ import annotations

import enum

from holdfast.wire.frames import FRAME_BYTES_MAX, Codec, Message
from holdfast.wire.handshake import HANDSHAKE_TYPES

#: The size limit for the keys, or the values, of one message: half a frame each.
REQUEST_BYTES_MAX = FRAME_BYTES_MAX // 2 - 64 * 1024


class Fault(enum.Enum):
    """Why a store did not do what it was asked."""

    TIMEOUT = "timeout"
    LIMIT = "limit"
    #: The request does not fit the stored value, such as adding to a value that is no number.
    USAGE = "usage"
    #: The namespace was dropped while the request waited.
    DROPPED = "dropped"
    #: The channel broke the rules at the top of this file.
    PROTOCOL = "protocol"


class StoreHello(Message, frozen=True, tag=40):
    """Opens a channel, or opens it again on a new connection; `channel` is a random name."""

    channel: str


class StoreBye(Message, frozen=True, tag=41):
    """The channel will not be used again; nothing needs to be remembered of it."""


# -- questions that wait ------------------------------------------------------------------------------------


class StoreGet(Message, frozen=True, tag=42):
    """Answered with the value once the key exists: `StoreValue`."""

    id: int
    space: str
    key: str
    timeout_s: float


class StoreMultiGet(Message, frozen=True, tag=43):
    """Answered with the values once every key exists: `StoreValues`."""

    id: int
    space: str
    keys: list[str]
    timeout_s: float


class StoreWait(Message, frozen=True, tag=44):
    """Answered once every key exists or has something queued: `StoreDone`."""

    id: int
    space: str
    keys: list[str]
    timeout_s: float


class StoreQueuePop(Message, frozen=True, tag=45):
    """Takes the oldest value from a queue once there is one: `StoreValue`."""

    id: int
    space: str
    key: str
    timeout_s: float


# -- questions answered at once -----------------------------------------------------------------------------


class StoreCheck(Message, frozen=True, tag=46):
    """Asks whether every key exists or has something queued: `StoreNumber`, 1 or 0."""

    id: int
    space: str
    keys: list[str]


class StoreNumKeys(Message, frozen=True, tag=47):
    """Asks how many keys start with `prefix`: `StoreNumber`."""

    id: int
    space: str
    prefix: str


class StoreListKeys(Message, frozen=True, tag=48):
    """Asks which keys start with `prefix`, oldest first: `StoreKeys`."""

    id: int
    space: str
    prefix: str


class StoreQueueLen(Message, frozen=True, tag=49):
    """Asks how many values a queue holds: `StoreNumber`."""

    id: int
    space: str
    key: str


# -- writes: answered at once, and remembered until the channel's next question -----------------------------


class StoreSet(Message, frozen=True, tag=50):
    """Sets a key: `StoreDone`."""

    id: int
    space: str
    key: str
    value: bytes


class StoreMultiSet(Message, frozen=True, tag=51):
    """Sets all keys or, where a limit forbids it, none: `StoreDone`."""

    id: int
    space: str
    keys: list[str]
    values: list[bytes]


class StoreAdd(Message, frozen=True, tag=52):
    """Adds to a decimal number, which starts as 0: `StoreNumber`, the sum."""

    id: int
    space: str
    key: str
    amount: int


class StoreCompareSet(Message, frozen=True, tag=53):
    """Sets a key if its value is `expected`, or if it is missing and `expected` is empty: `StoreValue`.

    The answer is what the key holds now, or `expected` where the key is still missing.
    """

    id: int
    space: str
    key: str
    expected: bytes
    desired: bytes


class StoreAppend(Message, frozen=True, tag=54):
    """Adds bytes to the end of a value, which starts empty: `StoreDone`."""

    id: int
    space: str
    key: str
    value: bytes


class StoreDelete(Message, frozen=True, tag=55):
    """Removes a key: `StoreNumber`, 1 if it was there."""

    id: int
    space: str
    key: str


class StoreQueuePush(Message, frozen=True, tag=56):
    """Adds a value to the end of a queue: `StoreDone`."""

    id: int
    space: str
    key: str
    value: bytes


# -- answers ------------------------------------------------------------------------------------------------


class StoreWelcome(Message, frozen=True, tag=70):
    """The channel is open.

    `epoch` names this life of the store: another epoch means that all keys are gone. `known` says whether the
    channel was remembered, so that a resent write happens once.
    """

    epoch: str
    known: bool


class StoreDone(Message, frozen=True, tag=71):
    """The request is done."""

    id: int


class StoreValue(Message, frozen=True, tag=72):
    """One value."""

    id: int
    value: bytes


class StoreValues(Message, frozen=True, tag=73):
    """One value for each key, in the order asked."""

    id: int
    values: list[bytes]


class StoreNumber(Message, frozen=True, tag=74):
    """A count, a sum, or 1 and 0 for yes and no."""

    id: int
    number: int


class StoreKeys(Message, frozen=True, tag=75):
    """Names of keys."""

    id: int
    keys: list[str]


class StoreFailed(Message, frozen=True, tag=76):
    """The request was refused, for this reason."""

    id: int
    fault: Fault
    reason: str


Write = StoreSet | StoreMultiSet | StoreAdd | StoreCompareSet | StoreAppend | StoreDelete | StoreQueuePush
Waiting = StoreGet | StoreMultiGet | StoreWait | StoreQueuePop
Request = Waiting | StoreCheck | StoreNumKeys | StoreListKeys | StoreQueueLen | Write
Reply = StoreDone | StoreValue | StoreValues | StoreNumber | StoreKeys | StoreFailed

STORE_REQUESTS = (
    StoreHello,
    StoreBye,
    StoreGet,
    StoreMultiGet,
    StoreWait,
    StoreQueuePop,
    StoreCheck,
    StoreNumKeys,
    StoreListKeys,
    StoreQueueLen,
    StoreSet,
    StoreMultiSet,
    StoreAdd,
    StoreCompareSet,
    StoreAppend,
    StoreDelete,
    StoreQueuePush,
)
STORE_REPLIES = (
    StoreWelcome,
    StoreDone,
    StoreValue,
    StoreValues,
    StoreNumber,
    StoreKeys,
    StoreFailed,
)

#: The store has no port of its own: a coordinator serves it beside its rounds.
SERVICE = "coordinator"
#: For clients; a coordinator's own codec has these types among others, and the frames are the same.
STORE_CODEC: Codec[Message] = Codec(*HANDSHAKE_TYPES, *STORE_REQUESTS, *STORE_REPLIES, service=SERVICE)
