"""A model of etcd, as far as elections use it: keys with revisions, leases and transactions, and a lossy network.

What etcd promises is taken for granted: each request is carried out at one moment or not at all, in one order for all.
What it does not promise is simulated: a request or its answer may be lost, and the client cannot tell which.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from holdfast.rendezvous import election_events as e
from holdfast.rendezvous.election import LEASE_S
from holdfast.sim.violation import Violation
from holdfast.sim.world import Clock, World

#: How long a client waits for an answer.
TIMEOUT_S = 2.0


class SimEtcd:
    """One cluster, which may be out of reach for all or for some."""

    def __init__(self, world: World, clock: Clock, rng: Random, delay_s: float, loss: float) -> None:
        self.world = world
        self._clock = clock
        self._rng = rng
        self._delay_s = delay_s
        self.loss = loss
        self.outages = 0
        #: How many cuts lie between a client and etcd, by its name.
        self.cuts: dict[str, int] = {}
        self._revision = 0
        self._leases: dict[int, float] = {}
        self.carrier: e.Carrier | None = None
        self._carrier_lease = 0
        self.term = 0
        self._term_revision = 0
        self.records: dict[str, bytes] = {}
        #: The terms that were given, each with its candidate.
        self.given: dict[int, str] = {}

    def ask(self, client: str, effect: Any, address: str, candidate: str, answer: Callable[[Any], None]) -> None:
        """Carry a question out, now or never, and bring its answer back, in a moment or as a failure."""
        deadline = self.world.now + TIMEOUT_S
        self.world.after(self._delay(), self._arrive, client, effect, (address, candidate), answer, deadline)

    def lose_lease(self) -> None:
        """Forget the carrier's lease, as after a loss of etcd's own memory."""
        self._leases.pop(self._carrier_lease, None)
        self._expire()

    def _arrive(
        self, client: str, effect: Any, who: tuple[str, str], answer: Callable[[Any], None], deadline: float
    ) -> None:
        reply: Any = None
        if not self._is_lost(client):
            self._expire()
            reply = self._carry_out(effect, *who)
        if isinstance(effect, e.Revoke):
            return
        if reply is None or self._is_lost(client):
            self.world.at(deadline, answer, e.EtcdFailed(effect.ask, "no answer from etcd"))
        else:
            self.world.after(self._delay(), answer, reply)

    def _is_lost(self, client: str) -> bool:
        return bool(self.outages or self.cuts.get(client)) or self._rng.random() < self.loss

    def _delay(self) -> float:
        return self._delay_s * (0.5 + self._rng.random())

    # -- what etcd does ----------------------------------------------------------------------------------------------

    def _carry_out(self, effect: Any, address: str, candidate: str) -> Any:
        match effect:
            case e.ReadKey():
                return e.KeyRead(effect.ask, self.carrier, self.term, self._term_revision)
            case e.Stand():
                return self._stand(effect, address, candidate)
            case e.Renew():
                seconds = LEASE_S if effect.lease in self._leases else 0
                if seconds:
                    self._leases[effect.lease] = self._now() + LEASE_S
                return e.Renewed(effect.ask, seconds, self.carrier)
            case e.Write():
                return self._write(effect)
            case e.Revoke():
                if effect.forget and self.carrier is not None and self.carrier.revision == effect.revision:
                    self.records = {run: kept for run, kept in self.records.items() if run not in effect.forget}
                self._leases.pop(effect.lease, None)
                self._expire()
                return None
        raise AssertionError(f"etcd is not asked {effect}")

    def _stand(self, stand: e.Stand, address: str, candidate: str) -> Any:
        self._revision += 1
        lease = self._revision
        self._leases[lease] = self._now() + LEASE_S
        revision = self.carrier.revision if self.carrier is not None else 0
        if (revision, self._term_revision) != (stand.revision, stand.term_revision):
            del self._leases[lease]
            return e.NotElected(stand.ask)
        if stand.term in self.given:
            raise Violation("a term is given once", f"{candidate} and {self.given[stand.term]} have term {stand.term}")
        self.given[stand.term] = candidate
        self._revision += 1
        self.carrier = e.Carrier(address, candidate, stand.term, self._revision)
        self._carrier_lease = lease
        self.term, self._term_revision = stand.term, self._revision
        return e.Elected(stand.ask, lease, self._revision, tuple(self.records.items()))

    def _write(self, write: e.Write) -> Any:
        if self.carrier is None or self.carrier.revision != write.revision:
            return e.NotWritten(write.ask)
        self._revision += 1
        if write.record is None:
            self.records.pop(write.run, None)
        else:
            self.records[write.run] = write.record
        return e.Written(write.ask)

    def _expire(self) -> None:
        now = self._now()
        self._leases = {lease: until for lease, until in self._leases.items() if until > now}
        if self.carrier is not None and self._carrier_lease not in self._leases:
            self._revision += 1
            self.carrier = None

    def _now(self) -> float:
        return self._clock.local(self.world.now)
