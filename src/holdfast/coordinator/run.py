"""One run: the messages of its nodes, and what they mean for its rounds. Pure.

It decides which nodes may join a run, whether a message is new or late, and what a node is told. `rounds` decides
when rounds are sealed and broken, the roster which nodes are live. It knows nothing of connections, sockets, the store,
or workers.

The rules:

1. Messages may be lost, repeated and delayed: only one with a higher `seq` than the last one counts.
2. A node is live while its lease runs. When this machine itself was called late, silence is its own fault.
3. An ask is answered by one round. When that round is over and the node has not heard of it, the ask is void and the
   node asks again, so that a late answer is recognised.
4. Closed is final: a node that still asks is told so, and nothing else happens.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.coordinator import history, sentences
from holdfast.coordinator.admission import LEFT_OVER, refusal
from holdfast.coordinator.budget import Spent, charge_failure
from holdfast.coordinator.events import (
    Deposed,
    Leads,
    NodeDropped,
    NodeJoined,
    NodeProbed,
    NodeSaid,
    RunEffect,
    RunEvent,
    Save,
    SealAllowed,
)
from holdfast.coordinator.hearing import TARDY_S
from holdfast.coordinator.messages import (
    SURE_SHARE,
    Ack,
    Beat,
    Broken,
    Close,
    Fail,
    Finish,
    Join,
    Leave,
    Phase,
    Place,
    Promise,
    Rejected,
    Replace,
    Resend,
    RoundId,
    Sealed,
    Succession,
    ToldFact,
)
from holdfast.coordinator.rounds import Rounds
from holdfast.coordinator.standing import Standing
from holdfast.coordinator.state import Gone, Node, Round, Stage
from holdfast.machine import Tick
from holdfast.wire.address import is_loopback

NOTE_CHARS_MAX = 300


class RunMachine(Rounds):
    """Decides for one run; see the module's opening."""

    def handle(self, event: RunEvent, now: float) -> list[RunEffect]:
        """Decide what one event means."""
        self._now = now
        if self.closed is not None and not _asks(event):
            return []  # closed is final; a node that still asks is told so
        if self._asked_wakeup is not None and (late_s := now - self._asked_wakeup) > TARDY_S:
            self.roster.was_late(now, late_s)
            self._be_late(late_s)
        match event:
            case NodeJoined():
                self._on_join(event, now)
            case NodeSaid():
                self._on_said(event.node, event.message, now)
            case NodeDropped():
                self._on_drop(event, now)
            case SealAllowed():
                self.seal_asked, self._seal_allowed = False, True
            case Leads():
                self._on_lead(event, now)
            case NodeProbed():
                if event.gone and self.standing is not None and event.node not in self.nodes:
                    self.standing.leave(event.node)
            case Tick():
                pass
        self._expire(now)
        self._watch_minimum(now)
        if self.standing is not None and self.standing.deposed:
            self._out.append(Deposed("another coordinator has taken over"))
        else:
            if self.standing is not None:
                self._watch_deaths(self.standing, now)
            self._settle(now)
        if self._probe_at is not None and now >= self._probe_at:
            self._probe_at = None
        self._seal_allowed = False
        self._asked_wakeup = self.wakeup()
        effects, self._out = self._out, []
        return effects

    def snapshot(self) -> dict[str, Any]:
        """Describe the run as plain data."""
        return sentences.snapshot(self)

    def report(self, now: float) -> dict[str, Any]:
        """Describe the run as it is at this moment, with its sentence."""
        return {**self.snapshot(), "sentence": self.sentence(now)}

    def sentence(self, now: float, node: str | None = None) -> str:
        """Describe the state of the run in one sentence, and what a certain node waits for."""
        return sentences.describe(self, now, node)

    # -- where the coordinator can move --------------------------------------------------------------------------

    def _be_late(self, late_s: float) -> None:
        """Take this coordinator's own lateness into account: its nodes may have followed another one meanwhile."""
        if self.standing is not None and any(late_s > node.spec.lease_s / 2 for node in self.nodes.values()):
            self.standing.is_late()

    def _accept(self, name: str, round_: Round, now: float, steps: int | None = None) -> None:
        """Note that a member has accepted its round, and its steps; all hear it when earlier rounds count no more."""
        standing = self.standing
        if standing is None:
            return
        is_firm = standing.accept(name, round_)
        is_stepped = steps is not None and standing.step(name, steps, round_)
        if is_firm or is_stepped:
            self._tell(tuple(each for each in round_.places if each in self.nodes), self._ack(round_.id, now))

    def _ack(
        self,
        round_id: RoundId | None,
        now: float,
        node: str | None = None,
        missed: tuple[ToldFact, ...] = (),
        seq: int = 0,
    ) -> Ack:
        """Return what the members of a round are told of it where the coordinator can move."""
        assert self.standing is not None
        # What was firm before is not said of the round that a node may have been told of meanwhile.
        present = self.round is not None and round_id == self.round.id
        waits = node is not None and self.nodes[node].phase is Phase.WAITING
        return Ack(
            self.sentence(now, node),
            self.nodes_waiting,
            missed,
            seq,
            present and self.standing.is_firm(round_id),
            (self.spent.restarts, self.spent.failures_without_progress),
            present and self.standing.is_stepped(round_id),
            self.standing.heirs if waits else (),
            self.standing.see_spares(round_id, self.waiting) if present and self.stage is Stage.SEALED else 0,
        )

    def _on_lead(self, event: Leads, now: float) -> None:
        if self.standing is None:
            self.standing = Standing(self._make_nonce())
        self.standing.recall(event.memory, now)

    def _hear_pledge(self, join: Join, now: float) -> None:
        """Take in what a node has promised, and what it was told by the coordinator before this one."""
        pledge = join.pledge
        if pledge is None or not join.settings.takeover:
            return
        if self.standing is None:
            self.standing = Standing(self._make_nonce())
        standing = self.standing
        standing.rule, standing.limits = join.settings.quorum, (join.settings.min_nodes, join.settings.max_nodes)
        # Once it has sealed a round here, what this coordinator itself has seen decides.
        if standing.sure_until == float("-inf") and pledge.ballots and not standing.term.number:
            standing.sure_until = now + join.settings.recovery_s * SURE_SHARE
        standing.hear(join.spec.node, pledge, now)
        if not standing.begun_here and self.recovery is not None and self.settings is not None:
            restarts, in_a_row = pledge.spent
            restarts = min(max(self.spent.restarts, restarts), self.settings.max_restarts)
            self.spent = Spent(restarts, max(self.spent.failures_without_progress, in_a_row))

    # -- what nodes say -----------------------------------------------------------------------------------------

    def _on_said(
        self, name: str, message: Beat | Fail | Replace | Finish | Leave | Close | Promise, now: float
    ) -> None:
        match message:
            case Beat():
                self._on_beat(name, message, now)
            case Fail():
                self._on_fail(name, message, now)
            case Replace():
                self._on_replace(name, message, now)
            case Finish():
                self._on_finish(name, message, now)
            case Leave():
                self._on_leave(name, message, now)
            case Promise():
                if self.standing is not None and self.roster.hear(name, message.seq, now) is not None:
                    self.standing.hear_promise(name, message.poll, message.term)
            case Close():
                self._close(message.reason, failed=message.failed)

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
            if (why := refusal(self.run, join, self.settings, self.nodes)) is not None:
                self._tell((name,), Rejected(why))
                return
            # A spare was in no round, but what it knows of the history shows that it was there.
            is_old = join.place is not None or join.known > 0
            earlier = is_old and not self.has_record and self.roster.last_seq(name) == 0
            if earlier and join.place and self.begun_here and len(self.nodes) >= join.settings.max_nodes:
                self._tell((name,), Rejected(LEFT_OVER.format(run=self.run)))
                return
            node = self._add(join, now, earlier=earlier)
            self._end_left_over(now)
            if name not in self.nodes:
                return  # it was this one
        if event.reached_as and not is_loopback(event.reached_as):
            self._reached_as = event.reached_as
        node.spec, node.seq = join.spec, join.seq
        node.address = join.spec.address or event.address
        self.roster.renew(node, now)
        if join.place is not None:
            self._learn(node, join.place, now)
        self._hear_pledge(join, now)
        if join.phase is Phase.WAITING:
            self._on_wait(node, join, now)
        elif join.place is None:
            self._tell((name,), Resend())
        else:
            self._on_claim(node, join, join.place, now)

    def _on_wait(self, node: Node, join: Join, now: float) -> None:
        round_ = self.round
        running = round_ is not None and node.spec.node in round_.places and round_.broken is None
        if join.ask == node.sealed_ask:
            # It has not heard yet of the round that answers this ask; if that is over, it never shall.
            self._tell((node.spec.node,), answer_again(node, round_, running, self.succession))
            return
        if running:
            self._set_phase(node, Phase.WAITING, now)
            node.ask = join.ask
            self._fail_round(node, join.cause, now)
        elif join.cause is not None and join.place is not None and round_ is not None and join.place.round == round_.id:
            self._note_failure(node, join.cause)
        self._set_phase(node, Phase.WAITING, now)
        node.ask = join.ask

    def _on_claim(self, node: Node, join: Join, place: Place, now: float) -> None:
        """Handle a node that says it is in a round: after a new connection, or after a restart of the coordinator."""
        round_ = self.round
        node.ask = join.ask
        if round_ is None or place.round != round_.id:
            self._set_phase(node, Phase.STOPPING, now)
            self._tell((node.spec.node,), left_behind(place.round, round_))
            return
        node.sealed_ask = join.ask
        if round_.broken is not None:
            self._set_phase(node, Phase.STOPPING, now)
            if join.cause is not None:
                self._note_failure(node, join.cause)
            if join.phase is not Phase.STOPPING:
                self._tell((node.spec.node,), Broken(round_.id, round_.broken))
        elif join.phase is Phase.STOPPING:
            self._set_phase(node, Phase.STOPPING, now)
            self._fail_round(node, join.cause, now)
        else:
            self._set_phase(node, join.phase, now)
            if self.recovery is None:
                self._accept(node.spec.node, round_, now)
            if join.phase is Phase.DONE:
                self._mark_finished(node)

    def _on_beat(self, name: str, beat: Beat, now: float) -> None:
        if self.closed is not None:
            self._tell((name,), self.closed)
            return
        if name not in self.nodes:
            self._tell((name,), Resend())
            return
        if (node := self.roster.hear(name, beat.seq, now)) is None:
            return
        node.note = beat.note[:NOTE_CHARS_MAX]
        self.roster.note_steps(node, beat.steps, now)
        if (reminder := after_beat(node, beat, self.round, self.succession)) is not None:
            self._tell((name,), reminder)
        missed = self.history.since(beat.known)
        if self.standing is None:
            self._tell((name,), Ack(self.sentence(now, name), self.nodes_waiting, missed))
            return
        if self.round is not None and beat.round == self.round.id and self.recovery is None:
            self._accept(name, self.round, now, beat.steps)
        if (elect := self.standing.is_polling(name)) is not None:
            self._tell((name,), elect)
        self._tell((name,), self._ack(beat.round, now, name, missed, beat.seq))

    def _on_fail(self, name: str, fail: Fail, now: float) -> None:
        node, round_ = self.roster.hear(name, fail.seq, now), self.round
        if node is None or round_ is None or fail.round != round_.id or name not in round_.places:
            return
        if round_.broken is None:
            self._set_phase(node, Phase.STOPPING, now)
            self._fail_round(node, fail.cause, now)
        else:
            self._note_failure(node, fail.cause)

    def _on_replace(self, name: str, replace: Replace, now: float) -> None:
        """Charge a failure that the round survives; only its budget can end it."""
        node, round_, settings = self.roster.hear(name, replace.seq, now), self.round, self.settings
        if (
            node is None
            or round_ is None
            or settings is None
            or replace.round != round_.id
            or round_.broken is not None
        ):
            return
        if self._obey(charge_failure(replace.cause, now - round_.sealed_at, self.spent, settings)):
            self._note(history.worker_replaced(node, replace.cause, round_, self.restarts_used))
            self._out.append(Save(self.record()))

    def _on_finish(self, name: str, finish: Finish, now: float) -> None:
        node, round_ = self.roster.hear(name, finish.seq, now), self.round
        if node is not None and self.stage is Stage.SEALED and round_ is not None and finish.round == round_.id:
            self._set_phase(node, Phase.DONE, now)
            self._mark_finished(node)

    def _on_leave(self, name: str, leave: Leave, now: float) -> None:
        node = self.nodes.get(name)
        if node is not None and leave.seq > node.seq:
            self._remove(node, Gone.LEFT, f"{node.name} left: {leave.reason}", now)
            if self.standing is not None:
                self.standing.leave(name)

    def _on_drop(self, event: NodeDropped, now: float) -> None:
        node = self.nodes.get(event.node)
        if node is not None:
            assert self.settings is not None
            self.roster.drop(node, event.reason, now + self.settings.drop_grace_s)

    def _add(self, join: Join, now: float, *, earlier: bool) -> Node:
        if self.settings is None or (not self.nodes and self.round is None):
            self.settings = join.settings
        elif not self.nodes:
            # Nodes gather anew, and those that were expected before may have left the run.
            self.settings = msgspec.structs.replace(self.settings, expected=join.settings.expected)
        return self.roster.add(join, now, earlier=earlier)


