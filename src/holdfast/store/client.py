"""The store's client: blocking, for user code. It starts no thread and no event loop.

Each calling thread takes a connection from a pool, so a thread that waits blocks no other. A connection that
broke is opened again, with growing pauses until the caller's timeout, and its request is sent again; the
coordinator remembers its last answer, so a request that changes something changes it once. A forked child
opens its own connections.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import ConnectionLostError, PeerError, UnavailableError, UsageError
from holdfast.store.api import TIMEOUT_S
from holdfast.store.asking import AskingStore, failure
from holdfast.store.messages import (
    STORE_CODEC,
    STORE_REPLIES,
    StoreAdd,
    StoreAppend,
    StoreBye,
    StoreCompareSet,
    StoreFailed,
    StoreHello,
    StoreQueuePop,
    StoreQueuePush,
    StoreWelcome,
)
from holdfast.wire.address import Endpoint, parse_endpoint
from holdfast.wire.channel import Channel
from holdfast.wire.frames import Codec, Message
from holdfast.wire.handshake import CONNECT_TIMEOUT_S
from holdfast.wire.secret import find_secret

if TYPE_CHECKING:
    import ssl
    from datetime import timedelta

#: Connects and completes the handshake within the seconds given.
Connect = Callable[[float], Channel[Message]]

#: How much longer than its timeout a question may take to be answered before the connection counts as lost.
ANSWER_GRACE_S = 15.0
RETRY_FIRST_S = 0.02
RETRY_MAX_S = 2.0
#: Unused connections that are kept; one is all that a single thread ever needs.
LINES_IDLE_MAX = 4

#: Questions that must not be asked again of a store that has forgotten whether it answered them.
_ONCE = frozenset((StoreAdd, StoreAppend, StoreCompareSet, StoreQueuePush, StoreQueuePop))
_REPLIES = frozenset(STORE_REPLIES) - {StoreWelcome}


class _Line:
    """One channel of questions, over as many connections as it takes."""

    __slots__ = ("channel", "epoch", "last_id", "name")

    def __init__(self) -> None:
        self.name = secrets.token_hex(16)
        self.last_id = 0
        self.channel: Channel[Message] | None = None
        #: Which life of the coordinator this line last spoke to.
        self.epoch: str | None = None

    def open(self, connect: Connect, timeout_s: float) -> bool:
        """Connect; returns whether the coordinator still knows what it answered on this line."""
        deadline = time.monotonic() + timeout_s
        self.channel = connect(timeout_s)
        welcome = self.channel.ask(StoreHello(self.name), deadline)
        if not isinstance(welcome, StoreWelcome):
            reason = getattr(welcome, "reason", f"it answered {type(welcome).__name__}")
            raise PeerError(f"the coordinator did not open a store channel: {reason}")
        remembered = welcome.known and welcome.epoch == self.epoch
        self.epoch = welcome.epoch
        return remembered

    def close(self) -> None:
        """Drop the connection; the line can be opened again."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def leave(self) -> None:
        """Say that this line will not be used again, if it can be said, and drop the connection."""
        if self.channel is not None:
            with contextlib.suppress(ConnectionLostError):
                self.channel.send(StoreBye(), time.monotonic() + 0.5)
            self.close()


class _Pool:
    """The lines of a client and its clones; without a lock, which another thread might hold during a fork."""

    def __init__(self, connect: Connect) -> None:
        self.connect = connect
        self.closed = False
        self.idle: list[_Line] = []
        self.lines: set[_Line] = set()
        _pools.add(self)
        weakref.finalize(self, _leave_all, self.lines)

    def take(self) -> _Line:
        try:
            return self.idle.pop()
        except IndexError:
            if self.closed:
                raise UsageError("this store is closed") from None
            line = _Line()
            self.lines.add(line)
            return line

    def give(self, line: _Line) -> None:
        if self.closed or len(self.idle) >= LINES_IDLE_MAX:
            self.discard(line)
        else:
            self.idle.append(line)

    def discard(self, line: _Line) -> None:
        self.lines.discard(line)
        line.leave()

    def close(self) -> None:
        self.closed = True
        while self.idle:
            self.discard(self.idle.pop())

    def forget(self) -> None:
        """Close the parent's connections in a forked child, without sending anything."""
        self.idle.clear()
        for line in list(self.lines):
            line.close()
        self.lines.clear()


