"""The coordinator that every agent can carry: it listens from the start, and leads when the one before is gone.

There is one coordinator in the process. The agent whose host owns the endpoint's address listens there if no other
process does, and carries the run from its beginning; every other agent listens on a port of its own, and answers where
it follows a coordinator. One that takes over listens at the endpoint's address as well if that is free and ours. What
the agent has promised is kept on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.coordinator.driver import EMBEDDED, Coordinator
from holdfast.coordinator.machine import Follow, HandOver, Lead, Stray
from holdfast.coordinator.messages import Memory, Succession, Term
from holdfast.errors import UnavailableError
from holdfast.facts import facts
from holdfast.rendezvous.allegiance import after_seal
from holdfast.rendezvous.driver import Host
from holdfast.rendezvous.memory import MemoryFile
from holdfast.wire.address import Endpoint
from holdfast.wire.tls import TlsFiles

#: How long nodes have to hear where the coordinator goes before this process ends.
HAND_OVER_S = 0.2


class Standby(Host):
    """The coordinator of one agent that may take over from another."""

    def __init__(
        self,
        endpoint: Endpoint,
        run: str,
        secret: bytes,
        tls: TlsFiles | None,
        *,
        owned: bool,
        node: str,
        file: MemoryFile | None = None,
    ) -> None:
        super().__init__(endpoint, secret, tls, required=False, owned=owned)
        self._run = run
        self._file = file
        found = file.found if file is not None else None
        #: What this agent knows of the run; at first, what the one before it knew.
        self._memory = Memory((node,), Term())
        if found is not None:
            self._memory = msgspec.structs.replace(found, nodes=(node, *found.nodes))
        self._owned = owned
        self._asked = endpoint
        if not owned:
            self.endpoint = endpoint
        #: Whether this process carries the run, and whether it listens at the endpoint's address.
        self._leads = self._at_home = False
        self._port = 0

    @property
    def is_up(self) -> bool:
        """Whether this process runs the coordinator."""
        return self._coordinator is not None and self._leads

    @property
    def described(self) -> Mapping[str, Any]:  # type: ignore[override]
        """Where this node's agent can carry the coordinator."""
        return {"standby": f":{self._port}"}

    async def try_open(self) -> bool:
        """Carry the run's coordinator if the endpoint's address is ours and free; else only listen elsewhere."""
        if self._owned and not self._at_home and await self._open_home():
            self._leads = self._at_home = True
        elif self._at_home and self._coordinator is not None:
            self._leads = True
            self._lead(self._coordinator)
        if self._coordinator is None:
            coordinator = self._make(str(self._asked))
            opened = await coordinator.open(Endpoint("", 0), self._context())
            self._coordinator, self._port = coordinator, opened.port
        return self._leads and self._at_home

    async def _open_home(self) -> bool:
        if self._coordinator is not None:
            opened_also = await self._coordinator.open_also(self._bound, self._context())
            if opened_also:
                self._lead(self._coordinator)
            return opened_also
        coordinator = self._make("")
        self._lead(coordinator)
        try:
            opened = await coordinator.open(self._bound, self._context())
        except UnavailableError:
            return False
        self.endpoint = Endpoint(self.endpoint.host, opened.port)
        self._bound = Endpoint(self._bound.host, opened.port)
        self._coordinator, self._port = coordinator, opened.port
        return True

    def _lead(self, coordinator: Coordinator) -> None:
        """Let the coordinator here carry the run, with all that this agent knows; what it heard of another is void."""
        coordinator.tell(Lead(self._run, self._memory))

    def _make(self, home: str) -> Coordinator:
        tls = self._tls
        return Coordinator(
            self._secret,
            kind=EMBEDDED,
            on_crash=self._on_crash,
            home=home,
            peer_tls=lambda: tls.client_context() if tls else None,
            keep=self._keep,
            on_sought=self._tell_sought,
        )

    def _tell_sought(self, run: str, address: str) -> None:
        if run == self._run:
            asyncio.get_running_loop().call_soon(self.on_sought, address)  # the coordinator is in the midst of an event

    def remember(self, memory: Memory | None) -> None:
        """Keep what the agent that is started in this one's place must know."""
        if memory is not None:
            self._memory = memory
        if self._file is not None:
            self._file.forget() if memory is None else self._file.keep(memory)

    def touch(self) -> None:
        """Say that this agent is alive."""
        if self._file is not None:
            self._file.touch()

    def _keep(self, run: str, succession: Succession) -> None:
        if run == self._run:
            self.remember(after_seal(self._memory, succession))

    def _context(self) -> Any:
        return self._tls.server_context() if self._tls else None

    def reached(self, endpoint: Endpoint) -> None:
        """Send nodes that look here to the coordinator that this node follows."""
        mine = self._port == endpoint.port or (self._at_home and endpoint == self.endpoint)
        if self._coordinator is not None and not (mine and self._leads):
            self._leads = False
            self._coordinator.tell(Follow(self._run, str(endpoint)))

    def strayed(self, endpoint: Endpoint) -> None:
        """Do not send nodes that look here to a place any more where this node found no coordinator."""
        if self._coordinator is not None:
            self._coordinator.tell(Stray(self._run, str(endpoint)))

    async def revisit(self) -> None:
        """Carry the run again if all nodes begin here, and no other agent does."""
        if self._at_home:
            await self.lead()

    async def lead(self) -> None:
        """Carry the coordinator in this process, since the one before is gone."""
        if self._coordinator is None:
            await self.try_open()
        assert self._coordinator is not None
        if not self._leads:
            facts.warn(
                "coordinator_taken_over",
                f"this node carries the coordinator of run '{self._run}' from now on",
            )
        self._leads = True
        self._lead(self._coordinator)
        if self._owned and not self._at_home:
            self._at_home = await self._coordinator.open_also(self._bound, self._context())

    def _on_crash(self, coordinator: Coordinator) -> None:
        super()._on_crash(coordinator)
        self._leads = self._at_home = False

    async def close(self, farewell_of: str = "") -> None:
        """Hand the coordinator over once it has received the last message of this node, and close it."""
        if self._coordinator is not None and self._leads:
            await self._farewell(farewell_of)
            run = self._coordinator.machine.runs.get(self._run)
            if run is not None and run.closed is None and run.nodes:  # a run that is over is not handed over
                self._coordinator.tell(HandOver("its agent has ended"))
                await asyncio.sleep(HAND_OVER_S)
        await self._drop_coordinator()
        if self._file is not None:
            self._file.close()
