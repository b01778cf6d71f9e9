"""A ring of TCP connections between the workers of one round: collectives that can be ended at any moment.

It is for control data, for small models and for the demo, not for bandwidth: data takes one way round through every
worker. What it has that the big libraries have not: any thread may end an operation that is under way, at once, and
sums are made in a fixed order, so that the same numbers give the same bits whatever the number of workers.

Every worker listens on a port of its own for the worker before it, which the coordinator has told where that is. Both
sides of a connection prove that they belong to the round before anything else is said (`neighbours`). What follows is
neither authenticated nor encrypted: hashing all data on both sides would cost about as much as moving it. A program
that can write into TCP connections between hosts can change sums and states; keep such programs out of the network of
the job, or use a collective library over an encrypted network.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import RoundOverError, UsageError
from holdfast.timer.heartbeat import pause, resume
from holdfast.train.neighbours import Meeting
from holdfast.wire.forks import keep_from_children

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

CHUNK_BYTES = 256 * 1024
#: The longest piece of bytes that one worker may send to all.
BYTES_MAX = 1 << 40
OPEN_TIMEOUT_S = 60.0
#: Which operation of the round, what kind of piece, which piece, how many bytes.
_HEADER = struct.Struct("<IIIQ")
_PARTIAL, _RESULT, _BYTES = 1, 2, 3

_OPERATORS = ("sum", "max", "min")


class _Traffic(Protocol):
    """One operation: what it makes of the pieces that arrive, and whether it has all of them."""

    done: bool

    def place_for(self, kind: int, piece: int, length: int) -> memoryview:
        """Return where a piece's bytes go."""

    def arrived(self, kind: int, piece: int) -> None:
        """Go on with a piece that is complete."""


