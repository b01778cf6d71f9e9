"""A member's driver: its connection, its timer, and the coordinator that its agent may run. No decisions.

Everything here runs on the background loop; the owner's thread only posts events, and gets effects through one
callable.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import random
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from holdfast.coordinator.driver import EMBEDDED, Coordinator
from holdfast.coordinator.messages import CODEC, Memory
from holdfast.errors import FrameError, HandshakeError, HoldfastError, PeerError, UnavailableError
from holdfast.facts import facts
from holdfast.machine import Tick
from holdfast.rendezvous.machine import (
    DropLink,
    Heard,
    LinkDown,
    LinkUp,
    MemberEffect,
    MemberEvent,
    MemberMachine,
    OpenLink,
    Remember,
    RunEnded,
    Say,
    Sought,
)
from holdfast.wire.address import Endpoint, parse_endpoint
from holdfast.wire.frames import Message
from holdfast.wire.handshake import CONNECT_TIMEOUT_S
from holdfast.wire.link import Link
from holdfast.wire.tls import TlsFiles

FAREWELL_S = 1.0


class Host:
    """The embedded coordinator of an agent that owns the endpoint's address.

    Of several agents on one machine the first to bind the port runs the coordinator. If its process dies, the
    next one that cannot connect takes its place. `endpoint` is where this process reaches it.
    """

    #: How long a first attempt to connect may take; each that fails gives the next one twice as much.
    connect_s = CONNECT_TIMEOUT_S
    #: What else the others are told of this node.
    described: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self, endpoint: Endpoint, secret: bytes, tls: TlsFiles | None, *, required: bool, owned: bool = True
    ) -> None:
        # A name may mean only loopback on its own host, and an address may belong to a gateway: only what is surely
        # reachable as it stands is bound as it stands.
        self._bound = endpoint if owned and _is_literal(endpoint.host) else Endpoint("", endpoint.port)
        self.endpoint = endpoint if owned else Endpoint("localhost", endpoint.port)
        self._secret = secret
        self._tls = tls
        self._required = required
        self._coordinator: Coordinator | None = None
        #: Called with the address of another coordinator of the run that looks for this node.
        self.on_sought: Callable[[str], None] = lambda _: None

    @property
    def is_up(self) -> bool:
        """Whether this process runs the coordinator."""
        return self._coordinator is not None

    async def try_open(self) -> bool:
        """Host the coordinator unless another process has the port; return whether this process does."""
        return await self._listen()

    async def _listen(self) -> bool:
        if self._coordinator is not None:
            return True
        coordinator = self._make_coordinator()
        try:
            context = self._tls.server_context() if self._tls else None
            opened = await coordinator.open(self._bound, context)
        except UnavailableError:
            if self._required:
                raise
            return False
        self.endpoint = Endpoint(self.endpoint.host, opened.port)
        # The others know this port by now: if the coordinator is opened again, it uses the same port.
        self._bound = Endpoint(self._bound.host, opened.port)
        self._coordinator = coordinator
        return True

    def _make_coordinator(self) -> Coordinator:
        return Coordinator(self._secret, kind=EMBEDDED, on_crash=self._on_crash)

    def _on_crash(self, coordinator: Coordinator) -> None:
        """Let the next attempt to connect open a new coordinator; it learns the round from the members."""
        if coordinator is self._coordinator:
            self._coordinator = None

    def reached(self, endpoint: Endpoint) -> None:
        """Note which coordinator this node is connected to."""

    def strayed(self, endpoint: Endpoint) -> None:
        """Note that this node was sent away where it was connected, or hears nothing there."""

    def remember(self, memory: Memory | None) -> None:
        """Keep what the process that is started in this one's place must know; None if there is no such thing."""

    def touch(self) -> None:
        """Say that this process is alive to the one that may be started in its place; called often."""

    async def revisit(self) -> None:
        """Look again where all nodes begin, which may be here."""

    async def lead(self) -> None:
        """Carry the coordinator in this process, since the one before is gone."""

    async def close(self, farewell_of: str = "") -> None:
        """Close the coordinator, once it has received the last message of this node."""
        await self._farewell(farewell_of)
        await self._drop_coordinator()

    async def _farewell(self, node: str) -> None:
        """Wait until the coordinator has received the last message of this node."""
        deadline = time.monotonic() + FAREWELL_S
        while self._coordinator is not None and time.monotonic() < deadline:
            if not self._coordinator.machine.speaks_for(node):
                return
            await asyncio.sleep(0.002)

    async def _drop_coordinator(self) -> None:
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            await coordinator.close()


