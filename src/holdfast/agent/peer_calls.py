"""Questions between the nodes of one round: the stacks of their workers, when a gang is stuck."""

from __future__ import annotations

import itertools
import queue
import time
from collections.abc import Callable
from functools import partial

from holdfast.agent.round_source import Coordinated
from holdfast.facts import facts
from holdfast.rendezvous.events import PeerCalled, PeerReplied
from holdfast.threads import start_thread

Answerer = Callable[[str, str], str]


class PeerCalls:
    """Calls the other nodes and answers them; an answer may take long, so each is found on a thread of its own."""

    def __init__(self, rounds: Coordinated) -> None:
        self._rounds = rounds
        self._numbers = itertools.count(1)
        self._open: dict[int, queue.SimpleQueue[PeerReplied]] = {}
        #: Turns a topic and a body into an answer; unset, calls stay unanswered.
        self.answerer: Answerer | None = None

    def serve(self, answerer: Answerer, count_steps: Callable[[], int]) -> None:
        """Let the others hear of this node's workers: answers to their calls, and with every beat how far they are."""
        self.answerer = answerer
        self._rounds.count_steps(count_steps)

    def call(self, topic: str, body: str, timeout_s: float) -> dict[int, str]:
        """Return the replies of the other nodes by their rank: of all, or of those that came in time."""
        place = self._rounds.place
        others = place.group_world_size - 1 if place is not None else 0
        if others <= 0:
            return {}
        number = next(self._numbers)
        replies: queue.SimpleQueue[PeerReplied] = queue.SimpleQueue()
        self._open[number] = replies
        found: dict[int, str] = {}
        deadline = time.monotonic() + timeout_s
        try:
            self._rounds.call(number, topic, body)
            while len(found) < others and (left := deadline - time.monotonic()) > 0:
                try:
                    reply = replies.get(timeout=left)
                except queue.Empty:
                    break
                found[reply.group_rank] = reply.body
        finally:
            del self._open[number]
        return found

    def hear(self, effect: PeerCalled | PeerReplied) -> None:
        """Take a message from the connection; called on the background thread, never waits."""
        if isinstance(effect, PeerReplied):
            waiting = self._open.get(effect.call)
            if waiting is not None:
                waiting.put(effect)
        elif self.answerer is not None:
            try:
                start_thread(partial(self._answer, effect, self.answerer), "holdfast answer")
            except RuntimeError as error:  # no thread can be started; this one belongs to the connection
                facts.warn("unanswered", f"another node's call about {effect.topic} was not answered: {error}")

    def _answer(self, called: PeerCalled, answerer: Answerer) -> None:
        try:
            body = answerer(called.topic, called.body)
        except Exception as error:  # noqa: BLE001 - the caller waits no longer than it said, whatever this is
            facts.warn("unanswered", f"another node's call about {called.topic} was not answered: {error!r}")
            return
        self._rounds.reply(called, body)
