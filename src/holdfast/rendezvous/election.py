"""An election through etcd: which process carries the coordinator of a run, and whether it may still seal. Pure.

One key of the run, tied to a lease of etcd's, names the carrier and its *term*. A second key, which has no lease, holds
the last term that was given. One transaction writes both, if neither has changed since it was read: so no term is given
twice, and of several candidates one is elected. The records of the run are keys of their own, which only the carrier
writes, in transactions that compare the first key's revision.

                Look                    no key, or its carrier is gone              Elected
    IDLE ───────────────▶ LOOKING ────────────────────────────▶ STANDING ──────────────────▶ CARRYING
      ▲                      │ Follow                               │ NotElected                │
      └──────────────────────┴──────────────────────────────────────┘◀── StepDown, Resign ─────┘

The rules:

1. A candidate takes the key from its carrier only if that one's coordinator is surely closed: this node was connected
   to it in the same term before, and now the address refuses connections. One that was just elected may not listen yet,
   and a connection that times out proves nothing: there the lease decides.
2. A carrier that has not been confirmed for `TRUST_S`, on its own clock, steps down at once: etcd may be about to give
   its key away. So does one whose key has changed. `TRUST_S` is so much shorter than the lease that clocks which differ
   by a tenth do not matter.
3. Each seal needs a transaction that compares the key's revision and writes the record with the number of the round.
   It fails from the moment another carrier is elected. The permission is for `SEAL_S` from the question on, and a
   new carrier seals nothing for `HOLD_S`, which is longer. So no two carriers seal at the same time, no carrier seals
   after its successor has begun to, and no round's number is used twice.
4. Records that change between seals are written in the same way, but are not waited for.
5. While etcd is out of reach nothing is sealed. Everything else goes on until rule 2 applies; workers go on after that.
"""

from __future__ import annotations

import enum
from typing import Any

from holdfast.machine import Tick
from holdfast.rendezvous.election_events import (
    AskPermit,
    CarriedAway,
    Carrier,
    Carry,
    Elected,
    ElectionEffect,
    ElectionEvent,
    EtcdAway,
    EtcdBack,
    EtcdFailed,
    Follow,
    KeepRecord,
    KeyRead,
    Knock,
    Knocked,
    Look,
    LookFailed,
    NotElected,
    NotWritten,
    Permit,
    Reached,
    ReadKey,
    Renew,
    Renewed,
    Resign,
    Revoke,
    Stand,
    StepDown,
    Write,
    Written,
)

#: The key expires so long after its carrier's last renewal, on etcd's clock.
LEASE_S = 6
RENEW_S = 1.5
#: How long a carrier trusts a renewal, from the question on, on its own clock.
TRUST_S = 4.5
#: How old a permission may be when it is used, and how long a new carrier seals nothing.
SEAL_S, HOLD_S = 0.4, 0.5
#: How long a question that failed waits before it is put again.
AGAIN_S = 0.2
#: How often a candidate that another one was quicker than looks again before it gives the attempt up.
LOOKS_MAX = 5
#: After an outage of etcd the carrier before may be alive and well: so long ago counts.
OUTAGE_S = 30.0


class Stage(enum.StrEnum):
    """The stage of a candidate."""

    IDLE = "idle"
    LOOKING = "looking"
    STANDING = "standing"
    CARRYING = "carrying"


