"""The store's machine: keys, queues, waiting requests, and the last answer of each channel. Pure.

It decides the answer to every request and when it is sent. It knows no clock and no socket: a peer is any
object of the driver, which sends each `Answer` to its peer.

The rules:

- Namespaces do not see each other.
- A request that waits is answered the moment its keys are there, or when its time is up, and it vanishes
  with its peer. All its keys must be there at once: a key that came and went does not count.
- A write happens once. The last answer to a write is kept until the channel's next request, so a client that
  did not receive it may ask again, on a new connection too. Answers to reads are not kept: reading twice does
  no harm.
- A channel has one request at a time.
- Nothing grows without a limit, and a refusal names the limit in a sentence. No request makes this raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.machine import Tick
from holdfast.store.channels import Channel, Channels
from holdfast.store.keys import Keys, Space, StoreLimits, shown, text_bytes
from holdfast.store.messages import (
    Fault,
    Reply,
    Request,
    StoreAdd,
    StoreAppend,
    StoreBye,
    StoreCheck,
    StoreCompareSet,
    StoreDelete,
    StoreDone,
    StoreFailed,
    StoreGet,
    StoreHello,
    StoreKeys,
    StoreListKeys,
    StoreMultiGet,
    StoreMultiSet,
    StoreNumber,
    StoreNumKeys,
    StoreQueueLen,
    StoreQueuePop,
    StoreQueuePush,
    StoreSet,
    StoreValue,
    StoreValues,
    StoreWait,
    StoreWelcome,
    Waiting,
)
from holdfast.store.waiters import Waiter, Waiters

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

#: How many missing keys a refusal names.
NAMED_MAX = 8
CHANNEL_NAME_BYTES_MAX = 128
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


# Events and effects are structs because a store handles tens of thousands of each a second.


class Asked(msgspec.Struct, frozen=True, gc=False):
    """A peer sent a request."""

    peer: Hashable
    request: Request | StoreHello | StoreBye


class PeerGone(msgspec.Struct, frozen=True, gc=False):
    """A peer's connection has ended; its last request is remembered for a while."""

    peer: Hashable


