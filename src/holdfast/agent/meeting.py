"""How an agent meets the others: through our rendezvous, which pushes, or through any other, which is polled."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

from holdfast.agent.api import WorkerSpec
from holdfast.agent.inbox import Inbox
from holdfast.agent.machine import AgentEvent, RoundLost, RunOver, Signalled
from holdfast.agent.questions import Questions
from holdfast.coordinator.messages import Cause, Place
from holdfast.errors import SignalError
from holdfast.facts import Fact, facts
from holdfast.machine import Tick
from holdfast.rendezvous import RendezvousHandler, RendezvousInfo
from holdfast.rendezvous.machine import (
    AnotherAnswers,
    AnotherAsks,
    AskFailed,
    CoordinatorAway,
    CoordinatorBack,
    FactHeard,
    MemberEffect,
    RoundBroken,
    RoundSealed,
    RunEnded,
)
from holdfast.rendezvous.native import HoldfastRendezvousHandler

#: How long a wait goes on before the screen says what it is for, and how often it is said anew.
WAIT_TOLD_AFTER_S = 0.5


class Meeting(Protocol):
    """One agent's way to agree with the others."""

    #: Whether restarts are counted for the whole job by somebody else.
    counts_restarts: bool
    #: Whether newcomers must be asked for.
    is_polled: bool
    #: Whether the loop is inside a call of somebody else's that only an exception can end.
    is_blocking: bool
    #: What ended the last round, to be told with the next ask.
    cause: Cause | None
    wait_step_s: float

    @property
    def node(self) -> str:
        """How this node is known to the others; empty where the rendezvous has no names."""

    @property
    def is_host(self) -> bool:
        """Whether the others need this process to live on."""

    @property
    def place(self) -> Place | None:
        """This node's place, where the rendezvous knows more than node ranks."""

    def would_disturb(self) -> bool:
        """Say whether others are at work whom an ask would interrupt."""

    def ask(self) -> bool:
        """Ask for a round if that has not been done; says whether there is an answer to wait for."""

    def answered(self) -> bool:
        """Say whether the answer has come."""

    def tell_wait(self) -> str:
        """Return what is being waited for, and publish it when that has changed."""

    def round(self) -> RendezvousInfo | tuple[Any, ...]:
        """Return the round; raises what the rendezvous raises."""

    def poll(self) -> int:
        """Return how many nodes want to be admitted; 0 where that is pushed."""

    def tell_failure(self, cause: Cause) -> None:
        """Tell the others that this node cannot go on."""

    def tell_loss(self, cause: Cause) -> None:
        """Tell that a worker failed here and is being replaced."""

    def tell_finished(self) -> None:
        """Tell the others that this node's work is done."""

    def leave(self, reason: str) -> None:
        """Leave politely."""

    @property
    def questions(self) -> Questions | None:
        """How nodes of the round ask each other, where the rendezvous can carry that."""

    def blocking(self) -> AbstractContextManager[None]:
        """Enter this around a call that only an exception can end, so that a signal raises one."""


def meet(spec: WorkerSpec, inbox: Inbox[AgentEvent]) -> Meeting:
    """Return the way that fits the spec's handler."""
    handler = spec.rdzv_handler
    return (
        PushedMeeting(spec, handler, inbox)
        if isinstance(handler, HoldfastRendezvousHandler)
        else PolledMeeting(handler, inbox)
    )