class StoreClient(AskingStore):
    """A coordinator's keys of one namespace.

    Raises `StoreTimeoutError` if keys did not appear in time, `StoreLimitError` if the store is full or a value is
    too large, `ConnectionLostError` if the coordinator could not be reached for the whole timeout, and
    `UnavailableError` if it was restarted and it is unknown whether an `add`, `append`, `compare_set` or queue
    operation was done.
    """

    def __init__(self, connect: Connect, space: str, timeout: timedelta | float = TIMEOUT_S) -> None:
        super().__init__(space, timeout)
        self._pool = _Pool(connect)

    @classmethod
    def connect(
        cls,
        endpoint: Endpoint | str,
        space: str,
        *,
        secret: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: timedelta | float = TIMEOUT_S,
        codec: Codec[Message] = STORE_CODEC,
    ) -> StoreClient:
        """Return a client of the coordinator at `endpoint`; the first request connects.

        Without a secret, the one in the environment or else this user's own is used.
        """
        where = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        key = find_secret().key if secret is None else secret
        return cls(lambda timeout_s: Channel.connect(where, codec, key, timeout_s=timeout_s, tls=tls), space, timeout)

    def clone(self) -> StoreClient:
        """Return another object for the same keys, with a timeout of its own; connections are shared."""
        return self.within(self.space)

    def within(self, space: str) -> StoreClient:
        """Return a client for the keys of another namespace; connections are shared."""
        other = StoreClient.__new__(StoreClient)
        AskingStore.__init__(other, space, self._timeout_s)
        other._pool = self._pool
        return other

    def close(self) -> None:
        """Close the connections, which clones share; a request in flight is answered first."""
        self._pool.close()

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, timeout_s: float, kind: Any, *fields: Any) -> Any:
        pool = self._pool
        line = pool.take()
        line.last_id += 1
        request = kind(line.last_id, self.space, *fields)
        start = time.monotonic()
        try:
            channel = line.channel
            if channel is None:
                reply = self._ask_anew(line, request, start + timeout_s, None)
            else:
                try:
                    reply = channel.ask(request, start + timeout_s + ANSWER_GRACE_S)
                except ConnectionLostError as error:
                    reply = self._ask_anew(line, request, start + timeout_s, error)
            if type(reply) not in _REPLIES or reply.id != request.id:
                raise PeerError(f"the coordinator answered {request} with {reply}")
        except BaseException:
            pool.discard(line)
            raise
        pool.give(line)
        if type(reply) is StoreFailed:
            raise failure(reply)
        return reply

    def _ask_anew(self, line: _Line, request: Any, give_up: float, lost: ConnectionLostError | None) -> Any:
        """Connect, as often as it takes until `give_up`, and send the request; `lost` is how a first try ended."""
        asked = lost is not None
        for pause_s in _pauses():
            line.close()
            remaining_s = give_up - time.monotonic()
            if lost is not None and (remaining_s <= 0 or self._pool.closed):
                raise ConnectionLostError(str(lost))
            try:
                remembered = line.open(self._pool.connect, min(max(remaining_s, 1.0), CONNECT_TIMEOUT_S))
                if asked and not remembered and type(request) in _ONCE:
                    raise UnavailableError(_unknown(request))
                asked = True
                remaining_s = max(give_up - time.monotonic(), 0.0)
                if hasattr(request, "timeout_s"):
                    request = msgspec.structs.replace(request, timeout_s=min(request.timeout_s, remaining_s))
                assert line.channel is not None
                return line.channel.ask(request, time.monotonic() + remaining_s + ANSWER_GRACE_S)
            except ConnectionLostError as error:
                lost = error
            time.sleep(min(pause_s * random.uniform(0.5, 1.0), max(give_up - time.monotonic(), 0.0)))
        raise AssertionError("pauses have no end")


def _pauses() -> Iterator[float]:
    pause_s = RETRY_FIRST_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, RETRY_MAX_S)


def _unknown(request: Any) -> str:
    what = type(request).__name__.removeprefix("Store")
    return (
        f"the coordinator was restarted, or forgot this client, while {what} '{request.key}' was on its way: "
        "whether it was done is not known; if the coordinator was restarted, all keys are gone"
    )


def _leave_all(lines: set[_Line]) -> None:
    while lines:
        lines.pop().leave()


_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.forget()


os.register_at_fork(after_in_child=_after_fork)
