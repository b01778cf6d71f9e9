"""One run: its nodes, their leases, and the rounds that they agree on. Pure.

What is decided here: who is alive, when a round is sealed and with whom, when it is broken and why, whether a failure
may be answered with another round, and when the run is over. What is not known here: connections, sockets, the
store, what a worker is.

    GATHERING ──seal──▶ SEALED ──break──▶ REGROUPING ──seal──▶ SEALED ...
        ▲                  │                  │ │
        │                  └──── close ───────┼─┴──▶ CLOSED
        └─────── nobody of the last round is left

The rules:

1. A round is sealed only while every live node is waiting for one. A live node that may still run workers of an older
   round holds the seal up, so no worker that we can reach ever runs beside a newer round.
2. A node is live while its lease runs: see the roster.
3. Only a first gathering has a last call. Survivors are sealed the moment that all of them are back.
4. A round number is never used twice; the record is saved before anybody hears of a round.
5. A failure is charged to the restart budget once per round, when all survivors are back and all causes are known:
   a victim's report may arrive before that of the failure that made it one.
6. After a restart of the coordinator nothing is sealed until the members of the last round, running or broken, are
   back or their time is up.
7. When this machine itself was called late, silence is its own fault.
8. An ask is answered by one round. When that round is over and the node has not heard of it, the ask is void and the
   node asks anew, so that an answer that comes late is known as such.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from holdfast.coordinator import sentences
from holdfast.coordinator.budget import Spent, charge, charge_failure
from holdfast.coordinator.events import (
    CloseAsked,
    DropRound,
    NodeBeat,
    NodeDone,
    NodeDropped,
    NodeFailed,
    NodeJoined,
    NodeLeft,
    NodeLostWorker,
    Note,
    RunEffect,
    RunEvent,
    Save,
    Tell,
)
from holdfast.coordinator.fit import misfit
from holdfast.coordinator.history import History
from holdfast.coordinator.messages import (
    Ack,
    Admit,
    Beat,
    Broken,
    Cause,
    Closed,
    Fail,
    Join,
    Loss,
    Newcomers,
    Phase,
    Place,
    Rejected,
    Resend,
    RoundId,
    RunSettings,
    Sealed,
)
from holdfast.coordinator.ranks import Candidate, Seat, arrange, choose, places, trim
from holdfast.coordinator.record import RunRecord
from holdfast.coordinator.roster import Roster
from holdfast.coordinator.state import Node, Round, Stage
from holdfast.facts import INFO, WARNING, Fact
from holdfast.machine import Tick
from holdfast.wire.address import is_loopback
from holdfast.wire.frames import Message

#: A call this much later than asked for means that the coordinator itself was stopped or starved.
LATE_S = 0.5
LOSSES_TOLD_MAX = 4
#: Hosts that a fact names, of however many.
NAMES_TOLD_MAX = 16
NOTE_CHARS_MAX = 300


class RunMachine:
    """Decides for one run; see the module's opening."""

    def __init__(
        self,
        run: str,
        make_nonce: Callable[[], str],
        record: RunRecord | None = None,
        now: float = 0.0,
        epoch: float = 0.0,
    ) -> None:
        self.run = run
        self.stage = Stage.GATHERING
        self.settings: RunSettings | None = None
        self.roster = Roster()
        self.round: Round | None = None
        self.last_number = 0
        self.spent = Spent()
        self.closed: Closed | None = None
        self._make_nonce = make_nonce
        #: Seats in rank order; those of lost nodes stay until somebody takes them.
        self._line: list[Seat] = []
        #: While set, nothing is sealed: the members of the running round are still coming back.
        self.recover_by: float | None = None
        self._min_since: float | None = None
        self._announced = False
        self.lost: list[tuple[float, str]] = []
        self._reached_as = ""
        self.history = History()
        #: The wall clock at the time 0 of `now`, for facts that people read; nothing is decided by it.
        self._epoch = epoch
        self._now = now
        self._out: list[RunEffect] = []
        self._asked_wakeup: float | None = None
        if record is not None:
            self._restore(record, now)

    # -- the contract ----------------------------------------------------------------------------------------

    def handle(self, event: RunEvent, now: float) -> list[RunEffect]:
        """Decide what one event means."""
        self._now = now
        if self.closed is not None and not isinstance(event, NodeJoined | NodeBeat):
            return []  # closed is final; whoever still asks is told so
        if self._asked_wakeup is not None and now - self._asked_wakeup > LATE_S:
            self.roster.have_mercy(now)
        match event:
            case NodeJoined():
                self._on_join(event, now)
            case NodeBeat():
                self._on_beat(event.node, event.beat, now)
            case NodeFailed():
                self._on_fail(event.node, event.fail, now)
            case NodeLostWorker():
                self._on_loss(event.node, event.loss, now)
            case NodeDone():
                self._on_done(event, now)
            case NodeLeft():
                self._on_leave(event, now)
            case NodeDropped():
                self._on_drop(event, now)
            case CloseAsked():
                self._close(event.reason, failed=False)
            case Tick():
                pass
        self._expire(now)
        self._watch_minimum(now)
        self._settle(now)
        self._asked_wakeup = self.wakeup()
        effects, self._out = self._out, []
        return effects

    def wakeup(self) -> float | None:
        """Say when time alone changes something."""
        if self.stage is Stage.CLOSED:
            return None
        times: list[float] = []
        if (expiry := self.roster.next_expiry()) is not None:
            times.append(expiry)
        if self.recover_by is not None:
            times.append(self.recover_by)
        elif self.stage is Stage.GATHERING and (call := self.last_call_ends()) is not None and not self._holdups():
            times.append(call)
        elif self.stage is Stage.SEALED and (admit := self._admission_opens()) is not None:
            times.append(admit)
        return min(times, default=None)

    def check(self) -> None:
        """Assert every invariant."""
        self.roster.check()
        settings = self.settings
        if settings is not None:
            assert self.restarts_used <= settings.max_restarts, "the restart budget is overdrawn"
        round_ = self.round
        if round_ is None:
            return
        assert round_.id.number <= self.last_number, "a round ran ahead of the numbers"
        assert (self.stage is Stage.SEALED) == (round_.broken is None) or self.stage in (
            Stage.CLOSED,
            Stage.GATHERING,
        )
        if self.stage is Stage.SEALED and self.recover_by is None:
            assert len(round_.places) == round_.size, "a round is half-formed"
            assert settings is not None
            assert settings.min_nodes <= round_.size <= settings.max_nodes, "a round breaks min or max"
            ranks = sorted(place.group_rank for place in round_.places.values())
            assert ranks == list(range(round_.size)), f"group ranks {ranks} are not contiguous"
            for name in round_.places:
                assert name in self.nodes or name in round_.done, f"{name} is gone but its round goes on"

    def snapshot(self) -> dict[str, Any]:
        """Describe the run as plain data."""
        round_ = self.round
        return {
            "run": self.run,
            "stage": self.stage.value,
            "recovering": self.recover_by is not None,
            "round": round_.id.number if round_ else 0,
            "broken": round_.broken if round_ else None,
            "restarts_used": self.restarts_used,
            "max_restarts": self.settings.max_restarts if self.settings else None,
            "min_nodes": self.settings.min_nodes if self.settings else None,
            "max_nodes": self.settings.max_nodes if self.settings else None,
            "closed": self.closed.reason if self.closed else None,
            "failed": self.closed.failed if self.closed else False,
            "nodes": [self._describe(node) for node in self.nodes.values()],
        }

    def report(self, now: float) -> dict[str, Any]:
        """Describe the run for a person who asks at this moment."""
        return {**self.snapshot(), "sentence": self.sentence(now)}

    def record(self) -> RunRecord:
        """Return what must survive a restart of the coordinator."""
        round_ = self.round
        return RunRecord(
            last_number=self.last_number,
            restarts_used=self.spent.restarts,
            fruitless=self.spent.fruitless,
            closed=self.closed.reason if self.closed else None,
            failed=self.closed.failed if self.closed else False,
            settings=self.settings,
            round=round_.id if round_ else None,
            seats=self._seats(round_) if round_ and (self._line or self.recover_by is None) else [],
            broken=round_.broken if round_ else None,
            awaited=self._awaited(round_) if round_ else 0,
            charged=round_.charged if round_ else False,
            facts=self.history.last,
        )

    def sentence(self, now: float, node: str | None = None) -> str:
        """Say in one sentence where the run stands, and what a certain node waits for."""
        return sentences.describe(self, now, node)

    @property
    def nodes(self) -> dict[str, Node]:
        """The live nodes."""
        return self.roster.nodes

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
            return self.waiting if self.round.size < self.settings.max_nodes else 0
        return self.waiting

    # -- events ----------------------------------------------------------------------------------------------

    def _on_join(self, event: NodeJoined, now: float) -> None:
        join, name = event.join, event.join.spec.node
        if self.closed is not None:
            self._tell((name,), self.closed)
            return
        node = self.nodes.get(name)
        if join.seq <= self.roster.last_seq(name):
            return
        self.history.catch_up(join.known)
        if node is None:
            if (why := misfit(self.run, join, self.settings, self.nodes)) is not None:
                self._tell((name,), Rejected(why))
                return
            node = self._add(join, now)
        if event.reached_as and not is_loopback(event.reached_as):
            self._reached_as = event.reached_as
        node.spec, node.seq = join.spec, join.seq
        node.address = join.spec.address or event.address
        self.roster.renew(node, now)
        if join.place is not None:
            self._learn(node, join.place, now)
        if join.phase is Phase.WAITING:
            self._on_wait(node, join, now)
        elif join.place is None:
            self._tell((name,), Resend())
        else:
            self._on_claim(node, join, join.place, now)

    def _on_wait(self, node: Node, join: Join, now: float) -> None:
        round_ = self.round
        running = round_ is not None and node.spec.node in round_.places and round_.broken is None
        if join.join == node.sealed_join:
            # It has not heard yet of the round that answers this ask; if that is over, it never shall.
            self._tell_answer(node, running)
            return
        if running:
            self._set_phase(node, Phase.WAITING, now)
            node.join = join.join
            self._give_up(node, join.cause, now)
        elif join.cause is not None and join.place is not None and round_ is not None and join.place.round == round_.id:
            self._note_failure(node, join.cause)
        self._set_phase(node, Phase.WAITING, now)
        node.join = join.join

    def _on_claim(self, node: Node, join: Join, place: Place, now: float) -> None:
        """Take in a node that says it is in a round: after a new connection, or after a restart of the coordinator."""
        round_ = self.round
        node.join = join.join
        if round_ is None or place.round != round_.id:
            self._set_phase(node, Phase.STOPPING, now)
            self._tell((node.spec.node,), Broken(place.round, self._why_left_behind(place.round)))
            return
        node.sealed_join = join.join
        if round_.broken is not None:
            self._set_phase(node, Phase.STOPPING, now)
            if join.cause is not None:
                self._note_failure(node, join.cause)
            if join.phase is not Phase.STOPPING:
                self._tell((node.spec.node,), Broken(round_.id, round_.broken))
        elif join.phase is Phase.STOPPING:
            self._set_phase(node, Phase.STOPPING, now)
            self._give_up(node, join.cause, now)
        else:
            self._set_phase(node, join.phase, now)
            if join.phase is Phase.DONE:
                self._mark_done(node)

    def _on_beat(self, name: str, beat: Beat, now: float) -> None:
        node = self.nodes.get(name)
        if self.closed is not None:
            self._tell((name,), self.closed)
            return
        if node is None:
            self._tell((name,), Resend())
            return
        if beat.seq <= node.seq:
            return
        node.seq = beat.seq
        node.note = beat.note[:NOTE_CHARS_MAX]
        self.roster.renew(node, now)
        self._reconcile(node, beat)
        missed = self.history.since(beat.known)
        self._tell((name,), Ack(self.sentence(now, name), self.nodes_waiting, missed))

    def _reconcile(self, node: Node, beat: Beat) -> None:
        """Tell again whatever the node's beat shows that it has missed, or ask for what we have missed."""
        name, round_ = (node.spec.node,), self.round
        current = round_ is not None and beat.round == round_.id
        if beat.phase is Phase.WAITING:
            if node.phase is Phase.WAITING and node.join == beat.join:
                return
            if node.sealed_join == beat.join:
                self._tell_answer(node, node.phase is Phase.RUNNING)
            else:
                self._tell(name, Resend())
        elif not current:
            if beat.round is None or node.phase is Phase.WAITING:
                self._tell(name, Resend())
            elif beat.phase is not Phase.STOPPING:
                self._tell(name, Broken(beat.round, self._why_left_behind(beat.round)))
        elif round_ is not None and round_.broken is not None:
            if beat.phase is not Phase.STOPPING:
                self._tell(name, Broken(round_.id, round_.broken))
        elif beat.phase is not node.phase:
            self._tell(name, Resend())

    def _tell_answer(self, node: Node, running: bool) -> None:
        """Tell a node again what became of its ask."""
        name = node.spec.node
        if running and self.round is not None:
            self._tell((name,), Sealed(node.sealed_join, self.round.places[name]))
        else:
            self._tell((name,), Resend(void=node.sealed_join))

    def _on_fail(self, name: str, fail: Fail, now: float) -> None:
        node = self.nodes.get(name)
        if node is None or fail.seq <= node.seq:
            return
        node.seq = fail.seq
        self.roster.renew(node, now)
        if self.round is None or fail.round != self.round.id or name not in self.round.places:
            return
        if self.round.broken is None:
            self._set_phase(node, Phase.STOPPING, now)
            self._give_up(node, fail.cause, now)
        else:
            self._note_failure(node, fail.cause)

    def _on_loss(self, name: str, loss: Loss, now: float) -> None:
        """Charge a failure that the round outlives; only its budget can end it."""
        node, round_, settings = self.nodes.get(name), self.round, self.settings
        if node is None or loss.seq <= node.seq:
            return
        node.seq = loss.seq
        self.roster.renew(node, now)
        if round_ is None or settings is None or loss.round != round_.id or round_.broken is not None:
            return
        ruling = charge_failure(loss.cause, now - round_.sealed_at, self.spent, settings)
        self.spent = ruling.spent
        if ruling.end is not None:
            self._close(ruling.end, failed=True, cause=ruling.root, crash_loop=ruling.crash_loop)
            return
        self._note(
            "worker_replaced",
            f"{self._said_by(node, loss.cause)}; it is replaced, the others go on",
            {"round": round_.id.number, "failure": loss.cause.detail or None, "restarts_used": self.restarts_used},
            WARNING,
        )
        self._out.append(Save(self.record()))

    def _on_done(self, event: NodeDone, now: float) -> None:
        node = self.nodes.get(event.node)
        if node is None or event.seq <= node.seq:
            return
        node.seq = event.seq
        self.roster.renew(node, now)
        if self.stage is Stage.SEALED and self.round is not None and event.round == self.round.id:
            self._set_phase(node, Phase.DONE, now)
            self._mark_done(node)

    def _on_leave(self, event: NodeLeft, now: float) -> None:
        node = self.nodes.get(event.node)
        if node is not None and event.seq > node.seq:
            self._remove(node, f"{node.name} left: {event.reason}", now)

    def _on_drop(self, event: NodeDropped, now: float) -> None:
        node = self.nodes.get(event.node)
        if node is not None:
            assert self.settings is not None
            self.roster.drop(node, event.reason, now + self.settings.drop_grace_s)

    # -- nodes -----------------------------------------------------------------------------------------------

    def _add(self, join: Join, now: float) -> Node:
        if self.settings is None or (not self.nodes and self.round is None):
            self.settings = join.settings
        return self.roster.add(join, now)

    def _set_phase(self, node: Node, phase: Phase, now: float) -> None:
        assert self.settings is not None
        self.roster.set_phase(node, phase, now + self.settings.rejoin_timeout_s)

    def _watch_minimum(self, now: float) -> None:
        """Note since when there have been enough nodes: the last call runs from then."""
        if self.settings is None or self.waiting < self.settings.min_nodes:
            self._min_since = None
        elif self._min_since is None:
            self._min_since = now

    def _remove(self, node: Node, sentence: str, now: float) -> None:
        """Forget a node that is gone, and break its round unless its work was done."""
        name = node.spec.node
        self.roster.remove(node)
        self.lost = [*self.lost, (now, node.name)][-LOSSES_TOLD_MAX:]
        round_ = self.round
        self._note("node_gone", sentence, {"node": name, "host": node.name}, WARNING)
        if round_ is None or name not in round_.places or name in round_.done:
            return
        round_.losses.append(sentence)
        if round_.broken is None:
            self._break(sentence, now)

    def _expire(self, now: float) -> None:
        if self.closed is not None:
            return
        for node in self.roster.expired(now):
            if node.dropped is not None:
                self._remove(node, f"{node.name} was lost: {node.dropped}", now)
            elif node.expires_at <= now:
                self._remove(node, f"{node.name} was lost: silent for {node.spec.lease_s:g} s", now)
            else:
                self._remove(node, f"{node.name} was counted out: it did not rejoin in time", now)

    # -- failures --------------------------------------------------------------------------------------------

    def _give_up(self, node: Node, cause: Cause | None, now: float) -> None:
        """Break the round because one of its members will not go on with it."""
        if cause is None:
            self._break(f"{node.name} asked for a new round", now)
            return
        self._note_failure(node, cause)
        self._break(self._said_by(node, cause), now, cause)

    def _said_by(self, node: Node, cause: Cause) -> str:
        return cause.sentence if node.name in cause.sentence else f"{node.name}: {cause.sentence}"

    def _note_failure(self, node: Node, cause: Cause) -> None:
        assert self.round is not None
        self.round.note_failure(node.spec.node, cause)

    def _charge(self) -> bool:
        """Charge the broken round to the budget, once; says whether the run may go on."""
        round_, settings = self.round, self.settings
        assert round_ is not None
        assert settings is not None
        if round_.charged:
            return True
        round_.charged = True
        ruling = charge(round_, self.spent, settings)
        self.spent = ruling.spent
        if ruling.end is not None:
            self._close(ruling.end, failed=True, cause=ruling.root, crash_loop=ruling.crash_loop)
            return False
        if ruling.root is not None:
            self._out.append(Save(self.record()))
        return True

    # -- rounds ----------------------------------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        """Do what is due: seal, admit, stop waiting for those who do not come back."""
        if self.closed is not None:
            return
        if self.recover_by is not None:
            self._settle_recovery(now)
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
                self.stage = Stage.GATHERING  # REGROUPING -> GATHERING: nobody of the last round is left
        if self.waiting < settings.min_nodes:
            return
        if (
            self.stage is Stage.REGROUPING
            or self.waiting >= (settings.expected or settings.max_nodes)
            or ((ends := self.last_call_ends()) is not None and now >= ends)
        ):
            self._seal(now)

    def _holdups(self) -> bool:
        """Whether a live node is not ready to be sealed: it may still run workers, or its connection just broke."""
        return self.waiting < len(self.nodes) or self.roster.dropped > 0

    def last_call_ends(self) -> float | None:
        """Say when a first gathering is sealed with those who are there, or None while they are too few."""
        settings = self.settings
        if self._min_since is None or settings is None:
            return None
        return min(
            self._min_since + settings.last_call_s,
            max(self.roster.last_arrival, self._min_since) + settings.quiet_s,
        )

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
        self.last_number += 1
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
        joined = [name for name in self.round.hosts if before is None or name not in before.hosts]
        waited = now - before.broken_at if before is not None and before.broken is not None else None
        self._note(
            "round_sealed",
            f"round {round_id.number} sealed: {sentences.count(len(order), 'node')}, "
            f"{sentences.count(made[0].world_size, 'worker')}"
            + (f"; {sentences.names([self.round.hosts[name] for name in joined])} joined" if joined else ""),
            {
                "round": round_id.number,
                "nodes": len(order),
                "world_size": made[0].world_size,
                "spares": self.waiting - len(order),
                "joined": [self.round.hosts[name] for name in joined[:NAMES_TOLD_MAX]],
                "regroup_s": waited,
            },
        )
        self._out.append(Save(self.record()))
        news = self.history.latest()
        for candidate, place in zip(order, made, strict=True):
            node = self.nodes[candidate.spec.node]
            self._set_phase(node, Phase.RUNNING, now)
            node.sealed_join = node.join
            self._tell((candidate.spec.node,), Sealed(node.join, place, news))

    def _break(self, reason: str, now: float, cause: Cause | None = None) -> None:
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
        self._note(
            "round_broken",
            f"round {round_.id.number} broke: {reason}",
            {
                "round": round_.id.number,
                "reason": reason,
                "lasted_s": max(now - round_.sealed_at, 0.0),
                "failure": cause.detail if cause is not None else None,
            },
            WARNING,
        )
        self._out.append(Save(self.record()))
        self._tell(tuple(members), Broken(round_.id, reason, self.history.latest()))

    def _mark_done(self, node: Node) -> None:
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
        self.recover_by = None
        self._note(
            "run_closed",
            f"run '{self.run}' closed: {reason}",
            {"reason": reason, "failed": failed, "rounds": self.last_number, "restarts_used": self.restarts_used},
        )
        self._out.append(Save(self.record()))
        self.closed = msgspec.structs.replace(self.closed, facts=self.history.latest())
        self._tell(tuple(self.nodes), self.closed)

    # -- admission -------------------------------------------------------------------------------------------

    def _settle_admission(self, now: float) -> None:
        opens = self._admission_opens()
        round_ = self.round
        assert round_ is not None
        if opens is not None and now >= opens:
            names = [node.name for node in self.nodes.values() if node.phase is Phase.WAITING]
            self._break(f"{sentences.names(names)} joined", now)
        elif self.nodes_waiting and not self._announced:
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

    # -- after a restart of the coordinator ----------------------------------------------------------------------

    def _restore(self, record: RunRecord, now: float) -> None:
        self.last_number = record.last_number
        self.spent = Spent(record.restarts_used, record.fruitless)
        self.settings = record.settings
        self.history.catch_up(record.facts)
        if record.closed is not None:
            self.closed = Closed(record.closed, record.failed)
            self.stage = Stage.CLOSED
        elif record.round is not None and record.settings is not None:
            self._line = list(record.seats)
            self._recover(record.round, record.awaited, now, record.settings.recovery_s)
            if record.broken is not None and self.round is not None:
                self.round.broken, self.round.charged = record.broken, record.charged
                self.stage = Stage.REGROUPING

    def _learn(self, node: Node, place: Place, now: float) -> None:
        """Take from a node's place what a coordinator that lost its memory does not know."""
        settings = self.settings
        assert settings is not None
        if place.round.number > self.last_number:
            self.last_number = place.round.number
            restarts = min(max(self.spent.restarts, place.restarts_used), settings.max_restarts)
            self.spent = replace(self.spent, restarts=restarts)
            if self.round is None or self.recover_by is not None:
                self._line = []
                self._recover(place.round, place.group_world_size, now, settings.recovery_s)
            self._out.append(Save(self.record()))
        round_ = self.round
        if self.recover_by is not None and round_ is not None and place.round == round_.id:
            round_.places[node.spec.node] = place
            round_.hosts[node.spec.node] = node.spec.host
            round_.dead_rank = place.coordinator_rank

    def _recover(self, round_id: RoundId, size: int, now: float, recovery_s: float) -> None:
        """Hold everything until the members of a running round are back."""
        self.round = Round(round_id, {}, size, now, {seat.node: seat.host for seat in self._line})
        self.stage = Stage.SEALED
        self.recover_by = now + recovery_s

    def _settle_recovery(self, now: float) -> None:
        round_, recover_by = self.round, self.recover_by
        assert round_ is not None
        assert recover_by is not None
        back = len(round_.places)
        dead = round_.dead_rank >= 0 and all(p.group_rank != round_.dead_rank for p in round_.places.values())
        if back + dead < round_.size and now < recover_by:
            return
        self.recover_by = None
        round_.places = dict(sorted(round_.places.items(), key=lambda item: item[1].group_rank))
        self._line = self._seats(round_)
        round_.hosts = {seat.node: seat.host for seat in self._line}
        missing = [host for name, host in round_.hosts.items() if name not in round_.places]
        if missing or back < round_.size:
            who = sentences.names(missing) if missing else f"{round_.size - back} of {round_.size} nodes"
            round_.losses.append(who)
            if round_.broken is None:
                self._break(f"{who} did not come back after the coordinator restarted", now)
        else:
            self._note("recovered", f"all {back} nodes of round {round_.id.number} are back", {"nodes": back})
            self._out.append(Save(self.record()))
        self._settle(now)

    def _awaited(self, round_: Round) -> int:
        if round_.broken is None or self.recover_by is not None:
            return round_.size
        return sum(1 for name in round_.hosts if name in self.nodes)

    def _seats(self, round_: Round) -> list[Seat]:
        """Return a round's members in rank order; only one that is learned from its nodes must be sorted for that."""
        names = list(round_.hosts)
        if not self._line:
            names.sort(key=lambda name: round_.places[name].group_rank)
        return [Seat(name, round_.hosts[name]) for name in names]

    # -- small things ----------------------------------------------------------------------------------------

    def _tell(self, nodes: tuple[str, ...], message: Message) -> None:
        if nodes:
            self._out.append(Tell(nodes, message))

    def _note(self, kind: str, sentence: str, data: dict[str, Any], level: int = INFO) -> None:
        """Write a fact into the run's history."""
        told = self.history.add(kind, sentence, {"run": self.run, **data}, level, self._epoch + self._now)
        self._out.append(Note(Fact(kind, sentence, told.data, level, told.time, told.number)))

    def _address(self, node: Node) -> str:
        """Return where other nodes reach this one.

        A node beside the coordinator may have come in through loopback; the others reach it where they reach the
        coordinator.
        """
        if is_loopback(node.address) and self._reached_as and not node.spec.address:
            return self._reached_as
        return node.address

    def _why_left_behind(self, round_id: RoundId) -> str:
        if self.round is not None and self.round.id.number > round_id.number:
            return f"round {round_id.number} is over; round {self.round.id.number} went on without this node"
        return f"round {round_id.number} is not known here; the coordinator was restarted without its memory"

    def _describe(self, node: Node) -> dict[str, Any]:
        place = self.round.places.get(node.spec.node) if self.round is not None else None
        return {
            "node": node.spec.node,
            "host": node.spec.host,
            "address": node.address,
            "role": node.spec.role,
            "workers": node.spec.local_world_size,
            "phase": node.phase.name.lower(),
            "rank": place.group_rank if place is not None and node.phase is not Phase.WAITING else None,
            "connected": node.dropped is None,
            "note": node.note,
        }
