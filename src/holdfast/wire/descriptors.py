"""File descriptors: how many this process may open, and how many of them connections may take.

Processes that listen raise their soft limit to the hard one. Children begin with the limit that the user had: programs
that call select() break on descriptors over 1,023, so no worker gets a higher limit than it was given.
"""

from __future__ import annotations

import contextlib
import os
import resource

#: No listener holds more connections than this, whatever the limit.
CONNECTIONS_MAX = 16_384
#: Kept for all else that an agent opens: pipes and logs of workers, pidfds, imports, its own connections.
RESERVE_MIN = 128
#: A listener always takes this many, however low the limit.
CONNECTIONS_MIN = 16

#: What the user had set, where this process has raised it.
_given: tuple[int, int] | None = None


def raise_limit() -> int:
    """Let this process, but not its children, open as many files as the system allows; returns how many."""
    global _given
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and soft != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError, ValueError):  # the hard limit may be over what the kernel allows
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            _given = _given or (soft, hard)
    return limit()


def limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def connections_within(limit: int, share: float = 1.0) -> int:
    """Return how many connections a listener may hold, so that a reserve of descriptors is always left.

    A process with several listeners gives each its share.
    """
    reserve = max(RESERVE_MIN, limit // 4)
    return max(CONNECTIONS_MIN, min(int((limit - reserve) * share), CONNECTIONS_MAX))


def restore_limit() -> None:
    """Give this process the limit back that the user had set; for children, between fork and exec too."""
    if _given is not None:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, _given)


os.register_at_fork(after_in_child=restore_limit)
