"""File descriptors: how many this process may open, and how many of them connections may take.

Processes that listen raise their soft limit to the hard one. Children begin with the limit that the user had: programs
that call select() break on descriptors over 1,023, so no worker gets a higher limit than it was given.
"""

from __future__ import annotations

import contextlib
import os
import resource

#: No listener holds more connections than this, whatever the limit: beats of so many keep its core busy.
CONNECTIONS_MAX = 131_072
#: Kept for all else that an agent opens: pipes and logs of workers, pidfds, imports, its own connections.
RESERVE_MIN = 128
#: A listener always takes this many, however low the limit.
CONNECTIONS_MIN = 16

#: No listener needs more than this, and a program that walks through all possible descriptors takes its time.
LIMIT_WANTED = 262_144

#: What the user had set, where this process has raised it.
_given: tuple[int, int] | None = None


def raise_limit() -> int:
    """Let this process, but not its children, open as many files as the hard limit allows; returns how many."""
    global _given
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_WANTED if hard == resource.RLIM_INFINITY else min(hard, LIMIT_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # the limit may be out of our hands; then we live with it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            _given = _given or (soft, hard)
    return limit()


def limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def given_limit(number: int) -> tuple[int, int]:
    """Return a limit as the user had set it, which is what children begin with."""
    return _given if number == resource.RLIMIT_NOFILE and _given is not None else resource.getrlimit(number)


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
