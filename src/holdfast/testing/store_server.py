"""A real store server in this process: the real machine behind a real port, with faults on demand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.machine import Tick
from holdfast.store.keys import StoreLimits
from holdfast.store.machine import Asked, PeerGone, StoreEvent, StoreMachine
from holdfast.store.messages import STORE_CODEC, STORE_REQUESTS
from holdfast.wire.address import Endpoint
from holdfast.wire.listener import Listener, Peer
from holdfast.wire.loop import io_thread

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

_REQUESTS = frozenset(STORE_REQUESTS)
_ANY_PORT = Endpoint("127.0.0.1", 0)


class _Service:
    """Hands what peers ask to the machine, its answers to the peers, and keeps its wakeup."""

    def __init__(self, machine: StoreMachine) -> None:
        self.machine = machine
        self.peers: dict[Peer[Any], None] = {}
        self.deaf = False
        self._loop = asyncio.get_running_loop()
        self._armed: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def opened(self, peer: Peer[Any]) -> None:
        self.peers[peer] = None

    def received(self, peer: Peer[Any], message: Any) -> None:
        if type(message) in _REQUESTS:
            self.tell(Asked(peer, message))
        else:
            peer.refuse(f"a store is not asked {type(message).__name__}")

    def closed(self, peer: Peer[Any], reason: str) -> None:  # noqa: ARG002 - a connection ends for any reason
        self.peers.pop(peer, None)
        self.tell(PeerGone(peer))

    def tell(self, event: StoreEvent) -> None:
        machine = self.machine
        for answer in machine.handle(event, self._loop.time()):
            if not self.deaf:
                answer.peer.send(answer.reply)  # type: ignore[attr-defined]
        if machine.wakeup() != self._armed:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = self.machine.wakeup()
        self._timer = None if self._armed is None else self._loop.call_at(self._armed, self._tick)

    def _tick(self) -> None:
        self._armed = self._timer = None
        self.tell(Tick())


class StoreServer:
    """A store on a port of this machine, from entering the context to leaving it.

    The faults are what a test needs to see a client survive: `cut` breaks every connection, `lose_answers`
    does so after the next question was carried out and before its answer is sent, `restart` forgets
    everything.
    """

    def __init__(
        self,
        *,
        epoch: str = "first",
        secret: bytes = b"",
        limits: StoreLimits = StoreLimits(),  # noqa: B008 - frozen
        endpoint: Endpoint = _ANY_PORT,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._tls = tls
        self._secret = secret
        self._limits = limits
        self._epoch = epoch
        self._listener: Listener[Any] | None = None
        self._service: _Service | None = None

    def __enter__(self) -> StoreServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def snapshot(self) -> dict[str, Any]:
        """Describe what the machine holds, after checking its invariants."""
        return io_thread().wait(self._snapshot())

    def start(self) -> None:
        """Listen; the endpoint has the port that was given, and a second start takes the same one."""
        io_thread().wait(self._start())

    def stop(self) -> None:
        """Stop listening and break every connection; does nothing when stopped."""
        io_thread().wait(self._stop())

    def restart(self, epoch: str) -> None:
        """Stop and start again with nothing in memory, as a coordinator that died would."""
        self.stop()
        self._epoch = epoch
        self.start()

    def cut(self) -> None:
        """Break every connection."""
        io_thread().wait(self._cut())

    def lose_answers(self) -> None:
        """From now on carry out what is asked and answer nothing, until the connections are cut."""
        io_thread().wait(self._lose())

    def tell(self, event: StoreEvent) -> None:
        """Hand the machine an event, such as `SpaceDropped`."""
        io_thread().wait(self._tell(event))

    async def _start(self) -> None:
        self._service = _Service(StoreMachine(self._epoch, self._limits))
        self._listener = Listener(self._service, STORE_CODEC, self._secret)
        self.endpoint = await self._listener.open(self.endpoint, self._tls)

    async def _stop(self) -> None:
        if self._listener is not None:
            await self._listener.close()
            self._listener = None

    async def _cut(self) -> None:
        assert self._service is not None
        self._service.deaf = False
        for peer in list(self._service.peers):
            peer.drop("cut by a test")

    async def _lose(self) -> None:
        assert self._service is not None
        self._service.deaf = True

    async def _snapshot(self) -> dict[str, Any]:
        assert self._service is not None
        self._service.machine.check()
        return self._service.machine.snapshot()

    async def _tell(self, event: StoreEvent) -> None:
        assert self._service is not None
        self._service.tell(event)