class ElectionMachine:
    """Decides for one process and one run; see the module's opening. `candidate` is a name that no other has."""

    def __init__(self, candidate: str) -> None:
        self.candidate = candidate
        self.stage = Stage.IDLE
        #: The term of the present carrier, if that is this process, or of the last one that was.
        self.term = 0
        self._asks = 0
        #: The number of the question that each part waits for; None if it waits for none.
        self._look: int | None = None
        self._renewal: int | None = None
        self._write: int | None = None
        #: The revision of the key of the carrier that this process was told to follow, and of the last it has reached.
        self._followed = self._reached = 0
        self._looks = 0
        self._found: KeyRead | None = None
        #: Whether the carrier before is surely gone.
        self._alone = False
        self._stood_at = 0.0
        #: While this process is the carrier:
        self._lease = 0
        self._revision = 0
        self._trusted_until = 0.0
        self._renewed_at = 0.0
        self._hold_until = 0.0
        self._again_at: float | None = None
        self._wrote_at = 0.0
        #: What is being written, the records still to write, and the runs that want to seal, with their records.
        self._writing: tuple[str, bytes | None, bool] | None = None
        self._records: dict[str, bytes | None] = {}
        self._permits: dict[str, bytes] = {}
        #: Since when etcd is out of reach, how many questions have failed, and when one failed last.
        self._away_since: float | None = None
        self._failures = 0
        self._failed_at = float("-inf")
        self._out: list[ElectionEffect] = []

    # -- the contract ----------------------------------------------------------------------------------------

    def handle(self, event: ElectionEvent, now: float) -> list[ElectionEffect]:
        """Decide what one event means."""
        self._expire(now)  # before anything that was allowed while the key was ours
        match event:
            case Look():
                self._on_look()
            case Reached():
                self._reached = self._followed
            case AskPermit():
                if self.stage is Stage.CARRYING:
                    self._permits[event.run] = event.record
                else:
                    self._out.append(Permit(event.run, allowed=False))
            case KeepRecord():
                if self.stage is Stage.CARRYING:
                    self._records[event.run] = event.record
            case CarriedAway():
                self._on_carried_away()
            case Resign():
                self._on_resign(event)
            case EtcdFailed():
                self._on_failed(event, now)
            case Tick():
                pass
            case _:
                self._on_answer(event, now)
        self._on_time(now)
        effects, self._out = self._out, []
        return effects

    def wakeup(self) -> float | None:
        """Say when time alone changes something."""
        if self.stage is not Stage.CARRYING:
            return None
        times = [self._trusted_until]
        if self._renewal is None:
            times.append(self._renewed_at + RENEW_S)
        if self._write is None and (self._records or self._permits):
            times.append(self._write_at())
        return min(times)

    def check(self) -> None:
        """Assert every invariant."""
        if self.stage is Stage.CARRYING:
            assert self._lease, "a carrier without a lease"
            assert self._revision, "a carrier without a key"
        else:
            assert self._write is None, f"writes while {self.stage}"
            assert self._renewal is None, f"renews while {self.stage}"
            assert not self._permits, f"a permission is asked for while {self.stage}"

    def snapshot(self) -> dict[str, Any]:
        """Describe the candidate as plain data."""
        return {"candidate": self.candidate, "stage": self.stage.value, "term": self.term}

    # -- looking for the carrier -----------------------------------------------------------------------------

    def _on_look(self) -> None:
        if self.stage is Stage.CARRYING:
            self._out.append(Carry(self.term))
        elif self.stage is Stage.IDLE:
            self._looks = 0
            self._read()

    def _read(self) -> None:
        """IDLE or STANDING -> LOOKING."""
        self.stage = Stage.LOOKING
        self._looks += 1
        self._look = self._next_ask()
        self._out.append(ReadKey(self._look))

    def _on_key_read(self, read: KeyRead, now: float) -> None:
        self._found, carrier = read, read.carrier
        self._alone = False
        if carrier is None:
            # A lease that ran out while etcd was well belongs to a carrier that is cut off or dead; after an outage
            # of etcd it says nothing. A newcomer has not seen whether there was one.
            self._alone = self._reached > 0 and now > self._failed_at + OUTAGE_S
            self._stand(now)
        elif carrier.candidate == self.candidate:
            self._stand(now)  # of an earlier election of this process, whose answer was lost or which it has given up
        elif carrier.revision == self._reached:
            self._look = self._next_ask()
            self._out.append(Knock(self._look, carrier.address))
        else:
            self._follow(carrier)

    def _on_knocked(self, knocked: Knocked, now: float) -> None:
        assert self._found is not None
        assert self._found.carrier is not None
        if knocked.gone:
            self._alone = True
            self._stand(now)
        else:
            self._follow(self._found.carrier)

    def _follow(self, carrier: Carrier) -> None:
        """LOOKING -> IDLE."""
        self.stage = Stage.IDLE
        self._followed = carrier.revision
        self._out.append(Follow(carrier.address))

    # -- being elected ---------------------------------------------------------------------------------------

    def _stand(self, now: float) -> None:
        """LOOKING -> STANDING."""
        found = self._found
        assert found is not None
        self.stage = Stage.STANDING
        self._stood_at = now
        self._look = self._next_ask()
        revision = found.carrier.revision if found.carrier is not None else 0
        self._out.append(Stand(self._look, self._next_term(found), revision, found.term_revision))

    def _next_term(self, found: KeyRead) -> int:
        return found.term + 1

    def _on_elected(self, elected: Elected, now: float) -> None:
        """STANDING -> CARRYING."""
        assert self._found is not None
        if now >= self._stood_at + TRUST_S:
            self._out.append(Revoke(elected.lease))
            self._fail_look("etcd took too long to elect this node")
            return
        self.stage = Stage.CARRYING
        self.term = self._next_term(self._found)
        self._lease, self._revision = elected.lease, elected.revision
        self._trusted_until, self._renewed_at = self._stood_at + TRUST_S, self._stood_at
        # The one before may have been allowed to seal a moment ago.
        self._hold_until = now + HOLD_S if self.term > 1 else now
        self._again_at = None
        self._out.append(Carry(self.term, elected.records, self._alone))

    def _on_not_elected(self) -> None:
        if self._looks < LOOKS_MAX:
            self._read()  # the key tells which one was quicker
        else:
            self._fail_look("other nodes were elected again and again")

    def _fail_look(self, reason: str) -> None:
        """LOOKING or STANDING -> IDLE."""
        self.stage = Stage.IDLE
        self._out.append(LookFailed(reason))

    # -- staying the carrier ---------------------------------------------------------------------------------

    def _on_time(self, now: float) -> None:
        self._expire(now)
        if self.stage is not Stage.CARRYING:
            return
        if self._renewal is None and now >= self._renewed_at + RENEW_S:
            self._renewed_at = now
            self._renewal = self._next_ask()
            self._out.append(Renew(self._renewal, self._lease))
        if self._write is None and (self._records or self._permits) and now >= self._write_at():
            self._write_next(now)

    def _expire(self, now: float) -> None:
        if self.stage is Stage.CARRYING and now >= self._trusted_until:
            self._step_down(f"etcd has not confirmed this node for {TRUST_S:g} s", deposed=False)

    def _on_renewed(self, renewed: Renewed) -> None:
        carrier = renewed.carrier
        if carrier is not None and carrier.revision != self._revision:
            self._step_down(f"etcd has elected {carrier.address}", deposed=True)
        elif carrier is None or renewed.seconds <= 0:
            self._step_down("etcd has let go of this node's lease", deposed=False)
        else:
            self._trusted_until = self._renewed_at + TRUST_S

    def _step_down(self, reason: str, *, deposed: bool) -> None:
        """CARRYING -> IDLE."""
        lease = self._lease
        self._forget_office()
        self._out += [StepDown(reason, deposed), Revoke(lease)]

    def _forget_office(self) -> None:
        self.stage = Stage.IDLE
        self._lease = self._revision = 0
        self._renewal = self._write = self._writing = self._again_at = None
        self._records.clear()
        self._permits.clear()

    def _on_carried_away(self) -> None:
        """CARRYING -> IDLE: the next look takes the key again, in another term."""
        if self.stage is Stage.CARRYING:
            self._forget_office()

    def _on_resign(self, resign: Resign) -> None:
        """Any stage -> IDLE."""
        if self.stage is Stage.CARRYING:
            lease, revision = self._lease, self._revision
            self._forget_office()
            self._out.append(Revoke(lease, revision, resign.forget))
        self.stage, self._look = Stage.IDLE, None

    # -- sealing, and records --------------------------------------------------------------------------------

    def _write_at(self) -> float:
        """Say when the next record may be written: at once, but for a seal not before the hold is over."""
        when = self._again_at if self._again_at is not None else float("-inf")
        return max(when, self._hold_until) if not self._records else when

    def _write_next(self, now: float) -> None:
        """Put the next record into etcd; that of a run that wants to seal, if it may, holds everything before it."""
        run = next((run for run in self._permits if now >= self._hold_until), None)
        if run is not None:
            record: bytes | None = self._permits.pop(run)
            self._records.pop(run, None)
            self._writing = (run, record, True)
        else:
            run = next(iter(self._records))
            record = self._records.pop(run)
            self._writing = (run, record, False)
        self._again_at, self._wrote_at = None, now
        self._write = self._next_ask()
        self._out.append(Write(self._write, run, record, self._revision))

    def _on_written(self, now: float) -> None:
        assert self._writing is not None
        run, record, is_seal = self._writing
        self._write = self._writing = None
        if is_seal and now < self._wrote_at + SEAL_S:
            self._out.append(Permit(run))
        elif is_seal and record is not None:
            self._permits.setdefault(run, record)  # it took too long: ask again

    def _on_not_written(self) -> None:
        self._step_down("etcd has elected another node, or let go of this one", deposed=True)

    # -- answers ---------------------------------------------------------------------------------------------

    def _on_answer(self, event: ElectionEvent, now: float) -> None:
        ask = event.ask  # type: ignore[union-attr]
        if ask not in (self._look, self._renewal, self._write):
            if isinstance(event, Elected):
                self._out.append(Revoke(event.lease))  # it came too late to be of use
            return
        if not isinstance(event, Knocked):
            self._on_reached(now)
        if ask == self._look:
            self._look = None
        elif ask == self._renewal:
            self._renewal = None
        match event:
            case KeyRead():
                self._on_key_read(event, now)
            case Knocked():
                self._on_knocked(event, now)
            case Elected():
                self._on_elected(event, now)
            case NotElected():
                self._on_not_elected()
            case Renewed():
                self._on_renewed(event)
            case Written():
                self._on_written(now)
            case NotWritten():
                self._on_not_written()

    def _on_failed(self, failed: EtcdFailed, now: float) -> None:
        if failed.ask not in (self._look, self._renewal, self._write):
            return
        self._failures += 1
        self._failed_at = now
        if self._away_since is None:
            self._away_since = now
            self._out.append(EtcdAway(failed.reason))
        if failed.ask == self._look:
            self._look = None
            self._fail_look(failed.reason)
        elif failed.ask == self._renewal:
            self._renewal = None  # the next one is due in a moment; its time counts from the question on
            self._renewed_at = now - RENEW_S + AGAIN_S
        elif self._writing is not None:
            run, record, is_seal = self._writing
            self._write = self._writing = None
            self._again_at = now + AGAIN_S
            if is_seal and record is not None:
                self._permits.setdefault(run, record)
            else:
                self._records.setdefault(run, record)

    def _on_reached(self, now: float) -> None:
        if self._away_since is not None:
            self._out.append(EtcdBack(now - self._away_since, self._failures))
            self._away_since, self._failures = None, 0

    def _next_ask(self) -> int:
        self._asks += 1
        return self._asks
