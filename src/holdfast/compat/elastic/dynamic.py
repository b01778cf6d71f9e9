"""TorchElastic's rendezvous over any backend that keeps one text and tells whether it has changed.

`gathering` decides; this reads, writes, waits, and beats in a thread of its own. The text is JSON, never a pickle.
The native backend pushes and needs none of this; here every node polls.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

from holdfast.compat.elastic.gathering import Action, Done, Gathering, GatheringMachine, Node, Rules, Wait, Write
from holdfast.errors import HoldfastError, RendezvousError, RendezvousTimeoutError, UsageError
from holdfast.facts import facts
from holdfast.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from holdfast.store.prefix import PrefixStore

#: How often a node that waits looks again.
LOOK_S = 0.3
#: A node whose write came too late tries again after up to this time.
OVERTAKEN_S = 0.05
#: How long a node that gives up tries to take itself out of the state.
LAST_WORD_S = 1.0
TIMEOUTS_S = {"join": 600, "last_call": 30, "close": 30, "heartbeat": 5}

Token = Any
_local_ids = count()


class RendezvousBackend(ABC):
    """Keeps the state of a rendezvous: some bytes, and a token that changes with them."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The backend's name."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token, or None if there is none yet.

        Raises `RendezvousConnectionError` or `RendezvousStateError`.
        """

    @abstractmethod
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Set the state if it still has this token, or if there is none yet and no token is given.

        Returns the state as it is now, its token, and whether it was set; or None if it was not and is not known.
        """


class RendezvousTimeout:
    """How long the parts of a rendezvous may take."""

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
    ) -> None:
        given = {"join": join, "last_call": last_call, "close": close, "heartbeat": heartbeat}
        self._times = {
            name: value if value is not None else timedelta(seconds=TIMEOUTS_S[name]) for name, value in given.items()
        }
        for name, value in self._times.items():
            if value <= timedelta(0):
                raise UsageError(f"The {name} timeout ({value}) must be positive.")

    @property
    def join(self) -> timedelta:
        """How long to wait until enough nodes have come."""
        return self._times["join"]

    @property
    def last_call(self) -> timedelta:
        """How long to wait for more, once enough have come."""
        return self._times["last_call"]

    @property
    def close(self) -> timedelta:
        """How long closing may take."""
        return self._times["close"]

    @property
    def heartbeat(self) -> timedelta:
        """How long one beat may take."""
        return self._times["heartbeat"]


@dataclass(repr=False, eq=False, frozen=True)
class RendezvousSettings:
    """What all nodes of a run agree on."""

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int


class StateHolder:
    """The shared state, and how this node changes it: read, decide, write if no other node was faster."""

    def __init__(self, backend: RendezvousBackend) -> None:
        self._backend = backend
        self._lock = threading.RLock()  # the beat comes from a thread of its own

    def read(self) -> tuple[Gathering, Token | None]:
        """Return the state as it is now."""
        with self._lock:
            found = self._backend.get_state()
        return (Gathering(), None) if found is None else (Gathering.decode(found[0]), found[1])

    def settle(self, decide: Callable[[Gathering, float], Action], timeout_s: float) -> Done | Wait:
        """Change the state until `decide` has nothing more to change.

        Raises `RendezvousTimeoutError` if the backend has not taken a change within this time.
        """
        until = time.monotonic() + timeout_s
        while True:
            with self._lock:
                state, token = self.read()
                action = decide(state, time.monotonic())
                if not isinstance(action, Write):
                    return action
                answer = self._backend.set_state(action.gathering.encode(), token)
            if answer is None or not answer[2]:
                if time.monotonic() >= until:
                    raise RendezvousTimeoutError(
                        f"the rendezvous backend '{self._backend.name}' did not take this node's change of the shared "
                        "state in time"
                    )
                time.sleep(random.uniform(0, OVERTAKEN_S))


