"""A run's rounds: when one is sealed and with which nodes, when it is broken and why, and when the run is over. Pure.

    GATHERING ──seal──▶ SEALED ──broken─▶ REGROUPING ──seal──▶ SEALED ...
        ▲                  │                  │ │
        │                  └──── close ───────┼─┴──▶ CLOSED
        └─────── no node of the last round is left

The rules:

1. A round is sealed only while every live node is waiting for one. A live node that may still run workers of an older
   round holds the seal up, so no worker that we can reach ever runs beside a newer round.
2. Only a first gathering has a last call. Survivors are sealed as soon as all of them are back.
3. A round number is never used twice; the record is saved before any node hears of a round.
4. A failure is charged to the restart budget once per round, when all survivors are back and all causes are known:
   a victim's report may arrive before that of the failure that made it one.
5. A coordinator that was elected asks before each seal whether it still is the elected one; without the answer it seals
   nothing. Everything else continues.
6. After a restart of the coordinator nothing is sealed until the members of the last round, running or broken, are
   back or their time is up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from holdfast.coordinator import history, sentences
from holdfast.coordinator.admission import LEFT_OVER, left_over
from holdfast.coordinator.budget import Ruling, Spent, charge, charge_failure
from holdfast.coordinator.events import DropRound, Keep, Note, RunEffect, Save, Tell, WantSeal
from holdfast.coordinator.history import History, News
from holdfast.coordinator.messages import (
    Admit,
    Broken,
    Cause,
    Closed,
    Newcomers,
    Phase,
    Place,
    Rejected,
    RoundId,
    RunSettings,
    Sealed,
    Succession,
)
from holdfast.coordinator.ranks import Candidate, Seat, arrange, choose, places, trim
from holdfast.coordinator.roster import Roster
from holdfast.coordinator.standing import Standing, standby_address
from holdfast.coordinator.state import UNHEARD, Gone, Hold, Holdup, Node, Recovery, Round, RunRecord, Stage, names
from holdfast.coordinator.voting import Voting
from holdfast.facts import Fact
from holdfast.machine import earliest
from holdfast.wire.address import is_loopback
from holdfast.wire.frames import Message

LOSSES_TOLD_MAX = 4


class Rounds(Voting):
    """The state of a run's rounds, and what is due; `RunMachine` handles the messages of nodes."""

    def __init__(
        self,
        run: str,
        make_nonce: Callable[[], str],
        record: RunRecord | None = None,
        now: float = 0.0,
        epoch: float = 0.0,
        *,
        guarded: bool = False,
        awaits_carrier: bool = False,
    ) -> None:
        self.roster = Roster()
        super().__init__(self.roster.nodes)
        self.run = run
        #: Whether the agent that carried the coordinator before may have outlived it.
        self._awaits_carrier = awaits_carrier
        #: A number that an earlier coordinator may have used for a round of which nothing else is known.
        self._reserved = 0
        #: Whether each seal must be allowed from outside.
        self.guarded = guarded
        #: Whether a permission was asked for and has not come yet.
        self.seal_asked = False
        #: Whether a seal is allowed while the present event is handled.
        self._seal_allowed = False
        self.stage = Stage.GATHERING
        self.settings: RunSettings | None = None
        self.round: Round | None = None
        self.last_number = 0
        self.spent = Spent()
        self.closed: Closed | None = None
        #: Whether the first round was sealed here: nothing of it is older than this coordinator.
        self.begun_here = False
        #: Whether there was a record to start from.
        self.has_record = record is not None
        self._make_nonce = make_nonce
        #: What the members of the present round were told of the order of succession.
        self.succession: Succession | None = None
        #: Seats in rank order; those of lost nodes stay until another node takes them.
        self._line: list[Seat] = []
        #: While set, nothing is sealed: the members of the last round are still coming back.
        self.recovery: Recovery | None = None
        #: Since when there have been enough nodes for a round; the last call runs from then.
        self._min_since: float | None = None
        #: Whether the members of the running round know that a node waits.
        self._announced = False
        #: The latest losses, by time and host, for sentences.
        self.lost: list[tuple[float, str]] = []
        #: Where nodes reach the coordinator, unless that is loopback: a node on the same host is reached there too.
        self._reached_as = ""
        self.history = History()
        #: The wall clock at the time 0 of `now`, for facts that people read; nothing is decided by it.
        self._epoch = epoch
        self._now = now
        #: When we last asked to be called.
        self._asked_wakeup: float | None = None
        self._out: list[RunEffect] = []
        if record is not None:
            self._restore(record, now)

    def wakeup(self) -> float | None:
        """Say when time alone changes something."""
        if self.stage is Stage.CLOSED:
            return None
        due = None
        if self.recovery is not None:
            due = self.recovery.ends_at
        elif self.seal_asked or self._awaits_votes:
            pass  # all is ready but the permission, which is an event
        elif self.stage is Stage.SEALED:
            due = self._admission_opens() if self.roster.waiting else None
        elif self.stage is Stage.GATHERING and not self._holdups():
            due = self.last_call_ends()
        return earliest(due, self.roster.next_expiry(), self._probe_at)

    def check(self) -> None:
        """Assert every invariant."""
        self.roster.check()
        settings = self.settings
        if settings is not None:
            assert self.spent.restarts <= settings.max_restarts, "the restart budget is overdrawn"
        round_ = self.round
        if round_ is None:
            return
        assert round_.id.number <= self.last_number, "a round ran ahead of the numbers"
        assert (self.stage is Stage.SEALED) == (round_.broken is None) or self.stage in (
            Stage.CLOSED,
            Stage.GATHERING,
        )
        if self.recovery is not None:
            assert self.recovery.round is round_, "another round is being recovered"
        elif self.stage is Stage.SEALED:
            assert len(round_.places) == round_.size, "a round is half-formed"
            assert settings is not None
            assert settings.min_nodes <= round_.size <= settings.max_nodes, "a round breaks min or max"
            ranks = sorted([place.group_rank for place in round_.places.values()])
            assert ranks == list(range(round_.size)), f"group ranks {ranks} are not contiguous"
            for name in round_.places:
                assert name in self.nodes or name in round_.done, f"{name} is gone but its round goes on"

    def record(self) -> RunRecord:
        """Return what must survive a restart of the coordinator."""
        round_ = self.round
        return RunRecord(
            last_number=self.last_number,
            restarts_used=self.spent.restarts,
            failures_without_progress=self.spent.failures_without_progress,
            closed=self.closed.reason if self.closed else None,
            failed=self.closed.failed if self.closed else False,
            settings=self.settings,
            round=round_.id if round_ else None,
            seats=round_.seats() if round_ and (self.recovery is None or self.recovery.by_name) else [],
            broken=round_.broken if round_ else None,
            awaited=self._awaited(round_) if round_ else 0,
            charged=round_.charged if round_ else False,
            facts=self.history.last,
            reserved=self._reserved,
            cause=_briefly(self.closed.cause) if self.closed else None,
            crash_loop=self.closed is not None and self.closed.crash_loop,
        )

    @property
    def waiting(self) -> int:
        """How many live nodes wait for a round."""
        return self.roster.waiting

    @property
    def restarts_used(self) -> int:
        """How many restarts the job has used."""
        return self.spent.restarts

    @property
    def nodes_waiting(self) -> int:
        """How many nodes wait to be admitted to the running round; spares of a full round do not count."""
        if self.stage is Stage.SEALED and self.round is not None and self.settings is not None:
            return self.roster.waiting if self.round.size < self.settings.max_nodes else 0
        return self.roster.waiting

    # -- nodes --------------------------------------------------------------------------------------------------

    def _set_phase(self, node: Node, phase: Phase, now: float) -> None:
        assert self.settings is not None
        self.roster.set_phase(node, phase, now + self.settings.rejoin_timeout_s)

    def _watch_minimum(self, now: float) -> None:
        """Note since when there have been enough nodes: the last call runs from then."""
        if self.settings is None or self.roster.waiting < self.settings.min_nodes:
            self._min_since = None
        elif self._min_since is None:
            self._min_since = now

    def _remove(self, node: Node, why: Gone, sentence: str, now: float) -> None:
        """Forget a node that is gone, and break its round unless its work was done."""
        name = node.spec.node
        self.roster.remove(node)
        if self.standing is not None:
            self.standing.lose(name, silent=why in UNHEARD)
        self.lost = [*self.lost, (now, node.name)][-LOSSES_TOLD_MAX:]
        round_ = self.round
        self._note(history.node_gone(node, why, sentence))
        if round_ is None or name not in round_.places or name in round_.done:
            return
        round_.losses.append(sentence)
        if round_.broken is None:
            self._set_broken(sentence, now)

    def _expire(self, now: float) -> None:
        due = self.roster.next_expiry()
        if self.closed is not None or due is None or due > now:
            return
        for node in self.roster.expired(now):
            if node.dropped is not None:
                self._remove(node, Gone.DROPPED, f"{node.name} was lost: {node.dropped}", now)
            elif node.expires_at <= now:
                self._remove(node, Gone.SILENT, f"{node.name} was lost: silent for {node.spec.lease_s:g} s", now)
            else:
                self._remove(node, Gone.LATE, f"{node.name} was counted out: it did not rejoin in time", now)
        for node in self.roster.take_late():
            self._note(history.node_late(node))

    # -- failures -----------------------------------------------------------------------------------------------

    def _fail_round(self, node: Node, cause: Cause | None, now: float) -> None:
        """Break the round because one of its members cannot continue it."""
        if cause is None:
            self._set_broken(f"{node.name} asked for a new round", now)
            return
        self._note_failure(node, cause)
        if self.closed is None:
            self._set_broken(sentences.said_by(node.name, cause), now, cause)

    def _note_failure(self, node: Node, cause: Cause) -> None:
        """Remember a failure until its round is charged; one that no restart can mend ends the run at once."""
        assert self.round is not None
        assert self.settings is not None
        self.round.note_failure(node.spec.node, cause)
        if cause.ends_job:
            self._obey(charge_failure(cause, 0.0, self.spent, self.settings))

    def _charge(self) -> bool:
        """Charge the broken round to the budget, once; return whether the run may continue."""
        round_, settings = self.round, self.settings
        assert round_ is not None
        assert settings is not None
        if round_.charged:
            return True
        round_.charged = True
        ruling = charge(round_, self.spent, settings)
        goes_on = self._obey(ruling)
        if goes_on and ruling.root is not None:
            self._out.append(Save(self.record()))
        return goes_on

    def _obey(self, ruling: Ruling) -> bool:
        """Apply the budget's ruling; return whether the run continues."""
        self.spent = ruling.spent
        if ruling.end is not None:
            self._close(ruling.end, failed=True, cause=ruling.root, crash_loop=ruling.crash_loop)
        return ruling.end is None

    # -- sealing and breaking -----------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Do what is due: seal, admit, stop waiting for nodes that do not come back."""
        if self.closed is not None:
            return
        if self._confirming and self.standing is not None:
            self._settle_confirmation(self.standing, now)
        if self.recovery is not None:
            self._settle_recovery(self.recovery, now)
        elif self.stage is Stage.SEALED:
            self._settle_admission(now)
        elif not self._holdups():
            self._settle_gathering(now)

    def _settle_gathering(self, now: float) -> None:
        settings, round_ = self.settings, self.round
        if settings is None:
            return
        if self.stage is Stage.REGROUPING and round_ is not None:
            if not self._charge():
                return
            if not any(name in self.nodes for name in round_.places):
                self.stage = Stage.GATHERING  # REGROUPING -> GATHERING: no node of the last round is left
        holdup = self.holdup(now)
        if holdup is None or holdup.why in (Hold.PERMIT, Hold.QUORUM):
            self._seal_if_allowed(now)

    def holdup(self, now: float) -> Holdup | None:
        """Say what the next round waits for, or None if it is due."""
        settings = self.settings
        missing = settings.min_nodes - self.waiting if settings is not None else 1
        if self._holdups():
            late = len(self.nodes) - self.waiting
            return Holdup(Hold.REJOIN, late) if late else Holdup(Hold.CONNECTION)
        if settings is None or missing > 0:
            return Holdup(Hold.MORE, missing)
        if self.seal_asked:
            return Holdup(Hold.PERMIT)
        if self._awaits_votes:
            return Holdup(Hold.QUORUM)
        if self.stage is Stage.REGROUPING or self.waiting >= (settings.expected or settings.max_nodes):
            return None
        ends = self.last_call_ends()
        if ends is None or now < ends:
            return Holdup(Hold.LAST_CALL, until=now if ends is None else ends)
        return None

    def _holdups(self) -> bool:
        """Whether a live node is not ready to be sealed: it may still run workers, or its connection just broke."""
        return self.roster.waiting < len(self.nodes) or self.roster.dropped > 0

    def last_call_ends(self) -> float | None:
        """Say when a first gathering is sealed with the nodes that are there, or None while they are too few."""
        settings = self.settings
        if self._min_since is None or settings is None:
            return None
        return min(
            self._min_since + settings.last_call_s,
            max(self.roster.last_arrival, self._min_since) + settings.quiet_s,
        )

    def _seal_if_allowed(self, now: float) -> None:
        if self.standing is not None and not self._has_votes(self.standing, now):
            return
        if not self._is_guarded or self._seal_allowed:
            self._seal(now)
        elif not self.seal_asked:
            self.seal_asked = True
            self._out.append(WantSeal(msgspec.structs.replace(self.record(), reserved=self._next_number())))

    @property
    def _is_guarded(self) -> bool:
        return self.guarded or (self.settings is not None and bool(self.settings.guardian))

    def _seal(self, now: float) -> None:
        """GATHERING or REGROUPING -> SEALED."""
        settings = self.settings
        assert settings is not None
        candidates = [
            Candidate(node.spec, node.order, self._address(node))
            for node in self.nodes.values()
            if node.phase is Phase.WAITING
        ]
        if settings.fixed_ranks:
            self._line = []
        line = arrange(self._line, choose(self._line, candidates, settings.max_nodes))
        order = [entry for entry in line if isinstance(entry, Candidate)]
        before = self.round
        if before is not None:
            self._out.append(DropRound(before.id))
        self.begun_here = self.begun_here or self.last_number == 0
        self.last_number = self._next_number()
        round_id = RoundId(self.last_number, self._make_nonce())
        made = places(order, round_id, self.restarts_used)
        self._line = trim(line, settings.max_nodes)
        self.round = Round(
            id=round_id,
            places={candidate.spec.node: place for candidate, place in zip(order, made, strict=True)},
            size=len(order),
            sealed_at=now,
            hosts={candidate.spec.node: candidate.spec.host for candidate in order},
        )
        self.stage = Stage.SEALED
        self._note(history.round_sealed(self.round, before, self.waiting - len(order)))
        self._out.append(Save(self.record()))
        latest = self.history.latest()
        self.succession = self._succession(order)
        if self.succession is not None:
            self._out.append(Keep(self.succession))
        for candidate, place in zip(order, made, strict=True):
            node = self.nodes[candidate.spec.node]
            self._set_phase(node, Phase.RUNNING, now)
            node.sealed_ask = node.ask
            self._tell((candidate.spec.node,), Sealed(node.ask, place, latest, self.succession))

    def _succession(self, order: list[Candidate]) -> Succession | None:
        """Return what the members of the new round need in order to find the next coordinator."""
        if self.standing is None or self.round is None:
            return None
        members = [self.nodes[candidate.spec.node] for candidate in order]
        found = {each.spec.node: standby_address(each, self._address(each)) for each in members}
        addresses = {name: where for name, where in found.items() if where}
        return self.standing.seal(self.round.id, members, addresses, len(self.nodes) - len(members))

    def _next_number(self) -> int:
        return max(self.last_number, self._reserved) + 1

    def _set_broken(self, reason: str, now: float, cause: Cause | None = None) -> None:
        """SEALED -> REGROUPING."""
        round_ = self.round
        assert round_ is not None
        assert round_.broken is None
        round_.broken, round_.broken_at = reason, now
        self.stage = Stage.REGROUPING
        members: list[str] = []
        for name in round_.places:
            node = self.nodes.get(name)
            if node is None or node.phase is Phase.WAITING:
                continue
            if node.phase is not Phase.STOPPING:
                members.append(name)
            self._set_phase(node, Phase.STOPPING, now)
        self._note(history.round_broken(round_, cause))
        self._out.append(Save(self.record()))
        self._tell(tuple(members), Broken(round_.id, reason, self.history.latest()))

    def _mark_finished(self, node: Node) -> None:
        round_ = self.round
        assert round_ is not None
        round_.done[node.spec.node] = None
        if len(round_.done) == round_.size:
            self._close("finished", failed=False)

    def _close(self, reason: str, *, failed: bool, cause: Cause | None = None, crash_loop: bool = False) -> None:
        """Any stage -> CLOSED."""
        if self.closed is not None:
            return
        self.closed = Closed(reason, failed, cause, crash_loop)
        self.stage = Stage.CLOSED
        self.recovery = None
        self._note(history.run_closed(self.run, self.closed, self.last_number, self.restarts_used))
        self._out.append(Save(self.record()))
        self.closed = msgspec.structs.replace(self.closed, facts=self.history.latest())
        self._tell(tuple(self.nodes), self.closed)

    # -- admission ----------------------------------------------------------------------------------------------

    def _settle_admission(self, now: float) -> None:
        if not self.roster.waiting or not self.nodes_waiting:
            self._announced = False
            return
        opens = self._admission_opens()
        round_ = self.round
        assert round_ is not None
        if opens is not None and now >= opens:
            joining = [node.name for node in self.nodes.values() if node.phase is Phase.WAITING]
            self._set_broken(f"{names(joining)} joined", now)
        elif not self._announced:
            self._tell(tuple(round_.places), Newcomers(self.nodes_waiting))
        self._announced = self.nodes_waiting > 0

    def _admission_opens(self) -> float | None:
        """Say from when on a waiting node may break the round, or None while none may."""
        round_, settings = self.round, self.settings
        if round_ is None or settings is None or not self.nodes_waiting or round_.done:
            return None  # work that is being finished is not started again for a newcomer
        if settings.admit is Admit.AT_ONCE:
            return round_.sealed_at
        return round_.sealed_at + settings.admit_every_s if settings.admit is Admit.EVERY else None

    # -- after a restart of the coordinator ---------------------------------------------------------------------

    def _restore(self, record: RunRecord, now: float) -> None:
        self.last_number, self._reserved = record.last_number, record.reserved
        self.spent = Spent(record.restarts_used, record.failures_without_progress)
        self.settings = record.settings
        self.history.catch_up(record.facts)
        if record.closed is not None:
            self.closed = Closed(record.closed, record.failed, record.cause, record.crash_loop)
            self.stage = Stage.CLOSED
        elif record.round is not None and record.settings is not None:
            self._line = list(record.seats)
            self._recover(record.round, record.awaited, record.settings, now)
            if record.broken is not None and self.round is not None:
                self.round.broken, self.round.broken_at, self.round.charged = record.broken, now, record.charged
                self.stage = Stage.REGROUPING

    def _learn(self, node: Node, place: Place, now: float) -> None:
        """Take from a node's place what a coordinator that lost its memory does not know."""
        settings = self.settings
        assert settings is not None
        if place.round.number > self.last_number:
            self.last_number = place.round.number
            if not self.begun_here:  # else it comes from another launch, and so do the restarts that it used
                restarts = min(max(self.spent.restarts, place.restarts_used), settings.max_restarts)
                self.spent = replace(self.spent, restarts=restarts)
            if self.round is None or self.recovery is not None:
                self._line = []
                self._recover(place.round, place.group_world_size, settings, now)
            self._out.append(Save(self.record()))
        if self.recovery is not None and place.round == self.recovery.round.id:
            self.recovery.take_back(node, place)

    def _recover(self, round_id: RoundId, size: int, settings: RunSettings, now: float) -> None:
        """Hold everything until the members of a round that may be running are back."""
        self.recovery = Recovery(
            round_id, size, self._line, now, settings.recovery_s, awaits_carrier=self._awaits_carrier
        )
        self.round, self.stage = self.recovery.round, Stage.SEALED

    def hasten(self, by: float) -> None:
        """Wait for the members of the last round no longer than this: the agents of all that live are back."""
        if self.recovery is not None:
            self.recovery.ends_at = min(self.recovery.ends_at, by)

    def _settle_recovery(self, recovery: Recovery, now: float) -> None:
        if self.standing is not None:
            recovery.note_dead(*self.standing.dead_of(recovery.round.id))
        if not recovery.is_over(now):
            if self.standing is not None:
                self._probe(self.standing, now)
            return
        self._probe_at = None
        missing, round_ = recovery.conclude(), recovery.round
        self.recovery = None
        self._line = round_.seats()
        if missing is None:
            self._note(history.recovered(round_))
            self._out.append(Save(self.record()))
        else:
            round_.losses.append(missing)
            if round_.broken is None:
                self._set_broken(f"{missing} did not come back after the coordinator restarted", now)
        self._settle(now)

    def _end_left_over(self, now: float) -> None:
        """Turn nodes of an earlier launch away once a later one is complete without them; it begins anew then."""
        settings = self.settings
        assert settings is not None
        # Counted, because every node that joins asks: to look at all of them each time would take as long as N * N.
        if not self.roster.earlier or len(self.nodes) - self.roster.earlier < settings.max_nodes:
            return
        found = left_over(self.nodes)
        for node in found:
            self._tell((node.spec.node,), Rejected(LEFT_OVER.format(run=self.run)))
            self._remove(node, Gone.EARLIER, f"{node.name} was left over from an earlier launch", now)
        if found and not self.roster.earlier:
            self.spent, self.recovery = Spent(), None
            if self.standing is not None:
                self.standing = Standing(self.standing.leader, self.standing.rule)

    def _awaited(self, round_: Round) -> int:
        """Say how many of a round's members a coordinator that is started again should wait for."""
        if round_.broken is None or self.recovery is not None:
            return round_.size
        return sum(1 for name in round_.hosts if name in self.nodes)

    # -- small things -------------------------------------------------------------------------------------------

    def _tell(self, nodes: tuple[str, ...], message: Message) -> None:
        if nodes:
            self._out.append(Tell(nodes, message))

    def _note(self, told: News) -> None:
        """Write a fact into the run's history."""
        fact = self.history.add(
            told.kind, told.sentence, {"run": self.run, **told.data}, told.level, self._epoch + self._now
        )
        self._out.append(Note(Fact(fact.kind, told.sentence, fact.data, fact.level, fact.time, fact.number)))

    def _address(self, node: Node) -> str:
        """Return where other nodes reach this one.

        A node beside the coordinator may have come in through loopback; the others reach it where they reach the
        coordinator.
        """
        if is_loopback(node.address) and self._reached_as and not node.spec.address:
            return self._reached_as
        return node.address


def _briefly(cause: Cause | None) -> Cause | None:
    """Leave out what makes a cause long: tracebacks and log lines."""
    return None if cause is None else msgspec.structs.replace(cause, detail={})
