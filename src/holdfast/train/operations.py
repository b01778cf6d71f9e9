"""The protocol of the ring: operations as pieces that go from each worker to the next. Pure.

A piece has a header (which operation of the round, what kind of piece, which piece, how many bytes) and its bytes. An
operation says where the bytes of a piece go, and what follows once they have arrived. The ring reads and writes.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import RoundOverError, UsageError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

CHUNK_BYTES = 256 * 1024
#: The longest piece of bytes that one worker may send to all.
BYTES_MAX = 1 << 40
#: Which operation of the round, what kind of piece, which piece, how many bytes.
_HEADER = struct.Struct("<IIIQ")
_PARTIAL, _RESULT, _BYTES = 1, 2, 3


class Operation(Protocol):
    """One operation: how it uses the pieces that arrive, and whether it has all of them."""

    done: bool

    def place_for(self, kind: int, piece: int, length: int) -> memoryview:
        """Return where a piece's bytes go."""

    def arrived(self, kind: int, piece: int) -> None:
        """Continue with a piece that is complete."""


class Stream:
    """The bytes that one worker sends to the next one and receives from the one before, in the order of operations."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        #: Bytes that are still to be written.
        self.out: deque[memoryview] = deque()
        self._number = 0
        self._header = bytearray(_HEADER.size)
        self._have = 0
        #: The rest of the piece that is being read, and which one it is; 0 before its header is complete.
        self._body = memoryview(b"")
        self._kind, self._piece = 0, 0

    def send(self, kind: int, piece: int, data: memoryview) -> None:
        """Queue one piece for the next worker."""
        self.out.append(memoryview(_HEADER.pack(self._number, kind, piece, len(data))))
        if len(data):
            self.out.append(data)

    def wrote(self, count: int) -> None:
        """Record that `count` bytes of the first item in `out` are written."""
        if count == len(self.out[0]):
            self.out.popleft()
        else:
            self.out[0] = self.out[0][count:]

    def wanted(self) -> memoryview:
        """Return where the next bytes that arrive go."""
        return self._body if self._kind else memoryview(self._header)[self._have :]

    def got(self, count: int, operation: Operation) -> None:
        """Record that `count` bytes have arrived."""
        if self._kind:
            self._body = self._body[count:]
        else:
            self._have += count
            if self._have < _HEADER.size:
                return
            self._accept(operation)
        if not len(self._body):
            kind, self._kind, self._have = self._kind, 0, 0
            operation.arrived(kind, self._piece)

    def end(self) -> None:
        """The operation is over; the next one has the next number."""
        self._number += 1

    def _accept(self, operation: Operation) -> None:
        number, kind, piece, length = _HEADER.unpack(self._header)
        if number != self._number or not kind:
            raise RoundOverError(f"the workers disagree: operation {number} came in place of {self._number}")
        if length > BYTES_MAX:
            raise RoundOverError(f"a piece of {length} bytes came round")
        self._kind, self._piece, self._body = kind, piece, operation.place_for(kind, piece, length)


class Reduction(Operation):
    """Partial results go from the first worker to the last, each adding its own; the result goes round from there."""

    def __init__(self, stream: Stream, parts: list[Array], result: Array, combine: Any) -> None:
        import numpy as np

        self._stream = stream
        self._parts = parts
        self._result = result
        self._combine = combine
        self._bytes = memoryview(result.view(np.uint8).data) if result.size else memoryview(b"")
        self._step = max(CHUNK_BYTES // result.itemsize, 1)
        self._pieces = -(-result.size // self._step)
        self._last = stream.rank == stream.world_size - 1
        self._left = self._pieces
        self.done = self._pieces == 0
        if stream.rank == 0:
            for piece in range(self._pieces):
                # A worker without arrays has nothing to add; the first of all then starts with nothing at all.
                if parts:
                    fold(combine, [part[self._span(piece)] for part in parts], result[self._span(piece)])
                stream.send(_PARTIAL, piece, self._view(piece) if parts else memoryview(b""))

    def place_for(self, kind: int, piece: int, length: int) -> memoryview:
        view = self._view(piece)
        if kind not in (_PARTIAL, _RESULT) or length not in (len(view), 0):
            raise RoundOverError(f"the workers disagree: {length} bytes came in place of {len(view)}")
        self._empty = length == 0
        return view[:length]

    def arrived(self, kind: int, piece: int) -> None:
        stream, span = self._stream, self._span(piece)
        if kind == _PARTIAL:
            target = self._result[span]
            mine = [part[span] for part in self._parts]
            if self._empty and mine:
                fold(self._combine, mine, target)
            else:
                for part in mine:
                    self._combine(target, part, out=target)
            empty = self._empty and not mine
            if empty and self._last:
                raise UsageError("no worker brought an array to combine")
            # The last worker now holds the result; every other passes the partial one on.
            kind_out = _RESULT if self._last else _PARTIAL
            stream.send(kind_out, piece, memoryview(b"") if empty else self._view(piece))
            if self._last:
                self._count()
            return
        # The result has come round; the worker before the last is the last to need it.
        if stream.rank != stream.world_size - 2:
            stream.send(_RESULT, piece, self._view(piece))
        self._count()

    def _count(self) -> None:
        self._left -= 1
        self.done = self._left == 0

    def _span(self, piece: int) -> slice:
        return slice(piece * self._step, (piece + 1) * self._step)

    def _view(self, piece: int) -> memoryview:
        size = self._step * self._result.itemsize
        return self._bytes[piece * size : (piece + 1) * size]


class Broadcast(Operation):
    """The bytes go from the root round to the worker before it, piece by piece; the first piece says how many."""

    def __init__(self, stream: Stream, data: memoryview | None, root: int) -> None:
        self._stream = stream
        self._passes = (stream.rank + 1) % stream.world_size != root
        self._buffer = bytearray()
        self._size = bytearray(8)
        self._left = 0
        self.data: bytes | memoryview = b""
        self.done = data is not None
        if stream.rank == root:
            assert data is not None, "the root must bring the bytes"
            self.data = data
            self._size[:] = struct.pack("<Q", len(data))
            stream.send(_BYTES, 0, memoryview(self._size))
            for number, start in enumerate(range(0, len(data), CHUNK_BYTES), 1):
                stream.send(_BYTES, number, data[start : start + CHUNK_BYTES])

    def place_for(self, kind: int, piece: int, length: int) -> memoryview:
        if kind != _BYTES:
            raise RoundOverError("the workers disagree about what they do together")
        if piece == 0:
            return memoryview(self._size)
        return memoryview(self._buffer)[(piece - 1) * CHUNK_BYTES :][:length]

    def arrived(self, kind: int, piece: int) -> None:
        del kind
        if piece == 0:
            (size,) = struct.unpack("<Q", self._size)
            if size > BYTES_MAX:
                raise RoundOverError(f"{size} bytes were announced")
            self._buffer = bytearray(size)
            self._left = size
            view = memoryview(self._size)
        else:
            view = memoryview(self._buffer)[(piece - 1) * CHUNK_BYTES : piece * CHUNK_BYTES]
            self._left -= len(view)
        if self._passes:
            self._stream.send(_BYTES, piece, view)
        if self._left == 0:
            self.data = memoryview(self._buffer)
            self.done = True


class Gathering(Operation):
    """The bytes of every worker go round once; a piece is numbered by the rank that it comes from."""

    def __init__(self, stream: Stream, data: bytes) -> None:
        self._stream = stream
        self.found: list[bytes] = [b""] * stream.world_size
        self.found[stream.rank] = data
        self._buffer = bytearray()
        self._left = stream.world_size - 1
        self.done = False
        stream.send(_BYTES, stream.rank, memoryview(data))

    def place_for(self, kind: int, piece: int, length: int) -> memoryview:
        if kind != _BYTES or piece >= self._stream.world_size:
            raise RoundOverError("the workers disagree about what they do together")
        self._buffer = bytearray(length)
        return memoryview(self._buffer)

    def arrived(self, kind: int, piece: int) -> None:
        del kind
        self.found[piece] = bytes(self._buffer)
        if (self._stream.rank + 1) % self._stream.world_size != piece:
            self._stream.send(_BYTES, piece, memoryview(self.found[piece]))
        self._left -= 1
        self.done = self._left == 0


def fold(combine: Any, parts: Sequence[Array], result: Array) -> None:
    """Combine arrays from left to right into the result."""
    result[...] = parts[0]
    for part in parts[1:]:
        combine(result, part, out=result)
