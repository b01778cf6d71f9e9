"""The coordinator's driver: sockets in, effects out. No decisions.

It runs on one event loop: its own process's (`holdfast serve`), or the background thread of an agent that embeds it.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from holdfast.coordinator.events import Note
from holdfast.coordinator.machine import (
    AskOther,
    AskSeal,
    Connected,
    CoordinatorEvent,
    CoordinatorMachine,
    Disconnected,
    ForgetRun,
    Found,
    KeepSuccession,
    Probed,
    ProbeNode,
    Received,
    RunMaySeal,
    SaveRun,
    Send,
    Sought,
)
from holdfast.coordinator.messages import CODEC, Seen, Succession
from holdfast.coordinator.records import Records
from holdfast.coordinator.state import RunRecord
from holdfast.errors import HoldfastError, UnavailableError
from holdfast.facts import ERROR, Fact, facts
from holdfast.machine import Tick
from holdfast.wire.address import Endpoint, parse_endpoint
from holdfast.wire.frames import Message
from holdfast.wire.link import Link
from holdfast.wire.listener import Limits, Listener, Peer
from holdfast.wire.probe import is_gone, is_ours

#: Kinds of coordinator: one that an agent carries dies with it and may be replaced by another agent on its host; one
#: that is served on its own is started again by what started it.
EMBEDDED, SERVED = "embedded", "served"
#: Timers are not set again for less than this.
_TIMER_STEP_S = 0.001
#: How long another agent may take to answer whether it carries a coordinator.
ASK_OTHER_S = 2.0


class Coordinator:
    """A coordinator on a port; all methods are called on its loop."""

    def __init__(
        self,
        secret: bytes,
        records: Records | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        kind: str = SERVED,
        on_crash: Callable[[Coordinator], None] = lambda _: None,
        may_seal: Callable[[str, RunRecord], Awaitable[bool]] | None = None,
        *,
        awaits_carrier: bool = False,
        home: str = "",
        peer_tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        keep: Callable[[str, Succession], None] = lambda _run, _succession: None,
        on_sought: Callable[[str, str], None] = lambda _run, _address: None,
    ) -> None:
        self._records = records
        self._secret = secret
        self._peer_tls = peer_tls
        self._keep = keep
        self._on_sought = on_sought
        self.machine = CoordinatorMachine(
            make_nonce=lambda: secrets.token_hex(4),
            records=records.load() if records else None,
            now=time.monotonic(),
            epoch=time.time() - time.monotonic(),
            guarded=may_seal is not None,
            home=home,
            awaits_carrier=awaits_carrier,
        )
        #: Waits until this coordinator may seal a round of a run with this record; says false if it never may again.
        self._may_seal = may_seal
        self._asking: set[asyncio.Task[None]] = set()
        # The agent that carries a coordinator is one of its nodes, and hears of facts as they all do.
        self._publishes = kind == SERVED
        # A served coordinator has its process for itself; an embedded one shares it with an agent and its vault.
        share = 1.0 if kind == SERVED else 0.75
        self._listener: Listener[Message] = Listener(self, CODEC, secret, limits, kind, share=share)
        #: Further addresses, each with its listener.
        self._listeners: list[Listener[Message]] = []
        self._kind, self._limits = kind, limits
        self._ports: list[int] = []
        self._on_crash = on_crash
        #: The exception that ended this coordinator; None while it works.
        self.crash: Exception | None = None
        self._closing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    async def open(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> Endpoint:
        """Listen, and return the endpoint with the port that was given."""
        self._loop = asyncio.get_running_loop()
        opened = await self._listener.open(endpoint, tls)
        self._arm()
        return opened

    async def open_also(self, endpoint: Endpoint, tls: ssl.SSLContext | None = None) -> bool:
        """Listen where all nodes look first, too; return whether that address is free and ours."""
        listener: Listener[Message] = Listener(self, CODEC, self._secret, self._limits, self._kind)
        try:
            await listener.open(endpoint, tls)
        except UnavailableError:
            return False
        self._listeners.append(listener)
        self._ports.append(endpoint.port)
        self.machine.takeover.home = ""
        return True

    def tell(self, event: CoordinatorEvent) -> None:
        """Tell the machine what this process's own agent knows."""
        self._handle(event)

    async def close(self) -> None:
        """Stop listening and drop every connection; agents keep running and look for the next coordinator."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._asking - {asyncio.current_task()}:  # which may be the one that found out
            task.cancel()
        self._loop = None
        for listener in (self._listener, *self._listeners):
            await listener.close()

    # -- called by the listener ------------------------------------------------------------------------------

    def opened(self, peer: Peer[Any]) -> None:
        """Note a proven connection."""
        self._handle(Connected(peer, peer.address, peer.local_address))

    def received(self, peer: Peer[Any], message: Message) -> None:
        """Hand a message to the machine."""
        self._handle(Received(peer, message))

    def closed(self, peer: Peer[Any], reason: str) -> None:
        """Note a connection's end."""
        self._handle(Disconnected(peer, reason))

    # -- the machine -----------------------------------------------------------------------------------------

    def _handle(self, event: CoordinatorEvent) -> None:
        """Hand an event to the machine; an exception ends this coordinator.

        Its state may be inconsistent then. The members connect to the next coordinator and tell it what
        they know, as after the death of any coordinator.
        """
        if self.crash is not None:
            return
        try:
            self._carry_out(event)
        except Exception as error:  # noqa: BLE001 - an event that is lost here would be waited for until a timeout
            self._end(error)

    def _end(self, error: Exception) -> None:
        if self.crash is None:
            self.crash = error
            facts.unexpected("the coordinator", error, "it stops, and its nodes look for the next one")
            self._closing = asyncio.get_running_loop().create_task(self.close())
            self._on_crash(self)

    def _carry_out(self, event: CoordinatorEvent) -> None:
        for effect in self.machine.handle(event, time.monotonic()):
            if type(effect) is Send:
                frame = CODEC.encode(effect.message)
                for peer in effect.peers:
                    peer.send_frame(frame)  # type: ignore[attr-defined]
            elif type(effect) is Note:
                if self._publishes:
                    facts.publish(effect.fact)
            elif type(effect) is SaveRun:
                self._save(effect)
            elif type(effect) is KeepSuccession:
                self._keep(effect.run, effect.succession)
            elif type(effect) is AskSeal:
                self._begin(self._ask_seal(effect))
            elif type(effect) is ProbeNode:
                self._begin(self._probe(effect))
            elif type(effect) is AskOther:
                self._begin(self._ask_other(effect))
            elif type(effect) is Sought:
                self._on_sought(effect.run, effect.address)
            elif type(effect) is ForgetRun and self._records is not None:
                self._records.forget(effect.run)
        self._arm()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _probe(self, effect: ProbeNode) -> None:
        try:
            where = parse_endpoint(effect.address)
            # Where this process itself listens, the one before it cannot.
            gone = (where.port in self._ports and is_ours(where.host)) or await is_gone(where)
        except Exception as error:  # noqa: BLE001 - a task that dies in silence would be waited for
            facts.unexpected("the look for a node that is gone", error, "it counts as possibly alive")
            return
        self._tell_back(Probed(effect.run, effect.node, gone))

    async def _ask_other(self, effect: AskOther) -> None:
        """Ask another agent whether it carries the coordinator; one that does not answer does not count."""
        answer: asyncio.Future[Seen] = asyncio.get_running_loop().create_future()

        def lose(_: str) -> None:
            answer.cancel()

        def hear(message: Message) -> None:
            if isinstance(message, Seen) and not answer.done():
                answer.set_result(message)

        try:
            async with asyncio.timeout(ASK_OTHER_S):
                link = await Link.connect(
                    parse_endpoint(effect.address),
                    CODEC,
                    self._secret,
                    hear,
                    lose,
                    run=effect.seek.run,
                    timeout_s=ASK_OTHER_S,
                    tls=self._peer_tls(),
                    explains=False,
                )
                try:
                    link.send(effect.seek)
                    seen = await answer
                finally:
                    link.close()
        except (HoldfastError, OSError, TimeoutError):
            return
        except asyncio.CancelledError:
            if self._loop is None:
                raise
            return  # the other side closed the connection
        except Exception as error:  # noqa: BLE001 - as above
            facts.unexpected("the question to another agent", error, "it is asked again")
            return
        self._tell_back(Found(effect.address, seen))

    def _tell_back(self, event: CoordinatorEvent) -> None:
        if self._loop is not None:
            self._handle(event)

    async def _ask_seal(self, ask: AskSeal) -> None:
        assert self._may_seal is not None
        try:
            allowed = await self._may_seal(ask.run, ask.record)
        except Exception as error:  # noqa: BLE001 - a round that is never allowed would be waited for until a timeout
            self._end(error)
            return
        if allowed and self._loop is not None:
            self._handle(RunMaySeal(ask.run))  # without a pause: the permission is for this moment

    def _save(self, effect: SaveRun) -> None:
        if self._records is None:
            return
        try:
            self._records.save(effect.run, effect.record)
        except OSError as error:
            # Continuing without the record makes recovery after a crash less clean; stopping would end the job.
            facts.publish(Fact("record_unsaved", f"cannot save the record of '{effect.run}': {error}", level=ERROR))

    def _arm(self) -> None:
        """Make sure that the loop calls us at the machine's wakeup; a timer that fires early does no harm."""
        when = self.machine.wakeup()
        if when is None or self._loop is None or when >= self._timer_at - _TIMER_STEP_S:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_later(max(when - time.monotonic(), 0.0), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = float("inf")
        self._handle(Tick())
