"""The channels of a store: which are connected, and the last answers of those that are not. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from holdfast.store.messages import Reply
    from holdfast.store.waiters import Waiter


class Channel:
    """One client's requests."""

    __slots__ = ("answered_id", "name", "peer", "reply", "waiter")

    def __init__(self, name: str) -> None:
        self.name = name
        #: None while there is no connection.
        self.peer: Hashable | None = None
        #: The last write that was answered, and the answer while it may still be asked for.
        self.answered_id = 0
        self.reply: Reply | None = None
        #: The request that waits, if there is one; only with a connection.
        self.waiter: Waiter | None = None


class Channels:
    """Every channel that is remembered: all with a connection, and a limited number of those without."""

    def __init__(self, away_max: int) -> None:
        self.away_max = away_max
        self.connected: dict[Hashable, Channel] = {}
        self._named: dict[str, Channel] = {}
        #: Channels without a connection, the oldest first.
        self._away: dict[str, None] = {}

    def named(self, name: str) -> Channel | None:
        """Return a channel that is remembered."""
        return self._named.get(name)

    def attach(self, name: str, peer: Hashable) -> None:
        """Give a channel, known or new, a connection; neither may have another."""
        assert peer not in self.connected
        channel = self._named.get(name)
        if channel is None:
            channel = self._named[name] = Channel(name)
        assert channel.peer is None
        self._away.pop(name, None)
        channel.peer = peer
        self.connected[peer] = channel

    def detach(self, channel: Channel) -> None:
        """Disconnect a channel; if too many are disconnected, the oldest of them is forgotten."""
        assert channel.waiter is None
        del self.connected[channel.peer]
        channel.peer = None
        self._away[channel.name] = None
        if len(self._away) > self.away_max:
            self.forget(next(iter(self._away)))

    def forget(self, name: str) -> None:
        """Forget a channel without a connection; does nothing when it was forgotten before."""
        self._away.pop(name, None)
        self._named.pop(name, None)

    @property
    def away(self) -> int:
        """How many channels without a connection are remembered."""
        return len(self._away)

    def check(self) -> None:
        """Assert that every channel is either connected or counted as parted."""
        for name, channel in self._named.items():
            assert name == channel.name
            assert (channel.peer is None) == (name in self._away)
            assert channel.peer is None or self.connected[channel.peer] is channel
            assert channel.waiter is None or channel.peer is not None
        assert len(self._named) == len(self.connected) + len(self._away)
        assert len(self._away) <= self.away_max
