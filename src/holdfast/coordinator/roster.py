"""The roster: a run's live nodes, how many of them wait, and when each one's time is up. Pure.

A node is live while its lease runs. A broken connection shortens the lease to a moment, in which a node whose
connection merely broke can come back; a process that died cannot. Whose fault silence is, `hearing` decides.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from holdfast.coordinator.hearing import Hearing, renew_after_cut, renew_after_sleep
from holdfast.coordinator.messages import Join, Phase
from holdfast.coordinator.state import Node

#: Of so many nodes that are gone it is remembered what they said last, so that words that come late are known as old.
GONE_KEPT_MAX = 4096


class Roster:
    """The live nodes in the order of their arrival; every change that is counted or timed goes through here."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        #: How many are in phase WAITING, and how many are within the grace of a broken connection.
        self.waiting = 0
        self.dropped = 0
        #: How many may be left over from an earlier launch.
        self.earlier = 0
        self.last_arrival = 0.0
        self._arrivals = 0
        #: One valid entry for each node, at its `watched_at`; others are void.
        self._expiries: list[tuple[float, int, str]] = []
        self._pushes = 0
        self._hearing = Hearing()
        #: Nodes that have begun to be late, until they are taken.
        self._late: list[Node] = []
        #: The last `seq` and the last answered ask of nodes that are gone.
        self._gone: dict[str, tuple[int, int]] = {}

    def add(self, join: Join, now: float, *, earlier: bool = False) -> Node:
        """Add a node that is new, or that comes back after it was given up."""
        self._arrivals += 1
        self.last_arrival = now
        node = Node(
            join.spec,
            join.spec.address,
            self._arrivals,
            join.seq,
            Phase.STOPPING,
            join.ask,
            now + join.spec.lease_s,
            sealed_ask=self._gone.pop(join.spec.node, (0, -1))[1],
            earlier=earlier,
            heard_at=now,
        )
        self._hear(now)
        self.nodes[join.spec.node] = node
        self.earlier += earlier
        self._watch(node)
        return node

    def last_seq(self, name: str) -> int:
        """Return the number of the last message of a node, live or gone."""
        node = self.nodes.get(name)
        return node.seq if node is not None else self._gone.get(name, (0, -1))[0]

    def hear(self, name: str, seq: int, now: float) -> Node | None:
        """Renew a node's lease by a message; None if the node is not live, or the message is an old one."""
        node = self.nodes.get(name)
        if node is None or seq <= node.seq:
            return None
        node.seq = seq
        self.renew(node, now)
        return node

    def renew(self, node: Node, now: float) -> None:
        """Renew a node's lease; a broken connection no longer counts."""
        self._hear(now)
        node.heard_at, node.is_late = now, False
        node.expires_at = now + node.spec.lease_s
        self._watch(node)
        if node.dropped is not None:
            node.dropped = None
            self.dropped -= 1

    def drop(self, node: Node, reason: str, expires_at: float) -> None:
        """Shorten the lease of a node whose connection broke, unless the coordinator was cut off from all of them."""
        if self._hearing.is_deaf:
            self._hear(expires_at)  # the end of an old connection is the first that gets through
        elif node.dropped is None:
            node.dropped = reason
            self.dropped += 1
            node.expires_at = min(node.expires_at, expires_at)
            self._watch(node)

    def set_phase(self, node: Node, phase: Phase, rejoin_by: float) -> None:
        """Change what a node is doing; one that begins to stop has until `rejoin_by` to come back."""
        if phase is not Phase.STOPPING:
            node.rejoin_by = None
        elif node.rejoin_by is None:
            node.rejoin_by = rejoin_by
            self._watch(node)
        self.waiting += (phase is Phase.WAITING) - (node.phase is Phase.WAITING)
        node.phase = phase

    def remove(self, node: Node) -> None:
        """Forget a node, except the number of its last message."""
        name = node.spec.node
        del self.nodes[name]
        self._gone[name] = (node.seq, node.sealed_ask)
        if len(self._gone) > GONE_KEPT_MAX:
            del self._gone[next(iter(self._gone))]
        self.dropped -= node.dropped is not None
        self.earlier -= node.earlier
        self.waiting -= node.phase is Phase.WAITING

    def expired(self, now: float) -> Iterator[Node]:
        """Hand out every node whose time is up, once; each must be removed or renewed before the next is asked for."""
        while self._expiries and self._expiries[0][0] <= now:
            when, _, name = heapq.heappop(self._expiries)
            node = self.nodes.get(name)
            if node is None or node.watched_at != when:
                continue
            node.watched_at = float("inf")
            was_late = node.is_late
            if node.due <= now and (until := self._hearing.excuse(node, now)) is not None:
                node.expires_at = until
                if node.is_late and not was_late:
                    self._late.append(node)
            if node.due > now:
                self._watch(node)  # renewed since; look again when its time is up
            else:
                yield node

    def next_expiry(self) -> float | None:
        """Say when the time of a node may be up."""
        return self._expiries[0][0] if self._expiries else None

    def was_late(self, now: float, late_s: float) -> None:
        """Note that the coordinator itself was called late: beats may lie unread, and silence was its own fault."""
        for node in self.nodes.values():
            renew_after_sleep(node, now, late_s)

    def note_steps(self, node: Node, steps: int, now: float) -> None:
        """Note how far a node's workers are."""
        self._hearing.steps(node, steps, now)

    def take_late(self) -> list[Node]:
        """Hand out the nodes whose beats have become late, once; they stay."""
        late, self._late = self._late, []
        return late

    def check(self) -> None:
        """Assert that counts and clocks agree with the nodes."""
        waiting = dropped = earlier = 0
        entries = {(when, name) for when, _, name in self._expiries}
        for name, node in self.nodes.items():
            waiting += node.phase is Phase.WAITING
            dropped += node.dropped is not None
            earlier += node.earlier
            watched_at, rejoin_by = node.watched_at, node.rejoin_by
            in_time = watched_at <= node.expires_at and (rejoin_by is None or watched_at <= rejoin_by)
            assert in_time, f"{node.name} is not watched in time"
            assert (watched_at, name) in entries, f"{node.name} is not watched"
        assert self.waiting == waiting, f"{self.waiting} counted, {waiting} waiting"
        assert self.dropped == dropped, f"{self.dropped} counted, {dropped} dropped"
        assert self.earlier == earlier, f"{self.earlier} counted, {earlier} from an earlier launch"

    def _hear(self, now: float) -> None:
        """Note that a node was heard; after a silence of all of them, each gets a fresh lease."""
        if self._hearing.hears(now):
            for node in self.nodes.values():
                renew_after_cut(node, now)

    def _watch(self, node: Node) -> None:
        """Make sure that a node is looked at when its time is up; an entry that is overtaken so is void."""
        if node.due < node.watched_at:
            node.watched_at = node.due
            self._pushes += 1
            heapq.heappush(self._expiries, (node.due, self._pushes, node.spec.node))
