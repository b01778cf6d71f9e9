"""A snapshot: a copy of the state, made while training waits, into memory that the next one uses again."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from holdfast.checkpoint.layout import Leaf, describe, entry, opening, padding, write_header
from holdfast.checkpoint.slots import give_back

T = TypeVar("T")

#: The threads copy memory in pieces of this size.
PIECE_BYTES = 16 << 20
THREADS_MAX = 4
#: Less than this is not worth a second thread.
PARALLEL_BYTES_MIN = 64 << 20


@dataclass
class Outline:
    """The layout of a state before the copy: its header, and where each array goes."""

    opening: bytes = b""
    nbytes: int = 0
    #: Arrays in the memory of this process.
    views: list[tuple[int, memoryview]] = field(default_factory=list)
    #: Tensors on an accelerator, with how many bytes they have.
    tensors: list[tuple[int, int, Any]] = field(default_factory=list)


def outline(tree: Any) -> Outline:
    """Describe a state without copying it; raises `UsageError` for what has no layout."""
    entries: list[dict[str, Any]] = []
    sources: list[memoryview | Any] = []

    def add(leaf: Leaf, value: Any) -> int:
        if leaf.kind == "torch" and value.device.type != "cpu":
            from holdfast.checkpoint import device

            dtype, shape, nbytes = device.measure(leaf, value)
            sources.append(value)
        else:
            dtype, shape, view = leaf.view(value)
            nbytes = len(view)
            sources.append(view)
        entries.append(entry(leaf, dtype, shape, nbytes))
        return len(entries) - 1

    described = describe(tree, add)
    made = Outline(opening(write_header(described, entries)))
    at = len(made.opening)
    for each, source in zip(entries, sources, strict=True):
        if isinstance(source, memoryview):
            made.views.append((at, source))
        else:
            made.tensors.append((at, each["nbytes"], source))
        at += each["nbytes"] + padding(each["nbytes"])
    made.nbytes = at
    return made


def copy(made: Outline, target: memoryview) -> None:
    """Copy a state into `target`, whose length is the outline's; accelerators copy while this processor does."""
    end = len(made.opening)
    target[:end] = made.opening
    if made.tensors:
        from holdfast.checkpoint import device

        finish = device.begin_copies(made.tensors, target)
        _copy_views(made.views, target)
        finish()
    else:
        _copy_views(made.views, target)
    for at, size in _gaps(made):
        target[at : at + size] = bytes(size)


def prepare(made: Outline, buffers: Iterable[Buffer]) -> None:
    """Do the one-time work of the first copy of such a state in advance."""
    if made.tensors:
        from holdfast.checkpoint import device

        for buffer in buffers:
            if buffer.capacity >= made.nbytes:
                device.pin(buffer.state(made.nbytes))


def _gaps(made: Outline) -> list[tuple[int, int]]:
    """Write the zeros after each array: reused memory has other bytes there."""
    ends = [at + len(view) for at, view in made.views] + [at + nbytes for at, nbytes, _ in made.tensors]
    return [(end, padding(end)) for end in ends if padding(end)]


def _copy_views(views: Sequence[tuple[int, memoryview]], target: memoryview) -> None:
    pieces = [
        (at + start, view[start : start + PIECE_BYTES])
        for at, view in views
        for start in range(0, len(view), PIECE_BYTES)
    ]
    for_each(
        pieces,
        lambda piece: _copy_piece(target[piece[0] : piece[0] + len(piece[1])], piece[1]),
        sum(len(view) for _, view in views),
    )


def _copy_piece(target: memoryview, source: memoryview) -> None:
    try:
        import numpy as np
    except ImportError:
        target[:] = source
        return
    # Unlike an assignment, this releases the interpreter's lock.
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


# -- memory for snapshots --------------------------------------------------------------------------------------------


class Buffer(Protocol):
    """Memory for a copy of the state; `held` while that copy is still needed."""

    held: bool
    capacity: int

    def state(self, nbytes: int) -> memoryview:
        """Return the memory for a state."""


def fresh_memory(nbytes: int) -> memoryview:
    """Return private memory, in large pages if the kernel has them: they are filled faster."""
    memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without large pages
    return memoryview(memory)[:nbytes]


class PrivateBuffer:
    """Memory of this process alone."""

    def __init__(self, nbytes: int) -> None:
        self.held = False
        self.capacity = max(nbytes, 1)
        self._view = fresh_memory(self.capacity)

    def state(self, nbytes: int) -> memoryview:
        """Return the memory for a state."""
        return self._view[:nbytes]


class PrivatePool:
    """As many private buffers as snapshots may be in flight at once."""

    def __init__(self, buffers_max: int) -> None:
        self._buffers_max = buffers_max
        self._buffers: list[PrivateBuffer] = []

    def reserve(self, nbytes: int) -> list[PrivateBuffer]:
        """Make the buffers that may still be made, and return all."""
        while len(self._buffers) < self._buffers_max:
            buffer = PrivateBuffer(nbytes)
            room = buffer.state(nbytes)
            for page in range(0, nbytes, mmap.PAGESIZE):
                room[page] = 0
            self._buffers.append(buffer)
        return self._buffers

    def take(self, nbytes: int) -> PrivateBuffer | None:
        """Return a buffer, or None while all are held."""
        free = [buffer for buffer in self._buffers if not buffer.held]
        fitting = next((buffer for buffer in free if buffer.capacity >= nbytes), None)
        if fitting is None:
            if len(self._buffers) >= self._buffers_max:
                if not free:
                    return None
                self._remove(free[0])
            fitting = PrivateBuffer(nbytes)
            self._buffers.append(fitting)
        return fitting

    def close(self) -> None:
        """Release the buffers."""
        for buffer in list(self._buffers):
            self._remove(buffer)

    def _remove(self, buffer: PrivateBuffer) -> None:
        self._buffers.remove(buffer)
        give_back(buffer.state(buffer.capacity))


def for_each(items: Iterable[T], work: Callable[[T], None], nbytes: int) -> None:
    """Do the work for every item, in several threads if `nbytes` is worth them; raises the first error.

    The threads live only for this call: while it runs, its caller waits and cores are idle.
    """
    waiting = list(items)
    errors: list[Exception] = []
    lock = threading.Lock()

    def next_one() -> list[T]:
        with lock:
            return [waiting.pop()] if waiting and not errors else []

    def run() -> None:
        while item := next_one():
            try:
                work(item[0])
            except Exception as error:  # noqa: BLE001 - raised again by the caller
                errors.append(error)

    count = min(THREADS_MAX, len(os.sched_getaffinity(0)), len(waiting)) if nbytes >= PARALLEL_BYTES_MIN else 1
    helpers = [threading.Thread(target=run, name="holdfast copy", daemon=True) for _ in range(count - 1)]
    for helper in helpers:
        helper.start()
    run()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
