"""Serving the page on loopback."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from holdfast.errors import UsageError
from holdfast.page.app import make_access, make_app
from holdfast.page.watcher import Watcher

HOST = "127.0.0.1"


class PageServer:
    """The page at a port of this machine; `link` opens it once."""

    def __init__(
        self, port: int = 0, *, allow_kill: bool = False, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._tell = tell
        self._access = make_access()
        self._socket = _bind(port)
        self.port: int = self._socket.getsockname()[1]
        app = make_app(Watcher(allow_kill=allow_kill), self._access, self._on_used)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1, ws="none"
        )
        self._server = uvicorn.Server(config)

    @property
    def link(self) -> str:
        """The address that opens the page; it works once, and there is another one afterwards."""
        return f"http://{HOST}:{self.port}/?token={self._access.token}"

    def run(self) -> None:
        """Serve until Ctrl-C or SIGTERM."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """End a server that runs; from any thread."""
        self._server.should_exit = True

    def _on_used(self) -> None:
        self._tell(f"the link was used; for another browser: {self.link}")


def _bind(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()  # the link is told before the server runs: a browser may come at once
    except OSError as error:
        listener.close()
        raise UsageError(f"port {port} cannot be used: {error.strerror}; --port 0 takes a free one") from None
    return listener
