"""A replica: some workers that hold one copy of the model together, each a part of it; on one host or on several.

To the other workers a replica is one member of the round. Its first worker, the leader, takes part in rounds and has
the trainer machine; the others, the followers, do what the leader's machine decides: every effect that touches a part
of the state is carried out by all of them, and the machine hears of it once all have. So the workers of a replica never
disagree about a step, a round or a rollback.

A replica lives and dies as a whole. Its workers believe each other, and wait for each other without a limit: when one
of them dies, the agent ends the others and starts a new replica. Where a worker notices first, it ends by itself; on
another host that is how it ends, and the agent there starts its part of the new replica.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import ReplicaLostError
from holdfast.facts import facts
from holdfast.store.environ import ENDPOINT_VARIABLE, SPACE_VARIABLE, from_environ
from holdfast.train import events as t
from holdfast.train.membership import Break, RoundView
from holdfast.train.replica_lines import ANSWER, BYE, DO, REPORT, FollowerEnd, LeaderEnd
from holdfast.train.trainer import MachineDecides, Trainer, carry_out
from holdfast.typed import learned

if TYPE_CHECKING:
    from holdfast.rendezvous.events import RunEnded
    from holdfast.train.machine import TrainerMachine

# -- what is said ------------------------------------------------------------------------------------------------------

#: Effects that every worker of a replica carries out; the machine hears the leader's report unless one was worse.
SHARED = (
    t.OpenRound,
    t.CloseRound,
    t.SyncState,
    t.FindSaved,
    t.RestoreSaved,
    t.MoveState,
    t.MarkState,
    t.SettleSums,
    t.CountStep,
    t.RollBack,
    t.SaveNow,
    t.AwaitSaves,
)
#: Of these the leader waits to hear from all.
REPORTED = (
    t.OpenRound,
    t.SyncState,
    t.FindSaved,
    t.RestoreSaved,
    t.MoveState,
    t.SettleSums,
    t.RollBack,
    t.AwaitSaves,
)
#: These the followers may hear of together with what comes next: the leader waits for none of them in between.
TOLD_LATER = (t.MarkState, t.CountStep)
_KINDS: dict[str, type] = {
    name: kind for name, kind in vars(t).items() if isinstance(kind, type) and kind.__module__ == t.__name__
}


def merge(reports: list[t.TrainerEvent | None]) -> t.TrainerEvent | None:
    """Make one report of what an effect came to on all workers of a replica: the worst one, the leader's first."""
    for report in reports:
        if isinstance(report, t.RoundLost):
            return t.RoundLost(report.reason, any(isinstance(each, t.RoundLost) and each.touched for each in reports))
        if isinstance(report, t.StepFailed | t.SavedUnreadable):
            return report
    if any(isinstance(report, t.StepRolledBack) and not report.whole for report in reports):
        return t.StepRolledBack(whole=False)
    return reports[0]


def _encode(what: Any) -> tuple[str, Any]:
    return type(what).__name__, msgspec.to_builtins(what)


def _decode(name: str, fields: Any) -> Any:
    return msgspec.convert(fields, learned(_KINDS[name]))


# -- the leader ------------------------------------------------------------------------------------------------------


class Leads:
    """Decides for a replica: by the machine, with every worker's hands."""

    shares_fate = True

    def __init__(self, machine: TrainerMachine, end: LeaderEnd) -> None:
        self._end = end
        self._decides = MachineDecides(machine, self._perform)

    def drive(self, trainer: Trainer, event: t.TrainerEvent) -> t.TrainerEffect | None:
        """Decide what follows from an event, and tell the followers how it ends."""
        answer = self._decides.drive(trainer, event)
        self._end.tell(ANSWER, *(_encode(answer) if answer is not None else ("", None)))
        return answer

    def close(self) -> None:
        """End the connections to the followers."""
        self._end.close()

    def _perform(self, trainer: Trainer, effect: t.TrainerEffect) -> t.TrainerEvent | None:
        if isinstance(effect, t.SaveIfDue):
            if not trainer.is_save_due():
                return None
            effect = t.SaveNow(wait=False)
        if not isinstance(effect, SHARED):
            return carry_out(trainer, effect)
        view = self._view(trainer) if isinstance(effect, t.OpenRound) else None
        tell = self._end.tell_later if isinstance(effect, TOLD_LATER) else self._end.tell
        tell(DO, *_encode(effect), view)
        report = carry_out(trainer, effect)
        if not isinstance(effect, REPORTED):
            return report
        if isinstance(report, t.RoundLost):
            # Or a follower might wait for a worker that does not come any more.
            self._end.tell_over(trainer.view.number, report.reason)
        reports = [report, *(_decode(words[1], words[2]) if words[1] else None for words in self._end.hear())]
        merged = merge(reports)
        if isinstance(merged, t.RoundLost) and isinstance(effect, t.MoveState) and trainer.rank in effect.to:
            # A part that has arrived does not fit those that have not.
            return t.RoundLost(merged.reason, merged.touched or any(isinstance(r, t.StateMoved) for r in reports))
        return merged

    def _view(self, trainer: Trainer) -> list[Any]:
        view = trainer.view
        endpoint, space = trainer.membership.store_address()
        trainer.membership.on_break(lambda reason: self._end.tell_over(view.number, reason))
        return [view.number, view.rank, view.world_size, endpoint, space]