class Ring:
    """The collectives of one round; every member calls the same ones in the same order.

    An operation ends with `RoundOverError` when a neighbour is gone or `abort` is called.
    """

    def __init__(self, rank: int, world_size: int, timeout_s: float | None = None) -> None:
        self.rank = rank
        self.world_size = world_size
        #: How long one operation may take; None for as long as the round lasts.
        self.timeout_s = timeout_s
        self._deadline = float("inf")
        self._before: socket.socket | None = None
        self._after: socket.socket | None = None
        self._aborted = ""
        #: Readable once aborted; for waits on sockets that are not ours alone.
        self._abort_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = threading.Lock()
        self._operation = 0
        self._out: deque[memoryview] = deque()
        self._header = bytearray(_HEADER.size)
        self._poll_in = select.poll()
        self._poll_both = select.poll()

    # -- the connections -----------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        rank: int,
        world_size: int,
        listener: socket.socket,
        after: tuple[str, int],
        token: Callable[[int], bytes],
        *,
        until: Callable[[Ring], None] | None = None,
        timeout_s: float = OPEN_TIMEOUT_S,
    ) -> Ring:
        """Connect to the worker `after` this one, and let in the one before.

        `token` returns the secret that the connections to a rank are opened with. `until` is given the ring before
        anything is waited for, so that the wait can be aborted too.
        """
        ring = cls(rank, world_size)
        if until is not None:
            until(ring)
        if world_size > 1:
            try:
                ring._connect(listener, after, token, time.monotonic() + timeout_s)
            except OSError as error:
                reason = ring._aborted or f"the ring did not close: {error}"
                ring.close()
                raise RoundOverError(reason) from error
            except BaseException:
                ring.close()
                raise
        return ring

    def _connect(
        self, listener: socket.socket, after: tuple[str, int], token: Callable[[int], bytes], deadline: float
    ) -> None:
        mine, theirs = token(self.rank), token((self.rank + 1) % self.world_size)
        meeting = Meeting(listener, after, mine, theirs, self._abort_fd)
        before, after_ = meeting.wait(self._check, deadline)
        self._before, self._after = _tune(before), _tune(after_)
        self._poll_in.register(self._before, select.POLLIN)
        self._poll_both.register(self._before, select.POLLIN)
        self._poll_both.register(self._after, select.POLLOUT)
        self._check()  # an abort before this moment has closed nothing

    def neighbour_gone(self) -> bool:
        """Whether a neighbour has closed its connection; says so at once, also while none of ours reads or writes."""
        with self._closing:
            poll = select.poll()
            for sock in (self._before, self._after):
                if sock is not None:
                    poll.register(sock, select.POLLRDHUP)
            return bool(poll.poll(0))

    def abort(self, reason: str) -> None:
        """End whatever is under way, and all that would follow, with `RoundOverError`; callable from any thread."""
        self._aborted = self._aborted or reason
        with self._closing:  # a descriptor that is closed meanwhile may belong to something else by now
            if self._abort_fd >= 0:
                os.eventfd_write(self._abort_fd, 1)
            for sock in (self._before, self._after):
                if sock is not None:
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connections."""
        self._aborted = self._aborted or "the ring is closed"
        with self._closing:
            for sock in (self._before, self._after):
                if sock is not None:
                    sock.close()
            self._before = self._after = None
            if self._abort_fd >= 0:
                os.close(self._abort_fd)
                self._abort_fd = -1

    # -- operations ----------------------------------------------------------------------------------------------

    def all_reduce(self, array: Array, operator: str = "sum") -> Array:
        """Combine everybody's array, in the order of the ranks; returns the result, the same bits for all."""
        return self.all_reduce_parts([array], operator)

    def all_reduce_parts(self, parts: Sequence[Array], operator: str = "sum", like: Array | None = None) -> Array:
        """Combine everybody's arrays one after the other: those of rank 0 in their order, then those of rank 1, ...

        The result depends on the whole sequence of arrays and not on who brought which. A worker without any array
        must say by `like` what they look like.
        """
        import numpy as np

        if operator not in _OPERATORS:
            raise UsageError(f"'{operator}' is no way to combine arrays: use {', '.join(_OPERATORS)}")
        sample = parts[0] if parts else like
        if sample is None:
            raise UsageError("a worker without arrays must say what they look like: give like=")
        combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[operator]
        flat = [np.ascontiguousarray(part).reshape(-1) for part in parts]
        result = np.empty(sample.size, sample.dtype)
        if self.world_size == 1:
            _combine(combine, flat, result)
        else:
            self._run(_Reduction(self, flat, result, combine))
        return result.reshape(sample.shape)

    def broadcast(self, data: bytes | memoryview | None, root: int) -> bytes | memoryview:
        """Give everybody the bytes of the worker `root`; the others' `data` is ignored."""
        if self.world_size == 1:
            assert data is not None
            return data
        traffic = _Broadcast(self, memoryview(data).cast("B") if self.rank == root and data is not None else None, root)
        self._run(traffic)
        return traffic.data

    def all_gather(self, data: bytes) -> list[bytes]:
        """Give everybody everybody's bytes, in the order of the ranks."""
        if self.world_size == 1:
            return [data]
        traffic = _Gathering(self, data)
        self._run(traffic)
        return traffic.found

    def barrier(self) -> None:
        """Wait until all have come here."""
        self.all_gather(b"")

    # -- the engine ------------------------------------------------------------------------------------------------

    def send(self, kind: int, piece: int, data: memoryview) -> None:
        """Queue one piece for the next worker."""
        self._out.append(memoryview(_HEADER.pack(self._operation, kind, piece, len(data))))
        if len(data):
            self._out.append(data)

    def _run(self, traffic: _Traffic) -> None:
        """Send and receive until the operation is done; reading never waits for writing, so no ring of waits forms."""
        self._check()
        self._deadline = float("inf") if self.timeout_s is None else time.monotonic() + self.timeout_s
        try:
            self._pump(traffic)
        except OSError as error:
            raise RoundOverError(self._aborted or f"a neighbour in the ring is gone: {error}") from error
        finally:
            self._operation += 1

    def _pump(self, traffic: _Traffic) -> None:
        before, after = self._before, self._after
        assert before is not None
        assert after is not None
        header, have = memoryview(self._header), 0
        body, kind, piece = memoryview(b""), 0, 0
        while not traffic.done or self._out:
            if self._out and self._push(after):
                continue
            if traffic.done:
                self._wait(self._poll_both)
                continue
            try:
                if have < _HEADER.size:
                    got = before.recv_into(header[have:])
                    have += got
                else:
                    got = before.recv_into(body)
                    body = body[got:]
            except BlockingIOError:
                self._wait(self._poll_both if self._out else self._poll_in)
                continue
            if got == 0:
                raise RoundOverError(self._aborted or "the worker before this one in the ring is gone")
            if have == _HEADER.size and not len(body):
                if not kind:
                    kind, piece, body = self._accept_piece(traffic)
                    if len(body):
                        continue
                traffic.arrived(kind, piece)
                have, kind = 0, 0

    def _push(self, after: socket.socket) -> bool:
        """Write what goes; says whether anything did."""
        try:
            sent = after.send(self._out[0])
        except BlockingIOError:
            return False
        if sent == len(self._out[0]):
            self._out.popleft()
        else:
            self._out[0] = self._out[0][sent:]
        return True

    def _accept_piece(self, traffic: _Traffic) -> tuple[int, int, memoryview]:
        operation, kind, piece, length = _HEADER.unpack(self._header)
        if operation != self._operation or not kind:
            raise RoundOverError(f"the workers disagree: operation {operation} came in place of {self._operation}")
        if length > BYTES_MAX:
            raise RoundOverError(f"a piece of {length} bytes came round")
        return kind, piece, traffic.place_for(kind, piece, length)

    def _wait(self, poll: select.poll) -> None:
        self._check()
        left = None if self._deadline == float("inf") else max(self._deadline - time.monotonic(), 0.0) * 1000
        pause()  # a worker that waits for another one does not hang
        ready = poll.poll(left)
        resume()
        if not ready:
            raise RoundOverError(f"the other workers did not come to the same operation within {self.timeout_s:g} s")

    def _check(self) -> None:
        if self._aborted:
            raise RoundOverError(self._aborted)


