"""The interface for users: handlers, their results and their parameters.

The names, arguments and meanings are those of TorchElastic, so that a handler written for it works here and the
other way round.
"""

from __future__ import annotations

import inspect
import socket
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.errors import RendezvousError, UsageError
from holdfast.store.api import Store
from holdfast.text import check_text
from holdfast.wire.ports import HeldPort

_MISSING = object()
_TRUE = frozenset({"1", "true", "t", "yes", "y"})
_FALSE = frozenset({"0", "false", "f", "no", "n"})


@dataclass(frozen=True)
class RendezvousStoreInfo:
    """Where rank 0 of a round listens for its peers."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"

    master_addr: str
    master_port: int

    @staticmethod
    def build(
        rank: int, store: Store, local_addr: str | None = None, server_port: int | None = None
    ) -> RendezvousStoreInfo:
        """Agree through a store: rank 0 publishes its address and a port, all nodes read them."""
        if rank == 0:
            port = server_port
            if port is None:
                held = HeldPort()
                port = held.port
                held.close()
            store.set(RendezvousStoreInfo.MASTER_ADDR_KEY, (local_addr or socket.getfqdn()).encode())
            store.set(RendezvousStoreInfo.MASTER_PORT_KEY, str(port).encode())
        return RendezvousStoreInfo(
            store.get(RendezvousStoreInfo.MASTER_ADDR_KEY).decode(),
            int(store.get(RendezvousStoreInfo.MASTER_PORT_KEY)),
        )


class RendezvousInfo:
    """What a rendezvous gives each node: a shared store, its rank, the number of nodes, and rank 0's address."""

    def __init__(
        self, store: Store, rank: int, world_size: int, bootstrap_store_info: RendezvousStoreInfo | None
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._bootstrap_store_info = bootstrap_store_info

    def __repr__(self) -> str:
        return f"RendezvousInfo(rank={self._rank}, world_size={self._world_size}, {self._bootstrap_store_info})"

    @property
    def store(self) -> Store:
        """The store that all nodes of the round share."""
        return self._store

    @property
    def rank(self) -> int:
        """This node's rank."""
        return self._rank

    @property
    def world_size(self) -> int:
        """How many nodes take part."""
        return self._world_size

    @property
    def bootstrap_store_info(self) -> RendezvousStoreInfo | None:
        """Where the round's rank 0 listens, if the handler knows it."""
        return self._bootstrap_store_info


class RendezvousHandler(ABC):
    """Brings nodes together; one per agent. Extend this to write a rendezvous of your own."""

    @abstractmethod
    def get_backend(self) -> str:
        """Return the backend's name."""

    @property
    def use_agent_store(self) -> bool:
        """Whether workers should connect to a store that an agent hosts at the master address."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Block until a round is agreed and return this node's part in it.

        Raises `RendezvousClosedError`, `RendezvousConnectionError`, `RendezvousStateError` or
        `RendezvousTimeoutError`. A handler may also return the older tuple (store, rank, world_size).
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Return whether the run is over; once true it stays true."""

    @abstractmethod
    def set_closed(self) -> None:
        """End the run for all nodes."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait to join the round; if there are any, an agent that polls asks for a new round."""

    @abstractmethod
    def get_run_id(self) -> str:
        """Return the id of the run."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Close the run and release everything; return whether that worked."""


def as_rendezvous_info(result: RendezvousInfo | tuple[Any, ...]) -> RendezvousInfo:
    """Convert the result of any handler: a `RendezvousInfo`, ours or a similar one, or the older 3-tuple."""
    if isinstance(result, tuple):
        if len(result) != 3:
            raise RendezvousError(
                f"next_rendezvous returned a tuple of {len(result)}; it must be (store, rank, world_size)"
            )
        store, rank, world_size = result
        return RendezvousInfo(store, rank, world_size, None)
    if all(hasattr(result, name) for name in ("store", "rank", "world_size")):
        return result
    raise RendezvousError(f"next_rendezvous returned {type(result).__name__}; it must be a RendezvousInfo")


class RendezvousParameters:
    """Everything that a backend needs to make a handler; further settings are read with `get`."""

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not backend:
            raise UsageError("the rendezvous backend must be named, for instance 'holdfast' or 'static'")
        if not isinstance(min_nodes, int) or min_nodes < 1:
            raise UsageError(f"the minimum number of nodes must be at least 1, not {min_nodes}")
        if not isinstance(max_nodes, int) or max_nodes < min_nodes:
            raise UsageError(f"the maximum number of nodes, {max_nodes}, must be at least the minimum, {min_nodes}")
        for name, text in (
            ("the run id (--rdzv-id)", run_id),
            ("the endpoint (--rdzv-endpoint)", endpoint),
            ("the local address (--local-addr)", local_addr or ""),
        ):
            check_text(name, text)
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config: dict[str, Any] = kwargs

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting as it was given."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """Return a setting as a bool: 1, true, t, yes, y or their opposites."""
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and value in (0, 1):
            return bool(value)
        if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
            return value.lower() in _TRUE
        raise UsageError(f"the rendezvous setting '{key}' must be true or false, not {value!r}")

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """Return a setting as a whole number."""
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except (TypeError, ValueError):
            raise UsageError(f"the rendezvous setting '{key}' must be a whole number, not {value!r}") from None

    def get_as_float(self, key: str, default: float | None = None) -> float | None:
        """Return a setting as a number, which may be a fraction."""
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            raise UsageError(f"the rendezvous setting '{key}' must be a number, not {value!r}") from None


def has_all_of(protocol: type, handler: object) -> bool:
    """Return whether a handler can do all that a protocol names; no property is evaluated for it."""
    names = {name for name in (*vars(protocol), *protocol.__annotations__) if not name.startswith("_")}
    return all(inspect.getattr_static(handler, name, _MISSING) is not _MISSING for name in names)
