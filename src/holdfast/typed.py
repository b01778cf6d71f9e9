"""Types that msgspec reads records into, from any thread.

msgspec learns the fields of a type when it first reads one, and the process crashes if two threads are the first. So
every reader asks here first: `msgspec.convert(data, learned(Record))`. A fork waits for a type that is being learned.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_known: set[Any] = set()
_learning = threading.RLock()


def learned(kind: type[T]) -> type[T]:
    """Return the type, which msgspec knows by now: any number of threads may read records of it."""
    if kind not in _known:
        # One lock for all types, because two of them may hold a third.
        with _learning:
            msgspec.json.Decoder(kind)
            _known.add(kind)
    return kind


# A child would inherit half of what msgspec knows of the type, and the lock of a thread that it does not have.
os.register_at_fork(before=_learning.acquire, after_in_parent=_learning.release, after_in_child=_learning.release)
