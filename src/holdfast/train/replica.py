"""A replica: some workers of one host that hold one copy of the model together, each a part of it.

To the other workers a replica is one member of the round. Its first worker, the leader, takes part in rounds and has
the trainer machine; the others, the followers, do what the leader's machine decides: every effect that touches a part
of the state is carried out by all of them, and the machine hears of it once all have. So the workers of a replica never
disagree about a step, a round or a rollback.

A replica lives and dies as a whole. Its workers believe each other, and wait for each other without a limit: when one
of them dies, the agent ends the others and starts a new replica. Where a worker notices first, it ends by itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from holdfast.errors import ReplicaLostError, RoundOverError, UnavailableError
from holdfast.facts import facts
from holdfast.store.environ import ENDPOINT_VARIABLE, SPACE_VARIABLE, from_environ
from holdfast.train import events as t
from holdfast.train.membership import Break, RoundView
from holdfast.train.trainer import MachineDecides, Trainer, carry_out

if TYPE_CHECKING:
    from holdfast.rendezvous.events import RunEnded
    from holdfast.train.machine import TrainerMachine

#: How long the workers of a replica wait for each other when they start; their imports may differ by much.
MEET_S = 600.0
#: How often a follower looks whether the leader has said where it listens.
LOOK_S = 0.02
TOKEN_BYTES = 32

_length = struct.Struct("!I")

# -- what is said ------------------------------------------------------------------------------------------------------

#: From the leader: carry this out; the answer to the program's call; what an exchange came to; the round is over.
DO, ANSWER, RESULT, OVER = "do", "answer", "result", "over"
#: From a follower: what an effect came to; its part of an exchange; it cannot go on with the step.
REPORT, VALUE, FAILED = "report", "value", "failed"

#: Effects that every worker of a replica carries out; the machine hears the leader's report unless one was worse.
SHARED = (
    t.OpenRound,
    t.CloseRound,
    t.SyncState,
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
REPORTED = (t.OpenRound, t.SyncState, t.RestoreSaved, t.MoveState, t.SettleSums, t.RollBack, t.AwaitSaves)
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


class Line:
    """One connection between two workers of a replica."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock

    def send(self, *words: Any) -> None:
        """Say something."""
        text = msgspec.msgpack.encode(words)
        try:
            self._sock.sendall(_length.pack(len(text)) + text)
        except OSError as error:
            _lost(error)

    def receive(self) -> list[Any]:
        """Wait for what the other says."""
        (size,) = _length.unpack(self._read(_length.size))
        words: list[Any] = msgspec.msgpack.decode(self._read(size))
        return words

    def close(self) -> None:
        """End the connection, also for a thread that waits for it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                piece = self._sock.recv(size - len(data))
            except OSError as error:
                _lost(error)
            if not piece:
                _lost(None)
            data += piece
        return data


def _lost(error: OSError | None) -> NoReturn:
    raise ReplicaLostError("a worker of the same replica is gone; the agent starts all of them anew") from error


def _encode(what: Any) -> tuple[str, Any]:
    return type(what).__name__, msgspec.to_builtins(what)


def _decode(name: str, fields: Any) -> Any:
    return msgspec.convert(fields, _KINDS[name])


# -- meeting -----------------------------------------------------------------------------------------------------------


def meet(folder: Path, name: str, index: int, size: int) -> LeaderEnd | FollowerEnd:
    """Connect the workers of a replica, who find each other in a folder that only this start of them has."""
    where = folder / f"{name}.json"
    deadline = time.monotonic() + MEET_S
    if index == 0:
        return LeaderEnd(*_accept(where, size - 1, deadline))
    while not where.exists():
        if time.monotonic() > deadline:
            raise UnavailableError(f"the first worker of {name} did not start within {MEET_S:g} s")
        time.sleep(LOOK_S)
    port, token = msgspec.json.decode(where.read_bytes(), type=tuple[int, str])
    lines = []
    for kind in ("control", "news"):
        sock = socket.create_connection(("127.0.0.1", port), timeout=MEET_S)
        sock.sendall(token.encode())
        sock.settimeout(None)
        lines.append(Line(sock))
        lines[-1].send(kind, index)
    return FollowerEnd(*lines)


def _accept(where: Path, followers: int, deadline: float) -> tuple[list[Line], list[Line]]:
    token = secrets.token_hex(TOKEN_BYTES)
    found: dict[tuple[str, int], Line] = {}
    with socket.create_server(("127.0.0.1", 0)) as server:
        draft = where.with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_bytes(msgspec.json.encode((server.getsockname()[1], token)))
        draft.rename(where)
        while len(found) < 2 * followers:
            server.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                sock, _ = server.accept()
                sock.settimeout(max(deadline - time.monotonic(), 0.001))
                if not secrets.compare_digest(sock.recv(len(token), socket.MSG_WAITALL), token.encode()):
                    sock.close()
                    continue
                sock.settimeout(None)
                line = Line(sock)
                kind, index = line.receive()
            except TimeoutError:
                missing = followers - len(found) // 2
                raise UnavailableError(f"{missing} workers of {where.stem} did not start within {MEET_S:g} s") from None
            found[kind, index] = line
    return tuple([found[kind, index + 1] for index in range(followers)] for kind in ("control", "news"))  # type: ignore[return-value]


# -- the leader --------------------------------------------------------------------------------------------------------


class LeaderEnd:
    """The leader's connections to its followers."""

    def __init__(self, control: list[Line], news: list[Line]) -> None:
        self._control = control
        self._news = news
        self._news_lock = threading.Lock()

    def tell(self, *words: Any) -> None:
        """Say something to every follower."""
        for line in self._control:
            line.send(*words)

    def hear(self) -> list[list[Any]]:
        """Wait for what every follower says, in their order."""
        return [line.receive() for line in self._control]

    def tell_over(self, number: int, reason: str) -> None:
        """Have every follower know that a round is over; may be called from any thread."""
        with self._news_lock:
            for line in self._news:
                with contextlib.suppress(ReplicaLostError):  # then the replica ends anyway
                    line.send(number, reason)

    def exchange(self, value: float, total: Callable[[float], float]) -> float:
        """Add up the values of all workers of the replica, make `total` of the sum, and return that to all of them."""
        said = self.hear()
        failed = next((str(words[1]) for words in said if words[0] == FAILED), None)
        try:
            if failed is not None:
                raise RoundOverError(failed)
            result = total(value + sum(float(words[1]) for words in said))
        except RoundOverError as over:
            self.tell(OVER, str(over))
            raise
        self.tell(RESULT, result)
        return result

    def fail(self, reason: str) -> None:
        """Say in place of the next exchange that this worker cannot go on with the step."""
        self.hear()
        self.tell(OVER, reason)

    def close(self) -> None:
        """End all connections."""
        for line in (*self._control, *self._news):
            line.close()


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
        self._end.tell(DO, *_encode(effect), view)
        report = carry_out(trainer, effect)
        if not isinstance(effect, REPORTED):
            return report
        if isinstance(report, t.RoundLost):
            # Or a follower might wait for a worker that does not come any more.
            self._end.tell_over(trainer.view.number, report.reason)
        said = [_decode(words[1], words[2]) if words[1] else None for words in self._end.hear()]
        return merge([report, *said])

    def _view(self, trainer: Trainer) -> list[Any]:
        view = trainer.view
        endpoint, space = trainer.membership.store_address()
        trainer.membership.on_break(lambda reason: self._end.tell_over(view.number, reason))
        return [view.number, view.rank, view.world_size, endpoint, space]


