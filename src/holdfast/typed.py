"""Types that msgspec reads records into, from any thread.

msgspec learns the fields of a type when it first reads one, and the process crashes if two threads are the first. So
every reader asks here first: `msgspec.convert(data, learned(Record))`.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_known: set[Any] = set()
_learning = threading.Lock()


def learned(kind: type[T]) -> type[T]:
    """Return the type, which msgspec knows by now: any number of threads may read records of it."""
    if kind not in _known:
        # One lock for all types, because two of them may hold a third.
        with _learning:
            msgspec.json.Decoder(kind)
            _known.add(kind)
    return kind