class Member:
    """Drives one `MemberMachine` over a real connection."""

    def __init__(
        self,
        machine: MemberMachine,
        endpoint: Endpoint,
        secret: bytes,
        on_effect: Callable[[MemberEffect], None],
        *,
        tls: ssl.SSLContext | None = None,
        host: Host | None = None,
        explain: Callable[[PeerError], str] = str,
    ) -> None:
        self.machine = machine
        self._home = self._endpoint = endpoint
        self._secret = secret
        self._on_effect = on_effect
        self._tls = tls
        self._host = host
        self._explain = explain
        #: Returns how many steps this node's workers have made; called on the loop, and quick.
        self.count_steps: Callable[[], int] | None = None
        #: Until a coordinator answers, and again when one that lived inside an agent is gone.
        self._may_host = True
        self._first_connect_s = self._connect_s = host.connect_s if host is not None else CONNECT_TIMEOUT_S
        self._link: Link[Message] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: Whether an unexpected exception has ended the member; nothing is handled any more.
        self._failed = False
        self._loop = asyncio.get_running_loop()
        if host is not None:
            host.on_sought = lambda address: self.handle(Sought(address))

    def handle(self, event: MemberEvent) -> None:
        """Hand an event to the machine and carry out what it answers; an exception ends the member, loudly."""
        if self._failed:
            return
        try:
            self._handle(event)
        except Exception as error:  # noqa: BLE001 - an event that is lost here would be waited for until a timeout
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the member because of an exception that no code expected: its owner hears that the run is over here."""
        if self._failed:
            return
        self._failed = True
        facts.unexpected("the rendezvous", error, "this node leaves the run")
        try:
            self.close()
            self._on_effect(RunEnded(f"internal error in the rendezvous: {error!r}", failed=True))
        except Exception as raised:  # noqa: BLE001 - as above; nothing is left that could be told
            facts.unexpected("the end of the rendezvous", raised, "this node may not have heard that it left the run")

    def close(self) -> None:
        """Release the connection and the timer."""
        self._drop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _handle(self, event: MemberEvent) -> None:
        if self.count_steps is not None:
            self.machine.steps = self.count_steps()
        for effect in self.machine.handle(event, time.monotonic()):
            match effect:
                case OpenLink():
                    self._opening = self._loop.create_task(self._open(effect))
                case DropLink():
                    self._drop(silent=effect.silent)
                    if self._host is not None:
                        self._host.strayed(self._endpoint)
                case Say():
                    if self._link is not None:
                        self._link.send(effect.message)
                case Remember():
                    if self._host is not None:
                        self._host.remember(effect.memory)
                case _:
                    self._on_effect(effect)
        if self._host is not None:
            self._host.touch()
        self._arm()

    @property
    def endpoint(self) -> Endpoint:
        """Where this node is connected, or looks for the coordinator."""
        return self._endpoint

    async def _open(self, how: OpenLink) -> None:
        event = await self._connect(how)
        self._opening = None  # before the machine hears of it: it may open the next one at once
        self.handle(event)

    async def _find(self, how: OpenLink) -> None:
        """Find out where to connect; if no coordinator answers and the address is ours, host it."""
        if how.address:
            self._endpoint = parse_endpoint(how.address)
            if how.lead and self._host is not None:
                await self._host.lead()
        elif self._host is not None and self.machine.has_heirs:
            await self._host.revisit()
            self._endpoint = self._host.endpoint
        elif self._host is not None and self._may_host:
            self.machine.describe(hosts_coordinator=await self._host.try_open(), **self._host.described)
            self._endpoint = self._host.endpoint
        else:
            self._endpoint = self._host.endpoint if self._host is not None else self._home

    async def _connect(self, how: OpenLink) -> LinkUp | LinkDown:
        """Connect to the coordinator."""
        try:
            await self._find(how)
            self._link = await Link.connect(
                self._endpoint,
                CODEC,
                self._secret,
                self._on_message,
                self._on_lost,
                run=self.machine.run,
                timeout_s=self._connect_s if how.timeout_s is None else how.timeout_s,
                tls=self._tls,
                explains=how.timeout_s is None,
            )
        except (HandshakeError, FrameError) as error:
            return LinkDown(self._explain(error), final=True)
        except (HoldfastError, OSError) as error:
            self._connect_s = min(2 * self._connect_s, CONNECT_TIMEOUT_S)
            # Also what the system refuses for now, as when it has no descriptors left: the next try may go better.
            return LinkDown(str(error))
        except Exception as error:  # noqa: BLE001 - a task that dies would be waited for until the join timeout
            facts.unexpected("connecting to the coordinator", error, "this attempt has failed")
            return LinkDown(f"internal error: {error!r}", final=True)
        self._connect_s = self._first_connect_s
        self._may_host = self._link.kind == EMBEDDED
        if self._host is not None:
            self._host.reached(self._endpoint)
        return LinkUp(fixed=self._link.kind != EMBEDDED)

    def _on_message(self, message: Message) -> None:
        self.handle(Heard(message))

    def _on_lost(self, reason: str) -> None:
        ended = self._link is not None and self._link.ended
        self._link = None
        self.handle(LinkDown(reason, ended=ended))

    def _drop(self, *, silent: bool = False) -> None:
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._link is not None:
            self._link.abandon() if silent else self._link.close()
            self._link = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when = self.machine.wakeup()
        if when is not None:
            self._timer = self._loop.call_later(max(when - time.monotonic(), 0.0), self.handle, Tick())


def owns_address(host: str) -> bool:
    """Return whether an address that the host name means belongs to this machine."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as sock:
                sock.bind((address[0], 0, *address[2:]))
                return True
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    return False


def _is_literal(host: str) -> bool:
    """Whether a host is an address, or the one name that means the same on every host."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost"
    return True


def jitter() -> float:
    """Return a number from 0 to 1, so that many nodes do not retry in step."""
    return random.random()