class SpaceDropped(msgspec.Struct, frozen=True, gc=False):
    """Every namespace that starts with `prefix` is over; requests that wait in one get the reason."""

    prefix: str
    reason: str = "the keys were dropped: the run or the round that they belonged to is over"


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Send `reply` to `peer`."""

    peer: Hashable
    reply: Reply | StoreWelcome


StoreEvent = Asked | PeerGone | SpaceDropped | Tick


class StoreMachine:
    """Decides every answer of one store; `epoch` names this life of it, since its keys end with it."""

    def __init__(self, epoch: str, limits: StoreLimits = StoreLimits()) -> None:  # noqa: B008 - frozen
        self.epoch = epoch
        self.limits = limits
        self._keys = Keys(limits)
        self._channels = Channels(limits.channels_max)
        self._waiters = Waiters()
        #: Answers to other peers caused by the current event; empty between events.
        self._woken: list[Answer] = []
        self._answers: dict[type, Callable[[Channel, Any, float], Reply | None]] = {
            StoreGet: self._get,
            StoreMultiGet: self._multi_get,
            StoreWait: self._wait,
            StoreQueuePop: self._queue_pop,
            StoreCheck: self._check,
            StoreNumKeys: self._num_keys,
            StoreListKeys: self._list_keys,
            StoreQueueLen: self._queue_len,
            StoreSet: self._set,
            StoreMultiSet: self._multi_set,
            StoreAdd: self._add,
            StoreCompareSet: self._compare_set,
            StoreAppend: self._append,
            StoreDelete: self._delete,
            StoreQueuePush: self._queue_push,
        }

    # -- the contract ---------------------------------------------------------------------------------------

    def handle(self, event: StoreEvent, now: float) -> list[Answer]:
        """Decide what `event` means and return the answers to send, in order."""
        if type(event) is Asked:
            return self._asked(event.peer, event.request, now)
        if type(event) is Tick:
            self._expire(now)
        elif type(event) is PeerGone:
            channel = self._channels.connected.get(event.peer)
            if channel is not None:
                self._part(channel)
        else:
            assert type(event) is SpaceDropped, f"a store is told nothing of {event!r}"
            self._drop(event.prefix, event.reason)
        return self._take_woken()

    def wakeup(self) -> float | None:
        """Return when the next request runs out of time."""
        first = self._waiters.first()
        return None if first is None else first.deadline

    def check(self) -> None:
        """Assert every invariant."""
        assert not self._woken
        self._keys.check()
        self._channels.check()
        self._waiters.check(list(self._keys.spaces.values()))

    def snapshot(self) -> dict[str, Any]:
        """Describe how much is held and which requests wait for what; values are not shown."""
        return {
            "epoch": self.epoch,
            "keys": self._keys.entries,
            "bytes": self._keys.bytes,
            "waiters": self._waiters.count,
            "channels": len(self._channels.connected),
            "channels_away": self._channels.away,
            "spaces": {
                name: {
                    "keys": len(space.values),
                    "queues": {key: len(queue) for key, queue in space.queues.items()},
                    "waiting": {key: len(waiters) for key, waiters in space.waiting.items()},
                    "popping": {key: len(waiters) for key, waiters in space.popping.items()},
                }
                for name, space in self._keys.spaces.items()
            },
        }

    # -- channels -------------------------------------------------------------------------------------------

    def _asked(self, peer: Hashable, request: Request | StoreHello | StoreBye, now: float) -> list[Answer]:
        answer = self._answers.get(type(request))
        channel = self._channels.connected.get(peer)
        if answer is None or channel is None:
            return self._asked_about_channel(peer, channel, request)
        question: Request = request  # type: ignore[assignment]
        if question.id <= channel.answered_id or channel.waiter is not None:
            return [Answer(peer, self._asked_again(channel, question.id))]
        reply = answer(channel, question, now)
        if reply is None:
            channel.reply = None
            return self._take_woken()
        if type(question) in _REMEMBERED:
            channel.answered_id = question.id
            channel.reply = reply
        else:
            channel.reply = None
        if not self._woken:
            return [Answer(peer, reply)]
        return [Answer(peer, reply), *self._take_woken()]

    def _asked_again(self, channel: Channel, id_: int) -> Reply:
        if channel.waiter is not None:
            return StoreFailed(id_, Fault.PROTOCOL, "this channel is still waiting for its last answer")
        if id_ == channel.answered_id and channel.reply is not None:
            return channel.reply
        reason = f"question {id_} is older than the last one answered, {channel.answered_id}"
        return StoreFailed(id_, Fault.PROTOCOL, reason)

    def _asked_about_channel(self, peer: Hashable, channel: Channel | None, request: Any) -> list[Answer]:
        if type(request) is StoreHello:
            return [Answer(peer, self._hello(peer, channel, request.channel))]
        if type(request) is StoreBye:
            if channel is not None:
                self._part(channel)
                self._channels.forget(channel.name)
            return []
        assert type(request) in self._answers, f"a store is not asked {request!r}"
        return [Answer(peer, StoreFailed(request.id, Fault.PROTOCOL, "a channel is opened with StoreHello"))]

    def _hello(self, peer: Hashable, channel: Channel | None, name: str) -> Reply | StoreWelcome:
        if text_bytes(name) > CHANNEL_NAME_BYTES_MAX:
            reason = f"a channel's name has at most {CHANNEL_NAME_BYTES_MAX} bytes"
            return StoreFailed(0, Fault.PROTOCOL, reason)
        if channel is not None:
            self._part(channel)
        named = self._channels.named(name)
        if named is not None and named.peer is not None:
            self._part(named)  # the client reconnected before we heard that its old connection broke
        self._channels.attach(name, peer)
        return StoreWelcome(self.epoch, known=named is not None)

    def _part(self, channel: Channel) -> None:
        """Disconnect a channel; its request no longer waits."""
        if channel.waiter is not None:
            self._leave(channel.waiter)
        self._channels.detach(channel)

    def _take_woken(self) -> list[Answer]:
        if not self._woken:
            return []
        woken, self._woken = self._woken, []
        return woken

    # -- questions that wait --------------------------------------------------------------------------------

    def _get(self, channel: Channel, ask: StoreGet, now: float) -> Reply | None:
        space = self._keys.spaces.get(ask.space)
        if space is not None:
            value = space.values.get(ask.key)
            if value is not None:
                return StoreValue(ask.id, value)
        return self._enrol(channel, ask, [ask.key], now)

    def _multi_get(self, channel: Channel, ask: StoreMultiGet, now: float) -> Reply | None:
        space = self._keys.spaces.get(ask.space)
        if space is not None:
            values = space.values
            try:
                found = [values[key] for key in ask.keys]
            except KeyError:
                pass
            else:
                return self._values(ask, found)
        elif not ask.keys:
            return StoreValues(ask.id, [])
        return self._enrol(channel, ask, self._missing(ask, space), now)

    def _values(self, ask: StoreMultiGet, found: list[bytes]) -> Reply:
        size = sum(map(len, found)) + 5 * len(found)
        if size > self.limits.reply_bytes_max:
            limit = self.limits.reply_bytes_max
            reason = f"the values have {size} bytes, over the limit of {limit} for one answer"
            return StoreFailed(ask.id, Fault.LIMIT, f"{reason}: ask for fewer keys at once")
        return StoreValues(ask.id, found)

    def _wait(self, channel: Channel, ask: StoreWait, now: float) -> Reply | None:
        missing = self._missing(ask, self._keys.spaces.get(ask.space))
        return self._enrol(channel, ask, missing, now) if missing else StoreDone(ask.id)

    def _queue_pop(self, channel: Channel, ask: StoreQueuePop, now: float) -> Reply | None:
        space = self._keys.spaces.get(ask.space)
        if space is not None and ask.key in space.queues:
            return StoreValue(ask.id, self._keys.pop(space, ask.key))
        return self._enrol(channel, ask, [ask.key], now)

    @staticmethod
    def _missing(ask: StoreGet | StoreMultiGet | StoreWait, space: Space | None) -> list[str]:
        """Return the keys that a request still waits for, each once."""
        keys = dict.fromkeys([ask.key] if type(ask) is StoreGet else ask.keys)  # type: ignore[union-attr]
        if space is None:
            return list(keys)
        values = space.values
        if type(ask) is StoreWait and space.queues:
            return [key for key in keys if key not in values and key not in space.queues]
        return [key for key in keys if key not in values]

    def _enrol(self, channel: Channel, ask: Waiting, missing: list[str], now: float) -> Reply | None:
        """Make a request wait for keys, or return why it may not."""
        timeout_s = ask.timeout_s
        if not timeout_s > 0:  # also true of NaN
            return StoreFailed(ask.id, Fault.TIMEOUT, _not_there(ask, missing))
        limits = self.limits
        if self._waiters.keys + len(missing) > limits.waiters_max:
            reason = f"the limit of {limits.waiters_max} keys being waited for is reached"
            return StoreFailed(ask.id, Fault.LIMIT, reason)
        for key in (ask.space, *missing):
            too_long = self._keys.key_too_long(key)
            if too_long is not None:
                return StoreFailed(ask.id, Fault.LIMIT, too_long)
        deadline = now + min(timeout_s, limits.wait_s_max)
        self._waiters.add(channel, ask, self._keys.open(ask.space), missing, deadline)
        return None

    def _wake(self, space: Space, key: str) -> None:
        """Answer all requests for which this key was the last one missing."""
        for waiter in self._waiters.take(space, key):
            ask = waiter.request
            assert not isinstance(ask, StoreQueuePop)
            again = self._missing(ask, space)
            if again:  # a key came and went while another was missing
                self._waiters.register(waiter, again)
            elif type(ask) is StoreGet:
                self._finish(waiter, StoreValue(ask.id, space.values[ask.key]))
            elif type(ask) is StoreMultiGet:
                self._finish(waiter, self._values(ask, [space.values[key] for key in ask.keys]))
            else:
                self._finish(waiter, StoreDone(ask.id))

    def _finish(self, waiter: Waiter, reply: Reply) -> None:
        """Answer a request that waited."""
        channel = waiter.channel
        self._leave(waiter)
        if type(waiter.request) is StoreQueuePop:
            channel.answered_id = reply.id
            channel.reply = reply
        self._woken.append(Answer(channel.peer, reply))

    def _leave(self, waiter: Waiter) -> None:
        self._waiters.remove(waiter)
        self._keys.tidy(waiter.space)

    def _expire(self, now: float) -> None:
        while (waiter := self._waiters.first()) is not None and waiter.deadline <= now:
            ask = waiter.request
            self._finish(waiter, StoreFailed(ask.id, Fault.TIMEOUT, _not_there(ask, list(waiter.missing))))

    def _drop(self, prefix: str, reason: str) -> None:
        for space in [each for name, each in self._keys.spaces.items() if name.startswith(prefix)]:
            self._keys.empty(space)
            for waiter in self._waiters.within(space):
                self._finish(waiter, StoreFailed(waiter.request.id, Fault.DROPPED, reason))

    # -- questions answered at once -------------------------------------------------------------------------

    def _check(self, _channel: Channel, ask: StoreCheck, _now: float) -> Reply:
        space = self._keys.spaces.get(ask.space)
        if space is None:
            return StoreNumber(ask.id, 0 if ask.keys else 1)
        values, queues = space.values, space.queues
        return StoreNumber(ask.id, int(all(key in values or key in queues for key in ask.keys)))

    def _num_keys(self, _channel: Channel, ask: StoreNumKeys, _now: float) -> Reply:
        space = self._keys.spaces.get(ask.space)
        if space is None:
            return StoreNumber(ask.id, 0)
        if not ask.prefix:
            return StoreNumber(ask.id, len(space.values))
        return StoreNumber(ask.id, sum(key.startswith(ask.prefix) for key in space.values))

    def _list_keys(self, _channel: Channel, ask: StoreListKeys, _now: float) -> Reply:
        space = self._keys.spaces.get(ask.space)
        keys = [] if space is None else [key for key in space.values if key.startswith(ask.prefix)]
        size = sum(map(text_bytes, keys)) + 5 * len(keys)
        if size > self.limits.reply_bytes_max:
            reason = f"the names of {len(keys)} keys have {size} bytes together"
            return StoreFailed(
                ask.id,
                Fault.LIMIT,
                f"{reason}, over the limit of {self.limits.reply_bytes_max} for one answer",
            )
        return StoreKeys(ask.id, keys)

    def _queue_len(self, _channel: Channel, ask: StoreQueueLen, _now: float) -> Reply:
        space = self._keys.spaces.get(ask.space)
        queue = None if space is None else space.queues.get(ask.key)
        return StoreNumber(ask.id, len(queue) if queue else 0)

    # -- writes ---------------------------------------------------------------------------------------------

    def _set(self, _channel: Channel, ask: StoreSet, _now: float) -> Reply:
        refusal = self._put(ask.space, ask.key, ask.value)
        return StoreDone(ask.id) if refusal is None else StoreFailed(ask.id, Fault.LIMIT, refusal)

    def _multi_set(self, _channel: Channel, ask: StoreMultiSet, _now: float) -> Reply:
        keys, values = ask.keys, ask.values
        if len(keys) != len(values):
            reason = f"{len(keys)} keys and {len(values)} values were given; there must be as many of each"
            return StoreFailed(ask.id, Fault.USAGE, reason)
        refusal = self._keys.put_all(ask.space, keys, values)
        if refusal is not None:
            return StoreFailed(ask.id, Fault.LIMIT, refusal)
        space = self._keys.spaces.get(ask.space)
        if space is not None and space.waiting:
            for key in keys:
                if key in space.waiting:
                    self._wake(space, key)
        return StoreDone(ask.id)

    def _add(self, _channel: Channel, ask: StoreAdd, _now: float) -> Reply:
        old = self._keys.value(ask.space, ask.key)
        try:
            number = ask.amount if old is None else int(old) + ask.amount
        except ValueError:
            reason = f"'{shown(ask.key)}' holds no whole number, so nothing can be added to it"
            return StoreFailed(ask.id, Fault.USAGE, reason)
        if not _INT64_MIN <= number <= _INT64_MAX:
            return StoreFailed(ask.id, Fault.USAGE, f"the sum in '{shown(ask.key)}' would not fit 64 bits")
        refusal = self._put(ask.space, ask.key, b"%d" % number)
        return StoreNumber(ask.id, number) if refusal is None else StoreFailed(ask.id, Fault.LIMIT, refusal)

    def _compare_set(self, _channel: Channel, ask: StoreCompareSet, _now: float) -> Reply:
        old = self._keys.value(ask.space, ask.key)
        if old is None and ask.expected:
            return StoreValue(ask.id, ask.expected)
        if old is not None and old != ask.expected:
            return StoreValue(ask.id, old)
        refusal = self._put(ask.space, ask.key, ask.desired)
        return StoreValue(ask.id, ask.desired) if refusal is None else StoreFailed(ask.id, Fault.LIMIT, refusal)

    def _append(self, _channel: Channel, ask: StoreAppend, _now: float) -> Reply:
        old = self._keys.value(ask.space, ask.key)
        refusal = self._put(ask.space, ask.key, ask.value if old is None else old + ask.value)
        return StoreDone(ask.id) if refusal is None else StoreFailed(ask.id, Fault.LIMIT, refusal)

    def _put(self, name: str, key: str, value: bytes) -> str | None:
        """Store a value and answer the requests that wait for it, or return which limit forbids it."""
        refusal = self._keys.put(name, key, value)
        if refusal is None:
            space = self._keys.spaces[name]
            if key in space.waiting:
                self._wake(space, key)
        return refusal

    def _delete(self, _channel: Channel, ask: StoreDelete, _now: float) -> Reply:
        return StoreNumber(ask.id, int(self._keys.delete(ask.space, ask.key)))

    def _queue_push(self, _channel: Channel, ask: StoreQueuePush, _now: float) -> Reply:
        key = ask.key
        refusal = self._keys.push(ask.space, key, ask.value)
        if refusal is not None:
            return StoreFailed(ask.id, Fault.LIMIT, refusal)
        space = self._keys.spaces[ask.space]
        if key in space.waiting:
            self._wake(space, key)
        if key in space.popping:
            waiter = next(iter(space.popping[key].values()))
            self._finish(waiter, StoreValue(waiter.request.id, self._keys.pop(space, key)))
        return StoreDone(ask.id)


#: Requests that take effect once, however often they are sent.
_REMEMBERED = frozenset(
    (
        StoreSet,
        StoreMultiSet,
        StoreAdd,
        StoreCompareSet,
        StoreAppend,
        StoreDelete,
        StoreQueuePush,
        StoreQueuePop,
    )
)


def _not_there(ask: Waiting, missing: list[str]) -> str:
    named = ", ".join(f"'{shown(key)}'" for key in missing[:NAMED_MAX])
    more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
    when = f"within {ask.timeout_s:.3g} s" if ask.timeout_s > 0 else "and the request was not to wait"
    if isinstance(ask, StoreQueuePop):
        return f"nothing was in the queue {named} {when}"
    if isinstance(ask, StoreGet) or len(ask.keys) == 1:
        return f"the key {named} did not appear {when}"
    return f"{len(missing)} of {len(ask.keys)} keys did not appear {when}: {named}{more}"