class DynamicRendezvousHandler(RendezvousHandler):
    """One node's handler over a `RendezvousBackend`; make it with `from_backend`."""

    def __init__(
        self, node: Node, settings: RendezvousSettings, backend_name: str, store: Any, state_holder: StateHolder
    ) -> None:
        if not settings.run_id:
            raise UsageError("The run id must be a non-empty string.")
        if settings.min_nodes < 1:
            raise UsageError(f"The minimum number of nodes ({settings.min_nodes}) must be greater than zero.")
        if settings.max_nodes < settings.min_nodes:
            raise UsageError(
                f"The maximum number of nodes ({settings.max_nodes}) must be greater than or equal to the minimum "
                f"number of nodes ({settings.min_nodes})."
            )
        interval_s = settings.keep_alive_interval.total_seconds()
        lease_s = interval_s * settings.keep_alive_max_attempt
        last_call_s = settings.timeout.last_call.total_seconds()
        self._node = node
        self._settings = settings
        self._backend_name = backend_name
        self._store = store
        self._state = state_holder
        rules = Rules(settings.min_nodes, settings.max_nodes, last_call_s, lease_s)
        self._machine = GatheringMachine(node, rules)
        self._beating: threading.Thread | None = None
        self._over = threading.Event()

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Any,
        backend: RendezvousBackend,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: int = 5,
        keep_alive_max_attempt: int = 3,
    ) -> DynamicRendezvousHandler:
        """Make a handler over a backend; `store` is what the nodes of a round share."""
        node = Node(local_addr or socket.getfqdn(), os.getpid(), next(_local_ids))
        settings = RendezvousSettings(
            run_id,
            min_nodes,
            max_nodes,
            timeout or RendezvousTimeout(),
            keep_alive_interval=timedelta(seconds=keep_alive_interval),
            keep_alive_max_attempt=keep_alive_max_attempt,
        )
        return cls(node, settings, backend.name, store, StateHolder(backend))

    @property
    def settings(self) -> RendezvousSettings:
        """What all nodes of the run agree on."""
        return self._settings

    @property
    def use_agent_store(self) -> bool:
        """Workers of each round get a store of their own at the master address."""
        return False

    def get_backend(self) -> str:
        """Return the backend's name."""
        return self._backend_name

    def get_run_id(self) -> str:
        """Return the id of the run."""
        return self._settings.run_id

    # -- rounds ------------------------------------------------------------------------------------------------------

    def next_rendezvous(self) -> RendezvousInfo:
        """Leave the round, if in one, and block until the next one is agreed.

        Raises `RendezvousTimeoutError` after the join timeout, also if the backend takes no change.
        """
        until = time.monotonic() + self._settings.timeout.join.total_seconds()
        self._state.settle(self._machine.leave, until - time.monotonic())
        self._begin_to_beat()
        try:
            return self._info(self._join(until))
        except BaseException:
            self._stop_beating()
            with contextlib.suppress(HoldfastError):
                self._state.settle(lambda state, now: self._machine.leave(state, now, for_good=True), LAST_WORD_S)
            raise

    def _info(self, gathering: Gathering) -> RendezvousInfo:
        rank = gathering.participants[self._machine.name]
        store = _prefixed(f"torch.rendezvous.{self._settings.run_id}.{gathering.round}", self._store)
        master = RendezvousStoreInfo.build(rank, store, self._node.addr)
        return RendezvousInfo(store, rank, gathering.size, master)

    def _join(self, until: float) -> Gathering:
        while True:
            action = self._state.settle(self._machine.join, until - time.monotonic())
            if isinstance(action, Done):
                return action.gathering
            if time.monotonic() >= until:
                raise RendezvousTimeoutError(
                    f"no round was agreed within {self._settings.timeout.join.total_seconds():g} s: {action.sentence}"
                )
            self._over.wait(LOOK_S)

    def is_closed(self) -> bool:
        """Return whether the run is over."""
        return self._state.read()[0].closed

    def set_closed(self) -> None:
        """End the run for all nodes."""
        self._state.settle(self._machine.close, self._settings.timeout.close.total_seconds())

    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait to join or were lost: reasons to form another round."""
        return self._machine.nodes_waiting(self._state.read()[0])

    def shutdown(self) -> bool:
        """Close the run and stop beating; true when the others could be told."""
        self._stop_beating()
        try:
            self.set_closed()
        except RendezvousError as error:
            facts.warn("rendezvous_unreachable", f"the other nodes could not be told that the run is over: {error}")
            return False
        return True

    # -- the beat ----------------------------------------------------------------------------------------------------

    def _begin_to_beat(self) -> None:
        if self._beating is None:
            self._over.clear()
            self._beating = threading.Thread(target=self._beat, name="holdfast rendezvous beat", daemon=True)
            self._beating.start()

    def _stop_beating(self) -> None:
        thread, self._beating = self._beating, None
        self._over.set()
        if thread is not None:
            thread.join()

    def _beat(self) -> None:
        """Beat until told to stop; a failed beat is followed by the next."""
        while not self._over.wait(self._settings.keep_alive_interval.total_seconds()):
            try:
                self._machine.beat()
                self._state.settle(self._machine.keep_alive, self._settings.timeout.heartbeat.total_seconds())
            except RendezvousError as error:
                facts.warn("rendezvous_unreachable", f"this node could not renew its lease: {error}")
            except Exception as error:  # noqa: BLE001 - a plugin's backend may raise anything; the node must go on beating
                facts.unexpected("the rendezvous beat", error, "the next beat is sent all the same")


def create_handler(store: Any, backend: RendezvousBackend, params: RendezvousParameters) -> DynamicRendezvousHandler:
    """Make a handler by the settings that TorchElastic's `--rdzv-conf` knows."""
    timeout = RendezvousTimeout(
        _seconds(params, "join_timeout"),
        _seconds(params, "last_call_timeout"),
        _seconds(params, "close_timeout"),
        _seconds(params, "heartbeat_timeout"),
    )
    interval = params.get_as_int("keep_alive_interval", 5)
    attempts = params.get_as_int("keep_alive_max_attempt", 3)
    if interval is None or attempts is None:
        raise UsageError("keep_alive_interval and keep_alive_max_attempt must be numbers")
    return DynamicRendezvousHandler.from_backend(
        params.run_id,
        store,
        backend,
        params.min_nodes,
        params.max_nodes,
        params.local_addr,
        timeout,
        keep_alive_interval=interval,
        keep_alive_max_attempt=attempts,
    )


def _seconds(params: RendezvousParameters, key: str) -> timedelta | None:
    value = params.get_as_float(key)
    return None if value is None else timedelta(seconds=value)


def _prefixed(prefix: str, store: Any) -> Any:
    """A part of a store; one of torch's stays one of torch's, which is what torch asks for."""
    if any(each.__module__.partition(".")[0] == "torch" for each in type(store).__mro__):
        import torch.distributed

        dist: Any = torch.distributed  # which does not say what it exports
        return dist.PrefixStore(prefix, store)
    return PrefixStore(prefix, store)
