"""The part of a member that looks for a coordinator which has moved. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.coordinator import messages as wire
from holdfast.coordinator.messages import Memory, NodeSpec, RunSettings
from holdfast.rendezvous.absence import Absence
from holdfast.rendezvous.allegiance import Allegiance
from holdfast.rendezvous.events import DropLink, LinkDown, MemberEffect, OpenLink, Remember
from holdfast.rendezvous.search import HOME, Search

RETRY_S_MIN = 0.05
RETRY_S_MAX = 1.0
#: A node goes where other agents send it, also back and forth between two of them, for this long; then it looks at each
#: place once in a pass.
ASTRAY_LEASES = 2.0


class Seeker:
    """What a member knows of its connection, and where it looks when that is gone."""

    def __init__(
        self,
        spec: NodeSpec,
        settings: RunSettings,
        jitter: Callable[[], float],
        guide: str,
        memory: Memory | None = None,
    ) -> None:
        self.spec = spec
        self.settings = settings
        self._jitter = jitter
        self._linked = False
        self._retry_at: float | None = None
        self._retry_s = RETRY_S_MIN
        self._beat_at: float | None = None
        self._link_trouble = "not connected yet"
        self._away = Absence()
        self._out: list[MemberEffect] = []
        #: Whether the coordinator that this node is connected to has taken it in.
        self._settled_in = False
        #: Whether this coordinator is a process of its own, from which no agent takes over.
        self._fixed = False
        #: Since when other agents have sent this node around; None while a coordinator has taken it in.
        self._astray_since: float | None = None
        #: Whether any coordinator has, ever.
        self._ever_in = False
        #: Where the coordinator is looked for, and what this node has promised; only where it can move.
        known = memory.heirs if memory is not None and settings.takeover else ()
        self.search = Search(guide, tuple(heir.address for heir in known))
        self.allegiance = Allegiance(memory) if settings.takeover else None

    def describe(self, **changes: Any) -> None:
        """Change this node's description; takes effect with its next `Join`."""
        self.spec = msgspec.structs.replace(self.spec, **changes)

    @property
    def has_heirs(self) -> bool:
        """Whether this node knows which agents may carry the coordinator."""
        return self.allegiance is not None and bool(self.allegiance.heirs)

    def _remember(self) -> None:
        """Keep what must be known to the process that is started in this one's place."""
        if self.allegiance is not None:
            self._out.append(Remember(self.allegiance.memory(self.spec.node)))

    def _search_on(self, event: LinkDown, now: float) -> None:
        """Look elsewhere for a coordinator that is gone, or was not found where this node looked last."""
        if self._settled_in:
            self._lose_coordinator(now, ended=event.ended)
            self.search.begin(silent=not event.ended)
        elif not self.search.fail():
            self._retry_s = min(self._retry_s * 2, RETRY_S_MAX)
            self._retry_at = now + self._retry_s * (0.5 + self._jitter())
            return
        self._retry_at = now

    def _on_out(self, out: wire.Out, now: float) -> None:
        """Leave a place that is not the coordinator's, or not any more."""
        was_in = self._settled_in
        if was_in:
            self._lose_coordinator(now, ended=True)
        if self.allegiance is not None and out.gone:
            self.allegiance.gone = (*self.allegiance.gone, *out.gone)
        self._out.append(DropLink())
        self._linked, self._beat_at, self._link_trouble = False, None, out.reason
        self._away.begin(now)
        self._send_on(out.address, now, was_in=was_in)
        self._retry_at = now if self._retry_s == RETRY_S_MIN else now + self._retry_s * self._jitter()
        self._retry_s = min(self._retry_s * 2, RETRY_S_MAX)

    def _send_on(self, address: str, now: float, *, was_in: bool) -> None:
        """Look where this node is sent; if that is nowhere, or it is sent around for too long, at its next place."""
        if self._astray_since is None:
            self._astray_since = now
        is_astray = now > self._astray_since + ASTRAY_LEASES * self.spec.lease_s
        if was_in and address:
            self.search.go_anew(address)
        elif was_in:
            self.search.begin(silent=True)
        elif address and not (is_astray and self.search.was_tried(address)):
            self.search.go(address)
        else:
            self.search.fail()

    def _lose_coordinator(self, now: float, *, ended: bool) -> None:
        self._settled_in = False
        self._retry_s = RETRY_S_MIN
        if self.allegiance is not None:
            self.allegiance.lose(now, self.spec.lease_s, ended=ended)

    def _settle_in(self) -> None:
        """Note that a coordinator has taken this node in."""
        self._settled_in = self._ever_in = True
        self._astray_since = None
        self._retry_s = RETRY_S_MIN

    def _open(self) -> None:
        search = self.search
        if self.allegiance is not None and search.at != HOME:
            self.describe(hosts_coordinator=search.leads)
        leads = self.allegiance is not None and search.leads
        self._out.append(OpenLink(search.at, leads, search.connect_s))
