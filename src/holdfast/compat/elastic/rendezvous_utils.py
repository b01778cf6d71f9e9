"""TorchElastic's `rendezvous.utils`: endpoints, settings and a timer, for rendezvous handlers written for it."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast.errors import UsageError
from holdfast.launcher.config import parse_config
from holdfast.rendezvous.api import RendezvousHandler, RendezvousParameters
from holdfast.rendezvous.driver import owns_address
from holdfast.rendezvous.native import HoldfastRendezvousHandler
from holdfast.rendezvous.static import create_handler, fix_ranks
from holdfast.wire.address import Endpoint, parse_endpoint

__all__ = ["parse_rendezvous_endpoint"]

#: How a host may begin.
_HOST = re.compile(r"[\w.:\[]")


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """Read `host` or `host:port`; nothing means localhost."""
    if endpoint and not _HOST.match(endpoint.strip()):
        raise UsageError(f"'{endpoint}' is not an endpoint: write HOST or HOST:PORT")
    found = parse_endpoint(endpoint or "", default_port)
    return found.host, found.port


def _parse_rendezvous_config(config_str: str) -> dict[str, str]:
    """Read `key=value,key=value`."""
    if config_str.strip().endswith(","):
        raise UsageError(f"'{config_str}' ends with a comma: write key=value,key=value")
    return parse_config(config_str)


def create_static_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make a static handler as TorchElastic does: the rank and the port must be given."""
    if params.get("rank") is None and params.get("node_rank") is None:
        raise UsageError("rank is absent in the rendezvous parameters: give --node-rank")
    if not params.endpoint or parse_rendezvous_endpoint(params.endpoint, -1)[1] < 0:
        raise UsageError(f"the endpoint '{params.endpoint}' has no port: give --master-addr and --master-port")
    return create_handler(params)


class StaticTCPRendezvous(HoldfastRendezvousHandler):
    """The static handler, for launchers that make one by themselves."""

    def __init__(
        self, master_addr: str, master_port: int, rank: int, world_size: int, run_id: str, timeout: int
    ) -> None:
        params = RendezvousParameters("static", "", run_id, world_size, world_size, timeout=timeout)
        super().__init__(fix_ranks(params, Endpoint(master_addr, master_port), rank))


def _matches_machine_hostname(host: str) -> bool:
    """Whether a name or an address means this machine, and no other."""
    return host not in ("0.0.0.0", "::") and owns_address(host)


def _delay(seconds: float | tuple[float, float]) -> None:
    """Sleep, for a random time where two ends are given."""
    time.sleep(random.uniform(*seconds) if isinstance(seconds, tuple) else seconds)


class _PeriodicTimer:
    """Calls a function again and again in a thread, from `start` until `cancel` or until it is garbage collected."""

    def __init__(self, interval: Any, function: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        self._name: str | None = None
        self._interval_s = interval.total_seconds()
        self._call = lambda: function(*args, **kwargs)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str | None:
        """The name of its thread."""
        return self._name

    def set_name(self, name: str) -> None:
        """Name its thread; before it is started."""
        if self._thread is not None:
            raise RuntimeError("The timer has already started.")
        self._name = name

    def start(self) -> None:
        """Begin."""
        if self._thread is not None:
            raise RuntimeError("The timer has already started.")
        name = self._name or "PeriodicTimer"
        work = (self._over, self._interval_s, self._call)
        self._thread = threading.Thread(target=_repeat, name=name, args=work, daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """End; returns when the function does not run any more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def __del__(self) -> None:
        self._over.set()


def _repeat(over: threading.Event, interval_s: float, call: Callable[[], None]) -> None:
    while not over.wait(interval_s):
        call()
