"""Membership: how a worker that trains in process takes part in rounds.

Every worker is a node of the workers' own run. It asks for a round, hears at once when the round is over, and asks
again, all without leaving its process. Newcomers never break a round; the members admit them between two steps.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from holdfast.coordinator.messages import Cause, Place
from holdfast.errors import UsageError
from holdfast.facts import facts
from holdfast.rendezvous.api import RendezvousParameters, has_all_of
from holdfast.rendezvous.machine import MemberEffect, NewcomersWait, RoundBroken, RoundSealed, RunEnded
from holdfast.rendezvous.registry import get_rendezvous_handler
from holdfast.store.client import StoreClient
from holdfast.store.environ import ENDPOINT_VARIABLE, ETCD_VARIABLE, MAX_WORKERS_VARIABLE, STANDBY_VARIABLE
from holdfast.timer.heartbeat import beats, heartbeat, pause
from holdfast.train import events
from holdfast.train.events import TrainerEvent
from holdfast.train.given import Meeting
from holdfast.train.ring import listen, make_token
from holdfast.workers.plan import MEMBER_FILE_VARIABLE

#: The id of the workers' run is that of their agents' run with this suffix.
RUN_SUFFIX = ".workers"
#: The first round waits this long for all expected workers.
GATHER_S = 60.0
#: A coordinator that is opened anew waits this long for workers that do not come back.
RECOVERY_S = 2.5
#: How long the end of a training waits for a coordinator that cannot be reached.
CLOSE_TIMEOUT_S = 30.0
#: How long it waits before it says so.
CLOSE_TOLD_AFTER_S = 2.0


@dataclass(frozen=True)
class RoundView:
    """One round as a worker sees it."""

    number: int
    rank: int
    world_size: int
    #: Keys of this round alone.
    store: StoreClient
    #: Where the others reach this worker.
    address: str
    #: Where the next worker in the order of ranks listens.
    peer: tuple[str, int]
    #: The secret of this round's connections to a rank.
    token: Callable[[int], bytes]


class Break:
    """Whether the present round is over, and what must end at once when it is."""

    def __init__(self) -> None:
        #: Why the round is over; None while it runs.
        self.reason: str | None = "there has been no round yet"
        self._breakers: list[Callable[[str], None]] = []
        self._told = threading.Event()
        self._lock = threading.Lock()

    def renew(self) -> None:
        """Wait for the end of another round."""
        with self._lock:
            self._breakers.clear()
            self._told.clear()
            self.reason = None

    def call(self, breaker: Callable[[str], None]) -> None:
        """Have `breaker` called with the reason when the round is over; at once where it is already."""
        with self._lock:
            self._breakers.append(breaker)
            reason = self.reason
        if reason is not None:
            breaker(reason)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the news that the round is over; says whether it came in time."""
        return self._told.wait(timeout_s) if self.reason is None else True

    def tell(self, reason: str) -> None:
        """End what must end; the first reason stands."""
        with self._lock:
            if self.reason is None:
                self.reason = reason
            breakers, self._breakers = self._breakers, []
        self._told.set()
        for breaker in breakers:
            try:
                breaker(reason)
            except Exception as error:  # noqa: BLE001 - the others must still be told
                facts.warn("breaker_failed", f"cleaning up after the round failed: {error!r}")


