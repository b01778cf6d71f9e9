"""Whose fault silence is: that of a node, of the coordinator, or of the way between them. Pure.

A node whose lease runs out is counted as lost, and its round breaks. That is wrong in three cases:

1. The coordinator was asleep: stopped, or starved of CPU time. It was called later than it asked to be, and what the
   nodes said lies unread. All get a fresh lease; if it was late by a moment only, it first reads.
2. The coordinator is cut off: it hears no node at all, though each of them should have spoken twice. It cannot know
   which of them live, and could form no round anyway. So it counts none of them as lost. With the first word that gets
   through, all get a fresh lease, long enough to connect again.
3. Only the node's beats are late, on a link that loses packets or flaps: the other nodes still make steps, which they
   cannot do without it. It stays for a few leases more.
"""

from __future__ import annotations

from holdfast.coordinator.messages import Phase
from holdfast.coordinator.state import Node

#: A call this much later than asked for means that this process was asleep: what it was told lies unread.
LATE_S = 0.5
#: A call this much later may have left something unread; it is read first, which takes a moment.
TARDY_S, READ_S = 0.02, 0.1
#: Nothing heard of any node for this part of a lease, in which each should have beaten, means that we are cut off.
DEAF_SHARE = 0.5
#: After a cut, nodes have at least so long to connect again: the kernel sends its first packets seconds apart.
RETURN_S = 6.0
#: When nothing was heard for so long, there is no node left.
DEAF_S_MAX = 600.0
#: A node without beats stays for so many leases at most while the others make steps.
LATE_LEASES_MAX = 6
#: Steps count if they were reported this part of a lease after the node's last word: at its death the others may
#: finish the step that they are in, and report it with their next beat.
STEP_SHARE = 2 / 3


class Hearing:
    """What the coordinator hears of one run's nodes, and what follows for a node that is silent."""

    def __init__(self) -> None:
        self._heard_at = float("-inf")
        #: When a node's steps last grew.
        self._stepped_at = float("-inf")
        #: Whether no node is heard at all.
        self.is_deaf = False

    def hears(self, now: float) -> bool:
        """Note a word of any node; returns whether it is the first after a silence of all."""
        self._heard_at = now
        was_deaf, self.is_deaf = self.is_deaf, False
        return was_deaf

    def steps(self, node: Node, steps: int, now: float) -> None:
        """Note how far a node's workers are."""
        if steps > node.steps:
            self._stepped_at = now
        node.steps = steps

    def excuse(self, node: Node, now: float) -> float | None:
        """Say until when a node whose lease has run out stays nevertheless; None if it is lost."""
        if node.dropped is not None or node.expires_at > now:
            return None  # its process died, or it does not stop its workers: that is no silence
        lease_s = node.spec.lease_s
        silent_s = now - self._heard_at
        if silent_s >= lease_s * DEAF_SHARE and silent_s < DEAF_S_MAX:
            self.is_deaf = True
            return now + lease_s / 2
        steps_on = self._stepped_at > node.heard_at + lease_s * STEP_SHARE
        if node.phase is Phase.RUNNING and steps_on and now < node.heard_at + lease_s * LATE_LEASES_MAX:
            # The next report of the others decides again.
            node.is_late = True
            return max(now, self._stepped_at + lease_s * STEP_SHARE)
        return None


def renew_after_sleep(node: Node, now: float, late_s: float) -> None:
    """Give a node time for what it has said while the coordinator was asleep."""
    if late_s <= LATE_S:
        if node.dropped is None:
            _extend(node, now + READ_S)
    elif node.dropped is not None:  # its connection ended; it may have made another one by now
        _extend(node, now + LATE_S)
    else:
        _extend(node, now + node.spec.lease_s)


def renew_after_cut(node: Node, now: float) -> None:
    """Give a node time to connect again after the coordinator was cut off."""
    _extend(node, now + max(node.spec.lease_s, RETURN_S))


def _extend(node: Node, until: float) -> None:
    node.expires_at = max(node.expires_at, until)
    if node.rejoin_by is not None:
        node.rejoin_by = max(node.rejoin_by, until)