class PushedMeeting:
    """Through our own rendezvous: every change arrives in the inbox."""

    counts_restarts = True
    is_polled = False
    is_blocking = False
    wait_step_s = WAIT_TOLD_AFTER_S

    def __init__(self, spec: WorkerSpec, handler: HoldfastRendezvousHandler, inbox: Inbox[AgentEvent]) -> None:
        self.cause: Cause | None = None
        self._handler = handler
        self._inbox = inbox
        self._asked = False
        self._outcome: RoundSealed | RunEnded | AskFailed | None = None
        self._asked_at = 0.0
        self._told = ""
        self.questions: Questions | None = Questions(handler)
        handler.describe_node(role=spec.role, local_world_size=spec.local_world_size)
        handler.allow_restarts(spec.max_restarts)
        handler.listen(self._on_effect)

    @property
    def node(self) -> str:
        """This node's name."""
        return self._handler.node

    @property
    def is_host(self) -> bool:
        """Whether this process carries the coordinator."""
        return self._handler.is_host

    @property
    def place(self) -> Place | None:
        """This node's place."""
        return self._handler.place

    def would_disturb(self) -> bool:
        """Look at the run without joining it."""
        return self._handler.would_disturb()

    def ask(self) -> bool:
        """Ask once; true until the answer has been taken."""
        if not self._asked:
            self._asked, self._outcome = True, None
            self._asked_at, self._told = time.monotonic(), ""
            self._handler.ask(self.cause)
        return True

    def answered(self) -> bool:
        """Say whether the answer has come."""
        return self._outcome is not None

    def tell_wait(self) -> str:
        """Publish the wait's sentence once it lasts, and again when it changes."""
        sentence = self._handler.sentence()
        if sentence != self._told and time.monotonic() - self._asked_at >= WAIT_TOLD_AFTER_S:
            self._told = sentence
            facts.publish(Fact("waiting", sentence))
        return sentence

    def round(self) -> RendezvousInfo:
        """Return the round or raise why there is none."""
        self._asked = False
        return self._handler.take_round()

    def poll(self) -> int:
        """Newcomers are pushed."""
        return 0

    def tell_failure(self, cause: Cause) -> None:
        """Have the coordinator tell everybody."""
        self._handler.give_up(cause)

    def tell_loss(self, cause: Cause) -> None:
        """Have the coordinator count it; it says so if that was one too many."""
        self._handler.replace(cause)

    def tell_finished(self) -> None:
        """Tell the coordinator; the end of the run is pushed."""
        self._handler.finish()

    def leave(self, reason: str) -> None:
        """Leave politely."""
        self._handler.leave(reason)

    def blocking(self) -> AbstractContextManager[None]:
        """Our own rendezvous never blocks."""
        return nullcontext()

    def _on_effect(self, effect: MemberEffect) -> None:
        """Runs on the background thread: only enqueues, and passes facts on."""
        if isinstance(effect, FactHeard):
            told = effect.fact
            facts.publish(Fact(told.kind, told.sentence, told.data, told.level, told.time, told.number))
        elif isinstance(effect, CoordinatorAway):
            facts.warn("coordinator_away", effect.sentence)
        elif isinstance(effect, CoordinatorBack):
            facts.warn("coordinator_back", f"the coordinator answers again after {effect.away_s:.1f} s")
        elif isinstance(effect, AnotherAsks | AnotherAnswers):
            assert self.questions is not None
            self.questions.hear(effect)
        elif isinstance(effect, RoundBroken):
            self._inbox.put(RoundLost(effect.reason, effect.place.round.number))
        elif isinstance(effect, RoundSealed | AskFailed):
            self._outcome = effect
            self._inbox.put(_WAKE)
        elif isinstance(effect, RunEnded):
            if effect.rejected:
                self._outcome = effect
                self._inbox.put(_WAKE)
            else:
                self._inbox.put(RunOver(effect.reason, effect.failed, effect.cause, effect.crash_loop))


class PolledMeeting:
    """Through anybody's handler: it blocks while a round forms, and is asked about newcomers."""

    counts_restarts = False
    is_polled = True
    is_host = False
    node = ""
    place: Place | None = None
    questions: Questions | None = None
    wait_step_s = 0.0

    def __init__(self, handler: RendezvousHandler, inbox: Inbox[AgentEvent]) -> None:
        self.cause: Cause | None = None
        self.is_blocking = False
        self._handler = handler
        self._inbox = inbox

    def would_disturb(self) -> bool:
        """A stranger's handler cannot be asked without joining."""
        return False

    def ask(self) -> bool:
        """There is nothing to wait for: the round itself blocks."""
        return False

    def answered(self) -> bool:
        """There is nothing to wait for."""
        return True

    def tell_wait(self) -> str:
        """A stranger's handler has no sentence."""
        return ""

    def round(self) -> RendezvousInfo | tuple[Any, ...]:
        """Block in the handler until it has a round."""
        with self.blocking():
            return self._handler.next_rendezvous()

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Have a signal raise `SignalError`, one that has just come included."""
        self.is_blocking = True
        try:
            if (came := self._inbox.find(Signalled)) is not None:
                raise SignalError(f"received {came.name}", signal.Signals(came.number))
            yield
        finally:
            self.is_blocking = False

    def poll(self) -> int:
        """Ask the handler."""
        return self._handler.num_nodes_waiting()

    def tell_failure(self, cause: Cause) -> None:
        """The others notice by their own means."""

    def tell_loss(self, cause: Cause) -> None:
        """Nobody counts for us."""

    def tell_finished(self) -> None:
        """The exit barrier follows."""

    def leave(self, reason: str) -> None:
        """A stranger's handler knows no polite way to leave."""


#: Wakes the loop without meaning anything.
_WAKE = Tick()