class _Reduction:
    """Partial results go from the first worker to the last, each adding its own; the result goes round from there."""

    def __init__(self, ring: Ring, parts: list[Array], result: Array, combine: Any) -> None:
        import numpy as np

        self._ring = ring
        self._parts = parts
        self._result = result
        self._combine = combine
        self._bytes = memoryview(result.view(np.uint8).data) if result.size else memoryview(b"")
        self._step = max(CHUNK_BYTES // result.itemsize, 1)
        self._pieces = -(-result.size // self._step)
        self._last = ring.rank == ring.world_size - 1
        self._left = self._pieces
        self.done = self._pieces == 0
        if ring.rank == 0:
            for piece in range(self._pieces):
                # A worker without arrays has nothing to add; the first of all then starts with nothing at all.
                if parts:
                    _combine(combine, [part[self._span(piece)] for part in parts], result[self._span(piece)])
                ring.send(_PARTIAL, piece, self._view(piece) if parts else memoryview(b""))

    def place_for(self, kind: int, piece: int, length: int) -> memoryview:
        view = self._view(piece)
        if kind not in (_PARTIAL, _RESULT) or length not in (len(view), 0):
            raise RoundOverError(f"the workers disagree: {length} bytes came in place of {len(view)}")
        self._empty = length == 0
        return view[:length]

    def arrived(self, kind: int, piece: int) -> None:
        ring, span = self._ring, self._span(piece)
        if kind == _PARTIAL:
            target = self._result[span]
            mine = [part[span] for part in self._parts]
            if self._empty and mine:
                _combine(self._combine, mine, target)
            else:
                for part in mine:
                    self._combine(target, part, out=target)
            empty = self._empty and not mine
            if empty and self._last:
                raise UsageError("no worker brought an array to combine")
            # The last worker now holds the result; every other passes the partial one on.
            kind_out = _RESULT if self._last else _PARTIAL
            ring.send(kind_out, piece, memoryview(b"") if empty else self._view(piece))
            if self._last:
                self._count()
            return
        # The result has come round; the worker before the last is the last to need it.
        if ring.rank != ring.world_size - 2:
            ring.send(_RESULT, piece, self._view(piece))
        self._count()

    def _count(self) -> None:
        self._left -= 1
        self.done = self._left == 0

    def _span(self, piece: int) -> slice:
        return slice(piece * self._step, (piece + 1) * self._step)

    def _view(self, piece: int) -> memoryview:
        size = self._step * self._result.itemsize
        return self._bytes[piece * size : (piece + 1) * size]


class _Broadcast:
    """The bytes go from the root round to the worker before it, piece by piece; the first piece says how many."""

    def __init__(self, ring: Ring, data: memoryview | None, root: int) -> None:
        self._ring = ring
        self._passes = (ring.rank + 1) % ring.world_size != root
        self._buffer = bytearray()
        self._size = bytearray(8)
        self._left = 0
        self.data: bytes | memoryview = b""
        self.done = data is not None
        if ring.rank == root:
            assert data is not None, "the root must bring the bytes"
            self.data = data
            self._size[:] = struct.pack("<Q", len(data))
            ring.send(_BYTES, 0, memoryview(self._size))
            for number, start in enumerate(range(0, len(data), CHUNK_BYTES), 1):
                ring.send(_BYTES, number, data[start : start + CHUNK_BYTES])

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
            self._ring.send(_BYTES, piece, view)
        if self._left == 0:
            self.data = memoryview(self._buffer)
            self.done = True


class _Gathering:
    """Everybody's bytes go round once; a piece is numbered by the rank that it comes from."""

    def __init__(self, ring: Ring, data: bytes) -> None:
        self._ring = ring
        self.found: list[bytes] = [b""] * ring.world_size
        self.found[ring.rank] = data
        self._buffer = bytearray()
        self._left = ring.world_size - 1
        self.done = False
        ring.send(_BYTES, ring.rank, memoryview(data))

    def place_for(self, kind: int, piece: int, length: int) -> memoryview:
        if kind != _BYTES or piece >= self._ring.world_size:
            raise RoundOverError("the workers disagree about what they do together")
        self._buffer = bytearray(length)
        return memoryview(self._buffer)

    def arrived(self, kind: int, piece: int) -> None:
        del kind
        self.found[piece] = bytes(self._buffer)
        if (self._ring.rank + 1) % self._ring.world_size != piece:
            self._ring.send(_BYTES, piece, memoryview(self.found[piece]))
        self._left -= 1
        self.done = self._left == 0


def make_token(secret: bytes, nonce: str, rank: int) -> bytes:
    """Return the secret of all connections to a rank in one round; it is proven and never sent."""
    return hmac.new(secret or b"open", f"ring/{nonce}/{rank}".encode(), hashlib.sha256).digest()


def listen(address: str = "") -> socket.socket:
    """Open a port for neighbours, on one address or on all of this host."""
    if not address and socket.has_dualstack_ipv6():
        everywhere = socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
        return keep_from_children(everywhere)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return keep_from_children(socket.create_server((address, 0), family=family, backlog=64))


def _tune(sock: socket.socket) -> socket.socket:
    keep_from_children(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


def _combine(combine: Any, parts: Sequence[Array], result: Array) -> None:
    """Combine arrays from left to right into the result."""
    result[...] = parts[0]
    for part in parts[1:]:
        combine(result, part, out=result)
