"""TorchElastic's `control_plane`: a worker's main function, with its errors recorded and torch's worker server."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from holdfast.failures import get_error_handler, record

__all__ = ["TORCH_WORKER_SERVER_SOCKET", "record", "worker_main"]

TORCH_WORKER_SERVER_SOCKET = "TORCH_WORKER_SERVER_SOCKET"
ANSWER_TIMEOUT_S = 5.0


@contextmanager
def worker_main() -> Iterator[None]:
    """Wrap a worker's main function and record its exceptions; also a decorator.

    If `TORCH_WORKER_SERVER_SOCKET` names a socket, torch's server answers there meanwhile.
    """
    handler = get_error_handler()
    handler.initialize()
    path = os.environ.get(TORCH_WORKER_SERVER_SOCKET)
    with _worker_server(path) if path is not None else nullcontext():
        try:
            yield
        except Exception as error:
            handler.record_exception(error)
            raise


@contextmanager
def _worker_server(path: str) -> Iterator[None]:
    from torch._C._distributed_c10d import _WorkerServer

    server = _WorkerServer(path)
    _wait_for_answer(path)
    try:
        yield
    finally:
        server.shutdown()


def _wait_for_answer(path: str) -> None:
    """Have the server answer once: one that is shut down before it has begun hangs for ever."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(ANSWER_TIMEOUT_S)
        sock.connect(path)
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        sock.recv(1)