class Membership:
    """Takes part in rounds until the training is over."""

    def __init__(self, params: RendezvousParameters) -> None:
        handler: object = get_rendezvous_handler(params)
        if not can_meet(handler):
            raise UsageError(f"workers cannot meet through '{params.backend}': use holdfast or etcd")
        self._handler = handler
        self._handler.listen(self._on_effect)
        self._handler.count_steps(beats)
        #: Where the worker before this one connects; one port for all rounds, open before the first is asked for.
        self.listener: socket.socket | None = listen()
        self._handler.listen_for_peers(self.listener.getsockname()[1])
        self._break = Break()
        self._over = threading.Event()
        #: The coordinator's news, which the trainer handles before anything else.
        self.news: queue.SimpleQueue[TrainerEvent] = queue.SimpleQueue()
        self.newcomers = 0
        self._view: RoundView | None = None
        #: This worker's place in the present round, as the background thread has heard it.
        self._place: Place | None = None

    def join(self, cause: str | None = None) -> RoundView:
        """Block until there is a round; `cause` says why this worker ended the last one.

        Raises `RendezvousClosedError` if the training is over, and the other errors of a rendezvous.
        """
        self._drop_view()
        # What is heard from now on of rounds before the next one is old news.
        self.newcomers, self._place = 0, None
        self._break.renew()
        pause()  # to wait for the others is no hang
        place = self._handler.next_round(None if cause is None else Cause(cause, victim=True))
        heartbeat()
        secret, nonce = self._handler.secret.key, str(place.round)
        self._view = RoundView(
            number=place.round.number,
            rank=place.group_rank,
            world_size=place.group_world_size,
            store=self._handler.store(),
            address=place.address or "127.0.0.1",
            peer=(place.peer_addr or "127.0.0.1", place.peer_port),
            token=lambda rank: make_token(secret, nonce, rank),
        )
        return self._view

    def on_break(self, breaker: Callable[[str], None]) -> None:
        """Have `breaker` called, on another thread, when the round is over; at once where it is already."""
        self._break.call(breaker)

    def wait_broken(self, timeout_s: float) -> bool:
        """Wait for the news that the round is over; says whether it came in time."""
        return self._break.wait(timeout_s)

    @property
    def broken(self) -> str | None:
        """Why the round is over; None while it runs."""
        return self._break.reason

    def store_address(self) -> tuple[str, str]:
        """Return the coordinator's address and the name of this round's keys there, for another process to use."""
        return str(self._handler.endpoint), self._handler.store_space

    @property
    def is_connected(self) -> bool:
        """Whether the coordinator can be reached at present."""
        return self._handler.is_connected

    def note(self, text: str) -> None:
        """Show this text beside the worker in `holdfast rounds`."""
        self._handler.note(text)

    def close_run(self, reason: str = "its training is done", *, failed: bool = False) -> None:
        """End the training for all workers, and wait until the coordinator has taken note of it.

        This waits for a coordinator that is out of reach: a worker that comes back later would otherwise train all over
        again.
        """
        self._handler.close(reason, failed=failed)
        if self._over.wait(CLOSE_TOLD_AFTER_S):
            return
        facts.warn(
            "close_waits",
            f"the training is over, and the coordinator must still hear of it; waiting up to {CLOSE_TIMEOUT_S:g} s: "
            f"{self._handler.sentence()}",
        )
        if not self._over.wait(CLOSE_TIMEOUT_S):
            facts.warn("close_unheard", "the coordinator has not heard that the training is over; leaving all the same")

    def leave(self, reason: str) -> None:
        """Leave for good; the others regroup at once."""
        self._drop_view()
        self._handler.leave(reason)
        if self.listener is not None:
            self.listener.close()

    @property
    def ended(self) -> RunEnded | None:
        """How the training ended, once it has."""
        return self._handler.ended

    def _on_effect(self, effect: MemberEffect) -> None:
        """Runs on the background thread."""
        if isinstance(effect, RoundSealed):
            self._place = effect.place
        elif isinstance(effect, NewcomersWait):
            self.newcomers = effect.nodes_waiting
            self.news.put(events.NewcomersWait(effect.nodes_waiting))
        elif isinstance(effect, RunEnded):
            self.news.put(events.RunEnded(effect.reason, effect.failed))
            self._over.set()
            self._break.tell(effect.reason)
        elif isinstance(effect, RoundBroken):
            self.news.put(events.RoundBroken(effect.place.round.number, effect.reason))
            if effect.place == self._place:
                self._break.tell(effect.reason)

    def _drop_view(self) -> None:
        if self._view is not None:
            self._view.store.close()
            self._view = None


def can_meet(handler: object) -> TypeGuard[Meeting]:
    """Return whether workers can meet through a handler, by what it can do."""
    return has_all_of(Meeting, handler)


def from_environ(
    environ: Mapping[str, str] | None = None, *, min_workers: int = 1, replica: int = 1, **settings: Any
) -> Membership:
    """Take part as the agent of this worker has arranged it; raises `UsageError` where there is none.

    `replica` workers take part as one.
    """
    environ = os.environ if environ is None else environ
    endpoint = environ.get(ENDPOINT_VARIABLE)
    if member_file := environ.get(MEMBER_FILE_VARIABLE):
        # From now on the agent replaces a worker that fails, instead of starting all of them again.
        Path(member_file).write_text(str(replica))
    if not endpoint:
        raise UsageError(
            f"this process has no agent (${ENDPOINT_VARIABLE} is not set): start the script with `holdfast launch`"
        )
    run = environ.get("TORCHELASTIC_RUN_ID", "none")
    if etcd := environ.get(ETCD_VARIABLE):
        # The agents' coordinator is elected: its address is looked up for every connection.
        endpoint = etcd
        settings = {"elected_for": run, **settings}
    elif standby := environ.get(STANDBY_VARIABLE):
        # The coordinator may move: the agent knows where to, and its run has the votes that a round of workers needs.
        settings = {"guide": standby, "guardian": run, **settings}
    return Membership(
        RendezvousParameters(
            backend="etcd" if etcd else "holdfast",
            endpoint=endpoint,
            run_id=run + RUN_SUFFIX,
            **worker_settings(
                int(environ.get("WORLD_SIZE", "1")) // replica,
                int(environ.get(MAX_WORKERS_VARIABLE, "0")) // replica,
                min_nodes=-(-min_workers // replica),
                is_host=False,
                # Only a wish, but mostly granted: people expect a worker to have one rank, not two.
                **({"node_rank": int(environ["RANK"]) // replica} if "RANK" in environ else {}),
                **settings,
            ),
        )
    )


def worker_settings(expected: int, most: int = 0, **settings: Any) -> dict[str, Any]:
    """Return how workers meet: the remaining ones continue at once, and new ones join between steps."""
    return {
        "min_nodes": 1,
        "max_nodes": max(expected, most, 1),
        "expected": expected,
        "admit": "restart",
        "last_call_timeout": GATHER_S,
        "quiet": GATHER_S,
        "drop_grace": 0,
        # Workers that are there come back to a new coordinator within moments. To go on without one of them costs
        # little: it joins again between two steps.
        "recovery_timeout": RECOVERY_S,
        # The agent handles a worker that fails; the run of the workers only regroups.
        "max_restarts": 1_000_000,
        # Agents carry the coordinator on; workers without agents need no quorum to leave those behind that are stuck.
        "takeover": False,
        **settings,
    }
