"""A ring of TCP connections between the workers of one round: collectives that can be ended at any moment.

It is for control data, for small models and for the demo, not for bandwidth: data takes one way round through every
worker. Unlike the big libraries, any thread can end a running operation at once, and
sums are made in a fixed order, so that the same numbers give the same bits for any number of workers.

Every worker listens on a port of its own for the worker before it, which gets the address from the coordinator. Both
sides of a connection first prove that they belong to the round (`neighbours`). The data that follow are
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
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import RoundOverError, UsageError
from holdfast.timer.heartbeat import pause, resume
from holdfast.train.neighbours import Meeting
from holdfast.train.operations import Broadcast, Gathering, Operation, Reduction, Stream, fold
from holdfast.wire.forks import keep_from_children
from holdfast.wire.silence import watch_silence

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

OPEN_TIMEOUT_S = 60.0

_OPERATORS = ("sum", "max", "min")


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
        self._stream = Stream(rank, world_size)
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
        """Connect to the worker `after` this one, and accept the one before.

        `token` returns the secret for the connections to a rank. `until` gets the ring before
        the wait begins, so that the wait can be aborted too.
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
        """End the running operation, and all later ones, with `RoundOverError`; callable from any thread."""
        self._aborted = self._aborted or reason
        with self._closing:  # a descriptor that is closed meanwhile may belong to something else by now
            if self._abort_fd >= 0:
                os.eventfd_write(self._abort_fd, 1)
            for sock in (self._before, self._after):
                if sock is not None:
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the connections."""
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
        """Combine the arrays of all workers, in the order of the ranks; return the result, the same bits for all."""
        return self.all_reduce_parts([array], operator)

    def all_reduce_parts(self, parts: Sequence[Array], operator: str = "sum", like: Array | None = None) -> Array:
        """Combine all workers' arrays one after the other: those of rank 0 in their order, then those of rank 1, ...

        The result depends on the whole sequence of arrays, not on how they are split over workers. A worker without any
        array gives one of the same shape and type as `like`.
        """
        import numpy as np

        if operator not in _OPERATORS:
            raise UsageError(f"'{operator}' is not a way to combine arrays: use {', '.join(_OPERATORS)}")
        sample = parts[0] if parts else like
        if sample is None:
            raise UsageError("a worker without arrays must say what they look like: give like=")
        combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[operator]
        flat = [np.ascontiguousarray(part).reshape(-1) for part in parts]
        result = np.empty(sample.size, sample.dtype)
        if self.world_size == 1:
            fold(combine, flat, result)
        else:
            self._run(Reduction(self._stream, flat, result, combine))
        return result.reshape(sample.shape)

    def broadcast(self, data: bytes | memoryview | None, root: int) -> bytes | memoryview:
        """Give all workers the bytes of the worker `root`; the others' `data` is ignored."""
        if self.world_size == 1:
            assert data is not None
            return data
        mine = memoryview(data).cast("B") if self.rank == root and data is not None else None
        operation = Broadcast(self._stream, mine, root)
        self._run(operation)
        return operation.data

    def all_gather(self, data: bytes) -> list[bytes]:
        """Give all workers the bytes of every worker, in the order of the ranks."""
        if self.world_size == 1:
            return [data]
        operation = Gathering(self._stream, data)
        self._run(operation)
        return operation.found

    def barrier(self) -> None:
        """Wait until all workers have called this."""
        self.all_gather(b"")

    # -- the engine ----------------------------------------------------------------------------------------------------

    def _run(self, operation: Operation) -> None:
        """Send and receive until the operation is done; reading never waits for writing, so no ring of waits forms."""
        self._check()
        self._deadline = float("inf") if self.timeout_s is None else time.monotonic() + self.timeout_s
        try:
            self._pump(operation)
        except OSError as error:
            raise RoundOverError(self._aborted or f"a neighbour in the ring is gone: {error}") from error
        finally:
            self._stream.end()

    def _pump(self, operation: Operation) -> None:
        stream, before, after = self._stream, self._before, self._after
        assert before is not None
        assert after is not None
        while not operation.done or stream.out:
            if stream.out and self._push(after):
                continue
            if operation.done:
                self._wait(self._poll_both)
                continue
            try:
                got = before.recv_into(stream.wanted())
            except BlockingIOError:
                self._wait(self._poll_both if stream.out else self._poll_in)
                continue
            if got == 0:
                raise RoundOverError(self._aborted or "the worker before this one in the ring is gone")
            stream.got(got, operation)

    def _push(self, after: socket.socket) -> bool:
        """Write as much as possible; return whether anything was written."""
        try:
            self._stream.wrote(after.send(self._stream.out[0]))
        except BlockingIOError:
            return False
        return True

    def _wait(self, poll: select.poll) -> None:
        self._check()
        left = None if self._deadline == float("inf") else max(self._deadline - time.monotonic(), 0.0) * 1000
        pause()  # waiting for another worker is not a hang
        ready = poll.poll(left)
        resume()
        if not ready:
            raise RoundOverError(f"the other workers did not come to the same operation within {self.timeout_s:g} s")

    def _check(self) -> None:
        if self._aborted:
            raise RoundOverError(self._aborted)


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
    watch_silence(sock)
    sock.setblocking(False)
    return sock