def _asks(event: RunEvent) -> bool:
    """Whether a node that says this waits for an answer."""
    return isinstance(event, NodeJoined) or (isinstance(event, NodeSaid) and isinstance(event.message, Beat))


# -- what a node is told again ------------------------------------------------------------------------------------
#
# A node says with every beat what it believes. Where that differs from what is so, one side has missed something:
# either the node is told again, or it is asked for a `Join` that says all.


def after_beat(
    node: Node, beat: Beat, round_: Round | None, succession: Succession | None = None
) -> Sealed | Broken | Resend | None:
    """Return what a node's beat shows to be missing on either side, or None."""
    if beat.phase is Phase.WAITING:
        if node.phase is Phase.WAITING and node.ask == beat.ask:
            return None
        if node.sealed_ask != beat.ask:
            return Resend()
        return answer_again(node, round_, node.phase is Phase.RUNNING, succession)
    if round_ is None or beat.round != round_.id:
        if beat.round is None or node.phase is Phase.WAITING:
            return Resend()
        return None if beat.phase is Phase.STOPPING else left_behind(beat.round, round_)
    if round_.broken is not None:
        return None if beat.phase is Phase.STOPPING else Broken(round_.id, round_.broken)
    return Resend() if beat.phase is not node.phase else None


def answer_again(
    node: Node, round_: Round | None, running: bool, succession: Succession | None = None
) -> Sealed | Resend:
    """Return what became of a node's ask: the round that answered it or, if that is over, that the ask is void."""
    if running and round_ is not None:
        return Sealed(node.sealed_ask, round_.places[node.spec.node], succession=succession)
    return Resend(void=node.sealed_ask)


def left_behind(theirs: RoundId, round_: Round | None) -> Broken:
    """Return what ends a round that is not, or not any more, the present one."""
    if round_ is not None and round_.id.number > theirs.number:
        return Broken(theirs, f"round {theirs.number} is over; round {round_.id.number} went on without this node")
    return Broken(theirs, f"round {theirs.number} is not known here; the coordinator was restarted without its memory")