# -- the followers -----------------------------------------------------------------------------------------------------


class FollowerEnd:
    """A follower's connections to its leader."""

    def __init__(self, control: Line, news: Line) -> None:
        self._control = control
        self._news = news

    def tell(self, *words: Any) -> None:
        """Say something to the leader."""
        self._control.send(*words)

    def hear(self) -> list[Any]:
        """Wait for what the leader says."""
        return self._control.receive()

    def hear_news(self) -> list[Any]:
        """Wait for the leader's next news."""
        return self._news.receive()

    def exchange(self, value: float, total: Callable[[float], float]) -> float:
        """Add up the values of all workers of the replica; `total` is the leader's to apply."""
        del total
        self.tell(VALUE, value)
        said, result = self.hear()
        if said == OVER:
            raise RoundOverError(str(result))
        return float(result)

    def fail(self, reason: str) -> None:
        """Say in place of the next exchange that this worker cannot go on with the step."""
        self.tell(FAILED, reason)
        self.hear()

    def close(self) -> None:
        """End both connections."""
        self._control.close()
        self._news.close()


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

    def __init__(self, end: FollowerEnd) -> None:
        self.listener: socket.socket | None = None
        self.news: queue.SimpleQueue[t.TrainerEvent] = queue.SimpleQueue()
        self._break = Break()
        self._number = 0
        self._over = (0, "")
        self._lock = threading.Lock()
        self._end = end
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
        raise AssertionError("a follower joined a round")

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
                with self._lock:
                    self._over = (number, reason)
                    concerns = number >= self._number
                if concerns:
                    self._break.tell(reason)
        except ReplicaLostError as lost:
            self._break.tell(str(lost))
        except Exception as error:  # noqa: BLE001 - the worker must not wait for news that cannot come
            facts.warn("replica_news_failed", f"the leader's news cannot be read: {error!r}")
            self._break.tell(repr(error))