# -- the followers ---------------------------------------------------------------------------------------------------


class Follows:
    """Does what the leader's machine decides."""

    shares_fate = True

    def __init__(self, end: FollowerEnd, rounds: FollowerRounds) -> None:
        self._end = end
        self._rounds = rounds

    def drive(self, trainer: Trainer, event: t.TrainerEvent) -> t.TrainerEffect | None:
        """Do what the leader says until it has an answer for the program."""
        del event  # the leader's program is in the same place, and so has the same
        while True:
            said, name, fields, *more = self._end.hear()
            if said == ANSWER:
                return _decode(name, fields) if name else None
            effect = _decode(name, fields)
            if isinstance(effect, t.OpenRound):
                view = _make_view(more[0])
                self._rounds.begin(view.number)
                trainer.take_view(view)
            report = carry_out(trainer, effect)
            if isinstance(effect, REPORTED):
                self._end.tell(REPORT, *(_encode(report) if report is not None else ("", None)))

    def close(self) -> None:
        """End the connections to the leader."""
        self._end.close()


def _make_view(told: list[Any]) -> RoundView:
    number, rank, world_size, endpoint, space = told
    store = from_environ({**os.environ, ENDPOINT_VARIABLE: endpoint, SPACE_VARIABLE: space})
    return RoundView(number, rank, world_size, store, address="", peer=("", 0), token=lambda _: b"")


class FollowerRounds:
    """What a follower knows of rounds: that one is over, which its leader tells it."""

    def __init__(self, end: FollowerEnd, on_lost: Callable[[], None] | None = None) -> None:
        self.listener: socket.socket | None = None
        self.news: queue.SimpleQueue[t.TrainerEvent] = queue.SimpleQueue()
        self._break = Break()
        self._number = 0
        self._over = (0, "")
        self._lock = threading.Lock()
        self._end = end
        self._on_lost = on_lost
        threading.Thread(target=self._listen, name="replica-news", daemon=True).start()

    def begin(self, number: int) -> None:
        """Wait for the end of another round, which may have been told already."""
        self._break.renew()
        with self._lock:
            self._number = number
            over, reason = self._over
        if over >= number:
            self._break.tell(reason)

    @property
    def broken(self) -> str | None:
        """Why the round is over; None while it runs."""
        return self._break.reason

    @property
    def is_connected(self) -> bool:
        """Whether the coordinator can be reached is the leader's concern."""
        return True

    @property
    def ended(self) -> RunEnded | None:
        """How the training ended is the leader's concern."""
        return None

    def join(self, cause: str | None = None) -> RoundView:
        """Never asked: the leader joins."""
        raise AssertionError(f"a follower joined a round ({cause})")

    def on_break(self, breaker: Callable[[str], None]) -> None:
        """Have `breaker` called when the round is over; at once where it is already."""
        self._break.call(breaker)

    def wait_broken(self, timeout_s: float) -> bool:
        """Wait for the news that the round is over; says whether it came in time."""
        return self._break.wait(timeout_s)

    def store_address(self) -> tuple[str, str]:
        """Never asked: the leader tells it."""
        raise AssertionError("a follower was asked for the store's address")

    def note(self, text: str) -> None:
        """The leader's note stands for all."""

    def close_run(self, reason: str, *, failed: bool = False) -> None:
        """The leader closes the run."""

    def leave(self, reason: str) -> None:
        """The leader leaves for all."""

    def _listen(self) -> None:
        """Runs on a thread of its own."""
        try:
            while True:
                number, reason = self._end.hear_news()
                if number == BYE:
                    self._break.tell("the leader of this replica has ended its training")
                    return
                with self._lock:
                    self._over = (number, reason)
                    concerns = number >= self._number
                if concerns:
                    self._break.tell(reason)
        except ReplicaLostError as lost:
            self._break.tell(str(lost))
            if self._on_lost is not None and not self._end.is_closed:
                self._on_lost()
        except Exception as error:  # noqa: BLE001 - the worker must not wait for news that cannot come
            facts.warn("replica_news_failed", f"the leader's news cannot be read: {error!r}")
            self._break.tell(repr(error))
