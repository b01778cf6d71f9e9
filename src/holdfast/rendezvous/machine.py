"""A member: one node's side of the agreement. Pure.

It keeps one connection to the coordinator open, asks for rounds, proves life, and tells its owner (an agent, or a
blocking handler) what was agreed and what broke. It does not know workers: its owner says when they run, fail,
finish or have stopped.

                  ask                Sealed
    IDLE ───────────────▶ WAITING ───────────▶ RUNNING ──finish──▶ DONE
      ▲                      ▲                    │ Broken, fail      │ Broken
      │                      │ ask (workers are   ▼                   │
   leave, Closed             └── stopped) ──── STOPPING ◀─────────────┘

The rules:

1. A lost connection only makes a new one necessary: workers keep running, and the next connection
   starts with a `Join` with all that this node knows. One that stays lost is reported. If the agent that ran the
   coordinator is part of the round, its workers are gone with it: then the node gives up after as long as it would
   wait for a round.
2. An ask ends in a round, in the end of the run, or at its deadline with a sentence that says what was missing.
3. Every message carries an increasing `seq`; only the answer to the latest ask counts.
4. A coordinator that is silent for a lease is looked for anew; its silence is told after a lease or `SILENT_TOLD_S`,
   whichever is shorter, and not blamed on it if this node itself was asleep.
5. Some messages are repeated: a `Join` when the coordinator asks for it, a `Close` with every beat until the
   run is closed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from holdfast.coordinator import messages as wire
from holdfast.coordinator.hearing import LATE_S
from holdfast.coordinator.messages import SURE_SHARE, Cause, Memory, NodeSpec, Phase, Place, RunSettings, ToldFact
from holdfast.machine import Tick, earliest
from holdfast.rendezvous.events import (
    Ask,
    AskFailed,
    Close,
    CoordinatorAway,
    CoordinatorBack,
    DropLink,
    FactHeard,
    Fail,
    Finish,
    Heard,
    Leave,
    LinkDown,
    LinkUp,
    MemberEffect,
    MemberEvent,
    NewcomersWait,
    OpenLink,
    PeerCall,
    PeerCalled,
    PeerReplied,
    PeerReply,
    Remember,
    Replace,
    RoundBroken,
    RoundSealed,
    RunEnded,
    Say,
    Sought,
)
from holdfast.rendezvous.seeking import RETRY_S_MAX, RETRY_S_MIN, Seeker
from holdfast.wire.frames import Message

__all__ = [
    "IN_ROUND",
    "Ask",
    "AskFailed",
    "Close",
    "CoordinatorAway",
    "CoordinatorBack",
    "DropLink",
    "FactHeard",
    "Fail",
    "Finish",
    "Heard",
    "Leave",
    "LinkDown",
    "LinkUp",
    "MemberEffect",
    "MemberEvent",
    "MemberMachine",
    "NewcomersWait",
    "OpenLink",
    "PeerCall",
    "PeerCalled",
    "PeerReplied",
    "PeerReply",
    "Remember",
    "Replace",
    "RoundBroken",
    "RoundSealed",
    "RunEnded",
    "Say",
    "Sought",
    "State",
]

#: How many beats fit into a lease; with a long lease there are more. After a link was down for two seconds the kernel
#: may have sent the next packet three seconds late: a lease of 5 s outlives that and the time since the last beat.
BEATS_PER_LEASE = 4
BEAT_S_MAX = 3.0
#: A coordinator that is silent for so long is told, even where the lease is longer.
SILENT_TOLD_S = 8.0
#: How long a wait lasts before the node asks what it is for.
FIRST_BEAT_S = 0.4


class State(enum.StrEnum):
    """The state of a member."""

    IDLE = "idle"
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    ENDED = "ended"


IN_ROUND = frozenset({State.RUNNING, State.STOPPING, State.DONE})
#: States that may last: there a coordinator that is out of reach is told.
SETTLED = frozenset({State.RUNNING, State.DONE})
_PHASES = {
    State.WAITING: Phase.WAITING,
    State.RUNNING: Phase.RUNNING,
    State.STOPPING: Phase.STOPPING,
    State.DONE: Phase.DONE,
}


class MemberMachine(Seeker):
    """Decides for one node; see the module's opening. `jitter` returns a number from 0 to 1."""

    def __init__(
        self,
        run: str,
        spec: NodeSpec,
        settings: RunSettings,
        jitter: Callable[[], float],
        guide: str = "",
        memory: Memory | None = None,
    ) -> None:
        super().__init__(spec, settings, jitter, guide, memory)
        self.run = run
        self.state = State.IDLE
        #: The round that this node is in, or was in last.
        self.place: Place | None = None
        self.nodes_waiting = 0
        self._seq = 0
        self._ask = 0
        #: What the owner calls its latest ask.
        self._ask_number = 0
        #: The last fact of the run's history that was heard, with all before it.
        self._known = 0
        #: Sent with every beat, for `holdfast rounds`.
        self.note = ""
        #: How many steps the workers here have made; sent with every beat.
        self.steps = 0
        #: Whether to wait for a coordinator without end: another node is elected when its node is gone.
        self.waits_on = False
        self._cause: Cause | None = None
        #: Why the owner wants the run to end; said again until the coordinator says that it has.
        self._close: Close | None = None
        self._deadline: float | None = None
        #: Whether a connection is wanted, and being made or waited for.
        self._wanted = False
        self._heard_at = 0.0
        #: When we last asked to be called.
        self._asked_wakeup: float | None = None
        self._heard_sentence = ""
        #: How long the owner is willing to wait for a round, and so for a coordinator that took workers with it.
        self._patience_s = float("inf")
        self._now = 0.0

    # -- the contract ----------------------------------------------------------------------------------------

    def handle(self, event: MemberEvent, now: float) -> list[MemberEffect]:
        """Decide what one event means."""
        self._now = now
        if self._asked_wakeup is not None and now - self._asked_wakeup > LATE_S:
            self._heard_at = max(self._heard_at, now - self.spec.lease_s / 2)
        match event:  # what comes with every beat first
            case Heard():
                if self._linked:
                    self._heard_at = now
                    self._end_absence(now)
                    self._on_message(event.message)
            case Tick():
                pass
            case Ask():
                self._on_ask(event, now)
            case Fail():
                self._on_fail(event)
            case Replace():
                self._on_replace(event)
            case Finish():
                if self.state is State.RUNNING and self.place is not None:
                    self.state = State.DONE
                    self._say(wire.Finish(self._next_seq(), self.place.round))
            case Leave():
                self._on_leave(event.reason)
            case Close():
                if self.state is not State.ENDED:
                    self._close = event
                    self._say_close()
            case PeerCall():
                self._say(wire.Call(event.call, event.topic, event.body))
            case PeerReply():
                self._say(wire.Reply(event.caller, event.call, event.body))
            case LinkUp():
                self._fixed = event.fixed
                self._on_link_up(now)
            case LinkDown():
                self._on_link_down(event, now)
            case Sought():
                if self.allegiance is not None and not self._linked:
                    self.search.be_sought(event.address)
        self._on_time(now)
        self._asked_wakeup = self._next_wakeup()
        effects, self._out = self._out, []
        return effects

    def wakeup(self) -> float | None:
        """Say when time alone changes something; only an event changes that."""
        return self._asked_wakeup

    def _next_wakeup(self) -> float | None:
        since = self._away.since
        away = gives_up_at = None
        if self._linked:
            settled = since is None and self.state in SETTLED
            away = self._heard_at + (self._told_after_s if settled else self.spec.lease_s)
        elif self.state in SETTLED:
            away = self._away.due(self._told_after_s)
        if since is not None:
            gives_up_at = self._gives_up_at()
        return earliest(self._retry_at, self._deadline, self._beat_at, away, gives_up_at)

    def check(self) -> None:
        """Assert every invariant."""
        assert (self.place is not None) or self.state not in IN_ROUND, f"{self.state} without a round"
        assert self._deadline is None or self.state is State.WAITING, f"a deadline while {self.state}"
        assert not (self._linked and self._retry_at is not None), "retrying while connected"
        if self.state is State.ENDED:
            assert not self._wanted, "a connection after the end"

    def snapshot(self) -> dict[str, Any]:
        """Describe the member as plain data."""
        return {
            "run": self.run,
            "node": self.spec.node,
            "state": self.state.value,
            "connected": self._linked,
            "round": self.place.round.number if self.place else 0,
            "ask": self._ask,
            "nodes_waiting": self.nodes_waiting,
        }

    def count_waiting(self) -> int:
        """Return how many nodes wait to join the round; at least one if the round is broken and another is needed."""
        if self.state is State.STOPPING:
            return max(self.nodes_waiting, 1)
        return self.nodes_waiting if self.state is State.RUNNING else 0

    @property
    def is_linked(self) -> bool:
        """Whether there is a connection to the coordinator."""
        return self._linked

    def sentence(self) -> str:
        """Return what this node waits for, in the coordinator's words if it can be reached."""
        if not self._linked and self.state not in (State.IDLE, State.ENDED):
            return f"{self._away_reason()}; trying again"
        return self._heard_sentence or "asked to join; no answer yet"

    # -- the owner -------------------------------------------------------------------------------------------

    def _on_ask(self, ask: Ask, now: float) -> None:
        if self.state is State.ENDED:
            return
        if self.state is not State.WAITING:
            self._ask += 1
        self.state = State.WAITING
        self.nodes_waiting = 0
        self.describe(port=ask.port)
        self._cause = ask.cause or self._cause
        self._deadline = ask.deadline
        self._patience_s = max(ask.deadline - now, 0.0)
        self._ask_number = ask.number
        if self._linked:
            self._say_join()
            self._beat_soon(now)
        elif not self._wanted:
            self._wanted = True
            self._open()

    def _on_fail(self, event: Fail) -> None:
        if self.state is State.WAITING:
            self._add_cause(event.cause)
        elif self.state in (State.RUNNING, State.DONE) and self.place is not None:
            self.state = State.STOPPING
            self._cause = event.cause
            self._say(wire.Fail(self._next_seq(), self.place.round, event.cause))

    def _on_replace(self, event: Replace) -> None:
        if self.state is State.WAITING:
            self._add_cause(event.cause)
        elif self.state is State.RUNNING and self.place is not None:
            self._say(wire.Replace(self._next_seq(), self.place.round, event.cause))

    def _add_cause(self, cause: Cause) -> None:
        """Say that a worker failed which outlived the last round, while the next one is asked for."""
        if self.place is not None and (self._cause is None or self._cause.victim or cause.ends_job):
            self._cause = cause
            self._say_join()

    def _on_leave(self, reason: str) -> None:
        if self.state is not State.ENDED:
            self._say(wire.Leave(self._next_seq(), reason))
            self._end()

    # -- the connection --------------------------------------------------------------------------------------

    def _on_link_up(self, now: float) -> None:
        if not self._wanted:
            self._out.append(DropLink())
            return
        self._linked = True
        if not self.search.is_elsewhere:
            self._retry_s = RETRY_S_MIN
        self._heard_at = now
        self._end_absence(now)
        self._beat_soon(now)
        if self.state in _PHASES:
            self._say_join()
            self._say_close()

    def _end_absence(self, now: float) -> None:
        if self._away.since is not None and (away_s := self._away.end(now)) is not None:
            self._out.append(CoordinatorBack(away_s))

    def _on_link_down(self, event: LinkDown, now: float) -> None:
        self._linked = False
        self._beat_at = None
        self._link_trouble = event.reason
        if not self._wanted:
            return
        self._away.begin(now)
        turned_away = event.final and not self._ever_in
        if self.search.is_elsewhere and not turned_away:
            self._search_on(event, now)
            return
        if event.final and self.state is State.WAITING:
            self._fail_ask(event.reason, final=True)
            return
        # A first retry at once tells a broken connection from a dead coordinator; then back off.
        self._retry_at = now + self._retry_s * (0.5 + self._jitter()) if self._retry_s > RETRY_S_MIN else now
        self._retry_s = min(self._retry_s * 2, RETRY_S_MAX)

    def _on_time(self, now: float) -> None:
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._open()
        if self._deadline is not None and now >= self._deadline:
            self._fail_ask(self.sentence() if self._linked else self._away_reason())
        if self._linked:
            self._watch_silence(now)
        if self._away.since is not None:
            self._watch_absence(now)
        if self._beat_at is not None and now >= self._beat_at:
            self._beat_at = now + self._beat_s
            if self.state in _PHASES:
                round_id = self.place.round if self.place is not None else None
                seq, phase = self._next_seq(), _PHASES[self.state]
                if self.allegiance is not None:
                    self.allegiance.say_beat(seq, now, self.steps)
                self._say(wire.Beat(seq, phase, self._ask, round_id, self._known, self.note, self.steps))
                self._say_close()

    def _watch_silence(self, now: float) -> None:
        """Give up a connection on which nothing was heard for a lease."""
        if now >= self._heard_at + self._told_after_s:
            self._link_trouble = f"it has been silent for {self._told_after_s:g} s"
            self._away.begin(self._heard_at)
        if now >= self._heard_at + self.spec.lease_s:
            self._out.append(DropLink(silent=True))
            self._on_link_down(LinkDown(f"the coordinator was silent for {self.spec.lease_s:g} s"), now)

    def _watch_absence(self, now: float) -> None:
        """Tell of a coordinator that stays out of reach, and give up one that took workers with it."""
        if self.state in SETTLED and self._away.tell(self.state, now, self._told_after_s):
            self._out.append(CoordinatorAway(self._away_sentence(now)))
        if (gives_up_at := self._gives_up_at()) is not None and now >= gives_up_at:
            self._on_ended(RunEnded(f"{self._away_reason()} for {self._patience_s:g} s", failed=True))

    # -- the coordinator -------------------------------------------------------------------------------------

    def _on_message(self, message: Message) -> None:
        match message:  # the answer to a beat first
            case wire.Ack():
                self._on_ack(message)
            case wire.Sealed():
                self._on_facts(message.facts)
                self._on_sealed(message)
            case wire.Elect():
                self._on_elect(message)
            case wire.Out():
                self._on_out(message, self._now)
            case wire.Broken():
                self._on_facts(message.facts)
                self._on_broken(message)
            case wire.Called():
                self._out.append(PeerCalled(message.caller, message.call, message.topic, message.body))
            case wire.Replied():
                self._out.append(PeerReplied(message.call, message.group_rank, message.body))
            case wire.Newcomers():
                self._on_newcomers(message.nodes_waiting)
            case wire.Resend():
                if self.state is State.WAITING and message.void == self._ask:
                    self._ask += 1
                if self.state in _PHASES:
                    self._say_join()
            case wire.Closed():
                self._on_facts(message.facts)
                if self.allegiance is not None:
                    self._out.append(Remember(None))
                self._on_ended(
                    RunEnded(message.reason, message.failed, cause=message.cause, crash_loop=message.crash_loop)
                )
            case wire.Rejected():
                self._on_ended(RunEnded(message.reason, failed=True, rejected=True))
            case _:
                pass  # not meant for nodes; types that this version does not know are ignored by the link

    def _on_ack(self, ack: wire.Ack) -> None:
        self._settle_in()
        round_id = self.place.round if self.place is not None else None
        if self.allegiance is not None and self.allegiance.hear(ack, round_id):
            self._remember()
        self._heard_sentence = ack.sentence
        self._on_facts(ack.facts, gaps=True)
        self._on_newcomers(ack.nodes_waiting)
        if ack.heirs and self.state is State.WAITING:
            self.search.suggest(ack.heirs)

    def _on_elect(self, elect: wire.Elect) -> None:
        if self.allegiance is not None:
            before = self.allegiance.term
            promised = self.allegiance.promise(elect)
            if promised != before:
                self._remember()
            self._say(wire.Promise(self._next_seq(), elect.poll, promised))

    def _on_sealed(self, message: wire.Sealed) -> None:
        succession = message.succession
        if self.allegiance is not None and succession is not None and not self.allegiance.follows(succession.term):
            return  # from a coordinator that another one has taken over from
        if self.state is State.WAITING and message.ask == self._ask:
            self._settle_in()
            if self.allegiance is not None and succession is not None:
                self.allegiance.accept(message.place.round, succession, self._now)
                self._remember()
                self.search.learn(succession.heirs, self.spec)
                if len(succession.ballots) > 1:
                    self._beat_at = (
                        self._now
                    )  # earlier rounds count until all members are known to have accepted this one
            self.state = State.RUNNING
            self.place = message.place
            # What was told until now counts the nodes that waited for this very round.
            self.nodes_waiting = 0
            self._cause = None
            self._deadline = None
            self._heard_sentence = f"round {message.place.round.number} is running"
            self._out.append(RoundSealed(message.place, self._ask_number))

    def _on_broken(self, message: wire.Broken) -> None:
        place = self.place
        if place is not None and place.round == message.round and self.state in (State.RUNNING, State.DONE):
            self.state = State.STOPPING
            self._out.append(RoundBroken(place, message.reason))

    def _on_newcomers(self, nodes_waiting: int) -> None:
        changed = nodes_waiting != self.nodes_waiting
        self.nodes_waiting = nodes_waiting
        if changed and self.state is State.RUNNING:
            self._out.append(NewcomersWait(nodes_waiting))

    def _on_facts(self, told: tuple[ToldFact, ...], *, gaps: bool = False) -> None:
        """Take facts in their order.

        What rides on another message may have a gap before it, which the answer to the next beat fills; what that
        answers is all that there is, gap or not.
        """
        for fact in told:
            if fact.number == self._known + 1 or (gaps and fact.number > self._known):
                self._known = fact.number
                self._out.append(FactHeard(fact))

    def _on_ended(self, ended: RunEnded) -> None:
        if self.state is not State.ENDED:
            self._end()
            self._out.append(ended)

    # -- small things ----------------------------------------------------------------------------------------

    def _fail_ask(self, reason: str, *, final: bool = False) -> None:
        """Give an ask back unanswered; the node leaves, since its owner no longer waits for a round."""
        if self.state is State.WAITING:
            connected = self._linked
            self._say(wire.Leave(self._next_seq(), "it gave up waiting"))
            self._end()
            self._out.append(AskFailed(reason, connected, final))

    def _end(self) -> None:
        self.state = State.ENDED
        self._deadline = self._retry_at = self._beat_at = None
        if self._wanted:
            self._out.append(DropLink())
        self._wanted = self._linked = False

    def _gives_up_at(self) -> float | None:
        """Say when to stop waiting for a coordinator that took workers of the round with it, or None."""
        place, since = self.place, self._away.since
        if self.state is not State.RUNNING or place is None or since is None or self.waits_on:
            return None
        return since + self._patience_s if place.coordinator_rank not in (-1, place.group_rank) else None

    def _away_reason(self) -> str:
        return f"the coordinator is out of reach ({self._link_trouble})"

    def _away_sentence(self, now: float) -> str:
        if self.state is State.DONE:
            return (
                f"{self._away_reason()}; the work here is done, and the coordinator must still hear of it; trying again"
            )
        words = f"{self._away_reason()}; workers go on; trying again"
        if (gives_up_at := self._gives_up_at()) is None:
            return words
        return f"{words} for {gives_up_at - now:.0f} s: its node is part of the round"

    def _beat_soon(self, now: float) -> None:
        """Beat early after an ask: its answer is the sentence that says what is being waited for."""
        self._beat_at = now + (min(self._beat_s, FIRST_BEAT_S) if self.state is State.WAITING else self._beat_s)

    @property
    def _beat_s(self) -> float:
        return min(self.spec.lease_s / BEATS_PER_LEASE, BEAT_S_MAX)

    @property
    def _told_after_s(self) -> float:
        return min(self.spec.lease_s, SILENT_TOLD_S)

    def _say_join(self) -> None:
        pledge = None
        if self.allegiance is not None and not self._fixed:
            pledge = self.allegiance.pledge(self._now, self.settings.recovery_s * SURE_SHARE)
        self._say(
            wire.Join(
                seq=self._next_seq(),
                run=self.run,
                spec=self.spec,
                settings=self.settings,
                phase=_PHASES[self.state],
                ask=self._ask,
                place=self.place,
                cause=self._cause,
                known=self._known,
                pledge=pledge,
            )
        )

    def _say_close(self) -> None:
        if self._close is not None:
            self._say(wire.Close(self._next_seq(), self._close.reason, self._close.failed))

    def _say(self, message: Message) -> None:
        if self._linked:
            self._out.append(Say(message))

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq
