"""The coordinator: connections on one side, runs and the store on the other. Pure.

It knows which connection speaks for which node of which run, hands every message to the run it belongs to, and
sends a run's messages to a node on its connection. A node has one connection; a newer one takes over
from an older one, whose end then means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.coordinator.events import (
    Confirmed,
    Deposed,
    DropRound,
    Keep,
    Leads,
    NodeDropped,
    NodeJoined,
    NodeProbed,
    NodeSaid,
    Note,
    Probe,
    RunEffect,
    RunEvent,
    Save,
    SealAllowed,
    Tell,
    WantSeal,
)
from holdfast.coordinator.messages import (
    RUN_CHARS_MAX,
    Beat,
    Call,
    Called,
    Close,
    Closed,
    Fail,
    Finish,
    Join,
    Leave,
    Memory,
    Out,
    Promise,
    Query,
    Rejected,
    Replace,
    Replied,
    Reply,
    Report,
    Resend,
    RoundId,
    Seek,
    Seen,
    Succession,
)
from holdfast.coordinator.run import RunMachine
from holdfast.coordinator.state import RunRecord
from holdfast.coordinator.takeover import Takeover
from holdfast.machine import Tick, earliest
from holdfast.store.machine import Asked, PeerGone, SpaceDropped, StoreMachine
from holdfast.store.messages import STORE_REQUESTS
from holdfast.wire.frames import Message

#: How many runs one coordinator holds at the same time; the oldest that is closed or deserted is removed.
RUNS_MAX = 4096
#: How long the workers of agents that are back may take to be back, too.
WORKERS_BACK_S = 0.5
_STORE_REQUESTS = frozenset(STORE_REQUESTS)
OUT_REASON = "another agent carries the coordinator"

# -- events --------------------------------------------------------------------------------------------------
#
# Events and effects are structs because one of each is made for every beat of every node.


class Connected(msgspec.Struct, frozen=True):
    """A connection has proven the secret; `reached_as` is our own address on it."""

    peer: Hashable
    address: str
    reached_as: str = ""


class Received(msgspec.Struct, frozen=True):
    """A message arrived."""

    peer: Hashable
    message: Message


class Disconnected(msgspec.Struct, frozen=True):
    """A connection is gone."""

    peer: Hashable
    reason: str


class RunMaySeal(msgspec.Struct, frozen=True):
    """The answer to `AskSeal`: this run may seal a round at this moment."""

    run: str


class Lead(msgspec.Struct, frozen=True):
    """This process's own agent carries the run's coordinator from now on, since the one before is gone."""

    run: str
    #: What the agent knows of the run, from its own rounds or from those of the process before it.
    memory: Memory | None = None


class Follow(msgspec.Struct, frozen=True):
    """This process's own agent has found the run's coordinator elsewhere."""

    run: str
    address: str


class Stray(msgspec.Struct, frozen=True):
    """This process's own agent was sent away where it followed a coordinator, or hears nothing there."""

    run: str
    address: str


class HandOver(msgspec.Struct, frozen=True):
    """This process's agent leaves: another one should carry its runs' coordinator."""

    reason: str


class Probed(msgspec.Struct, frozen=True):
    """The answer to `ProbeNode`."""

    run: str
    node: str
    gone: bool


class Found(msgspec.Struct, frozen=True):
    """The answer to `AskOther`."""

    address: str
    seen: Seen


TakeoverEvent = Lead | Follow | Stray | HandOver | Probed | Found
CoordinatorEvent = Connected | Received | Disconnected | RunMaySeal | TakeoverEvent | Tick

# -- effects -------------------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True):
    """Send one message to connections."""

    peers: tuple[Hashable, ...]
    message: Message


class SaveRun(msgspec.Struct, frozen=True):
    """Make a run's record durable before any effect behind this one is carried out."""

    run: str
    record: RunRecord


class KeepSuccession(msgspec.Struct, frozen=True):
    """Make what the members of a new round are told durable before any effect behind this one is carried out."""

    run: str
    succession: Succession


class ForgetRun(msgspec.Struct, frozen=True):
    """Remove the record of a run that was removed for another."""

    run: str


class AskSeal(msgspec.Struct, frozen=True):
    """Find out whether this coordinator may seal a round of a run; answered by `RunMaySeal` once it may."""

    run: str
    record: RunRecord


class ProbeNode(msgspec.Struct, frozen=True):
    """Find out whether a node's process is surely gone; answered by `Probed`."""

    run: str
    node: str
    address: str


class AskOther(msgspec.Struct, frozen=True):
    """Ask an agent whether it carries the coordinator of a run; answered by `Found` if it answers."""

    address: str
    seek: Seek


class Sought(msgspec.Struct, frozen=True):
    """Another coordinator looks for a run's agents: a node that has none may look there."""

    run: str
    address: str


CoordinatorEffect = Send | SaveRun | KeepSuccession | ForgetRun | AskSeal | ProbeNode | AskOther | Sought | Note


@dataclass(slots=True)
class Session:
    """One connection: where it comes from and, once it has joined, which node it speaks for."""

    address: str
    reached_as: str
    run: str = ""
    node: str = ""
    #: The `seq` of its last `Join`, which tells a newer connection of a node from an older one.
    seq: int = 0
    #: Whether it has ever asked the store, so that the store needs to hear of its end.
    asked: bool = False


def round_space(run: str, round_id: RoundId) -> str:
    """Return the store's namespace of one round; nothing in it is ever read in another."""
    return f"{run}/{round_id}"


def run_space(run: str) -> str:
    """Return the store's namespace of a whole run."""
    return f"{run}/"


class CoordinatorMachine:
    """Decides for all runs of one coordinator; see the module's opening."""

    def __init__(
        self,
        make_nonce: Callable[[], str],
        records: Mapping[str, RunRecord] | None = None,
        now: float = 0.0,
        epoch: float = 0.0,
        *,
        guarded: bool = False,
        awaits_carrier: bool = False,
        address: str = "",
        home: str = "",
    ) -> None:
        self._make_nonce = make_nonce
        self.takeover = Takeover(address, home)
        self._epoch = epoch
        self._guarded, self._awaits_carrier = guarded, awaits_carrier
        self.runs: dict[str, RunMachine] = {
            run: self._make_run(run, record, now) for run, record in (records or {}).items()
        }
        self.store = StoreMachine(make_nonce())
        self.sessions: dict[Hashable, Session] = {}
        #: When each run wants to be called; those that only wait for an event are not in it.
        self._wakeups: dict[str, float] = {}
        for run in self.runs:
            self._note_wakeup(run)
        #: Which connection speaks for a node, by (run, node).
        self._peers: dict[tuple[str, str], Hashable] = {}
        self._out: list[CoordinatorEffect] = []

    # -- the contract ----------------------------------------------------------------------------------------

    def handle(self, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
        """Decide what one event means."""
        if isinstance(event, Received):
            message = event.message
            if type(message) in _STORE_REQUESTS:
                self._ask_store(event.peer, message, now)
            else:
                self._on_message(event.peer, message, now)
        elif isinstance(event, Connected):
            self.sessions[event.peer] = Session(event.address, event.reached_as)
        elif isinstance(event, Disconnected):
            self._on_disconnect(event.peer, event.reason, now)
        elif isinstance(event, RunMaySeal):
            if event.run in self.runs:
                self._run(event.run, SealAllowed(), now)
        elif isinstance(event, Tick):
            self._tick(now)
        else:
            self._on_takeover(event, now)
        effects, self._out = self._out, []
        return effects

    def wakeup(self) -> float | None:
        """Say when time alone changes something."""
        first = min(self._wakeups.values()) if self._wakeups else None
        return earliest(first, self.store.wakeup(), self.takeover.wakeup())

    def check(self) -> None:
        """Assert every invariant."""
        for (run, node), peer in self._peers.items():
            session = self.sessions[peer]
            assert session.node == node, f"two connections speak for {node}"
            assert session.run == run, f"a connection speaks for {node} in two runs"
        for machine in self.runs.values():
            machine.check()
        self.store.check()

    def snapshot(self) -> dict[str, Any]:
        """Describe the coordinator as plain data."""
        return {
            "runs": [run.snapshot() for run in self.runs.values()],
            "connections": len(self.sessions),
            "store": self.store.snapshot(),
        }

    def speaks_for(self, node: str) -> bool:
        """Return whether a connection speaks for a node, of whichever run."""
        return any(session.node == node for session in self.sessions.values())

    # -- events ----------------------------------------------------------------------------------------------

    def _on_message(self, peer: Hashable, message: Message, now: float) -> None:
        session = self.sessions[peer]
        match message:
            case Beat() if session.node and session.run not in self.takeover.elsewhere:  # the most frequent by far
                self._run(session.run, NodeSaid(session.node, message), now)
            case Join():
                self._on_join(peer, session, message, now)
            case Seek():
                self._on_seek(peer, message, now)
            case Query():
                self._send((peer,), Report([run.report(now) for run in self._asked_for(message.run)]))
            case _ if not session.node:
                self._send((peer,), Resend())
            case _ if (where := self.takeover.elsewhere.get(session.run)) is not None:
                self._send((peer,), Out(where, OUT_REASON))
            case Beat() | Fail() | Replace() | Finish() | Leave() | Close() | Promise():
                self._run(session.run, NodeSaid(session.node, message), now)
            case Call() | Reply():
                self._relay(session, message)
            case _:
                self._send((peer,), Rejected(f"a node does not send {type(message).__name__}"))

    def _on_join(self, peer: Hashable, session: Session, join: Join, now: float) -> None:
        if not join.run or len(join.run) > RUN_CHARS_MAX or "/" in join.run:
            self._send(
                (peer,), Rejected(f"'{join.run[:40]}' cannot be a run id: 1 to {RUN_CHARS_MAX} characters, no /")
            )
            return
        if join.run not in self.runs and not self._make_room():
            self._send((peer,), Rejected(f"this coordinator holds {RUNS_MAX} runs already"))
            return
        where = self.takeover.elsewhere.get(join.settings.guardian or join.run)
        if where is not None:
            self._send((peer,), Out(where, OUT_REASON))
            return
        key = (join.run, join.spec.node)
        if session.node and (session.run, session.node) != key:
            self._send((peer,), Rejected("a connection speaks for one node of one run"))
            return
        session.run, session.node = key
        session.seq = max(session.seq, join.seq)
        speaker = self._peers.get(key)
        if speaker is not None and self.sessions[speaker].seq > join.seq:
            return  # said on an older connection, before the present one
        self._peers[key] = peer
        self.takeover.elsewhere.pop(join.run, None)  # workers were told so while their agents' run was elsewhere
        self.takeover.note_workers(self.runs.get(join.settings.guardian))
        self._run(join.run, NodeJoined(join, session.address, session.reached_as), now)

    def _relay(self, session: Session, message: Call | Reply) -> None:
        """Forward a call of one node of a round to the others, and their answers; neither is kept."""
        run = self.runs.get(session.run)
        members = run.round.places if run is not None and run.round is not None else {}
        if session.node not in members:
            return
        if isinstance(message, Call):
            others = (self._peers.get((session.run, name)) for name in members if name != session.node)
            called = Called(session.node, message.call, message.topic, message.body)
            self._send(tuple(peer for peer in others if peer is not None), called)
        elif (caller := self._peers.get((session.run, message.caller))) is not None:
            self._send((caller,), Replied(message.call, members[session.node].group_rank, message.body))

    def _on_disconnect(self, peer: Hashable, reason: str, now: float) -> None:
        session = self.sessions.pop(peer, None)
        if session is None:
            return
        if session.asked:
            self._from_store(self.store.handle(PeerGone(peer), now))
        key = (session.run, session.node)
        if self._peers.get(key) == peer:
            del self._peers[key]
            self._run(session.run, NodeDropped(session.node, reason), now)

    def _tick(self, now: float) -> None:
        for run, due in list(self._wakeups.items()):
            if due <= now:
                self._run(run, Tick(), now)
        self._seek_others(now)
        when = self.store.wakeup()
        if when is not None and when <= now:
            self._from_store(self.store.handle(Tick(), now))

    # -- where the coordinator can move ---------------------------------------------------------------------------

    def _on_takeover(self, event: TakeoverEvent, now: float) -> None:
        match event:
            case Lead():
                moved = self.takeover.elsewhere.pop(event.run, None) is not None
                known = event.memory
                if known and (known.ballots or known.heirs) and (moved or event.run not in self.runs):
                    self._run(event.run, Leads(known), now)
            case Follow():
                if event.run in self.runs:
                    self._step_down(event.run, event.address, OUT_REASON)
                self.takeover.elsewhere[event.run] = event.address
            case Stray():
                self.takeover.stray(event.run, event.address)
            case HandOver():
                for run, machine in list(self.runs.items()):
                    if (heir := self.takeover.heir(machine)) is not None and machine.standing is not None:
                        self._step_down(run, heir, event.reason, tuple(machine.standing.dead))
            case Probed():
                if event.run in self.runs:
                    self._run(event.run, NodeProbed(event.node, event.gone), now)
            case Found():
                self._compare(event.seen.run, event.address, event.seen, now)

    def _ask_seal(self, run: str, machine: RunMachine, record: RunRecord, now: float) -> None:
        """Find out whether a run may seal: the nodes of its guardian decide, or what elected this coordinator."""
        guardian = machine.settings.guardian if machine.settings is not None else ""
        if not guardian:
            self._out.append(AskSeal(run, record))
            return
        guard = self.runs.get(guardian)
        if guard is not None and guard.begun_here and machine.last_number == 0:
            self._run(run, SealAllowed(), now)  # nothing of either run is older than this coordinator
            return
        self.takeover.pending.setdefault(guardian, {})[run] = None
        if guard is not None and guard.standing is not None:
            self._carry_out(guardian, guard, guard.confirm(now), now)

    def _on_confirmed(self, guardian: str, now: float) -> None:
        for run in self.takeover.pending.pop(guardian, {}):
            if run in self.runs:
                self._run(run, SealAllowed(), now)

    def _hasten(self, run: str, machine: RunMachine, now: float) -> None:
        """Let runs under guard not wait for members whose agents have not come back."""
        guardian = machine.settings.guardian if machine.settings is not None else ""
        if not guardian and len(self.runs) == 1:
            return  # no run is under its guard
        guard = self.runs.get(guardian) if guardian else machine
        if guard is None or guard.standing is None or guard.round is None or guard.recovery is not None:
            return
        for name, other in [(run, machine)] if guardian else list(self.runs.items()):
            if other.recovery is not None and other.settings is not None and other.settings.guardian == guard.run:
                other.hasten(now + WORKERS_BACK_S)
                self._note_wakeup(name)

    def _seek_others(self, now: float) -> None:
        for run in self.takeover.due(now):
            if (machine := self.runs.get(run)) is None:
                continue
            if targets := self.takeover.look(run, machine):
                seek = Seek(run, self.takeover.address_of(machine), self.takeover.claim(machine, now))
                self._out += [AskOther(address, seek) for address in targets]
            self.takeover.plan(run, machine, now)

    def _on_seek(self, peer: Hashable, seek: Seek, now: float) -> None:
        machine = self.runs.get(seek.run)
        if machine is None or machine.standing is None:
            follows = self.takeover.elsewhere.get(seek.run, "")
            self._send((peer,), Seen(seek.run, None, follows))
            self._out.append(Sought(seek.run, seek.address))
            if seek.claim.settled and machine is None:
                self.takeover.elsewhere[seek.run] = follows or seek.address
            return
        self._send((peer,), Seen(seek.run, self.takeover.claim(machine, now)))
        if seek.claim > self.takeover.claim(machine, now):
            self._step_down(seek.run, seek.address, OUT_REASON)

    def _compare(self, run: str, address: str, seen: Seen, now: float) -> None:
        """Step down for another coordinator of the run that has the better claim."""
        machine = self.runs.get(run)
        if machine is None or machine.standing is None:
            return
        claim = self.takeover.claim(machine, now)
        if seen.claim is not None and seen.claim > claim:
            self._step_down(run, address, OUT_REASON)
        elif self.takeover.look_also(run, machine, seen.follows):
            self._out.append(AskOther(seen.follows, Seek(run, self.takeover.address_of(machine), claim)))

    def _step_down(self, run: str, address: str, reason: str, gone: tuple[str, ...] = ()) -> None:
        """Stop being the coordinator of a run, and of the runs under its guard: their nodes look at `address`."""
        guarded = [
            name
            for name, machine in self.runs.items()
            if machine.settings is not None and machine.settings.guardian == run
        ]
        for name in (run, *guarded):
            if self.runs.pop(name, None) is None:
                continue
            self._wakeups.pop(name, None)
            self.takeover.forget(name)
            self.takeover.elsewhere[name] = address
            peers = [peer for (known, _), peer in self._peers.items() if known == name]
            self._peers = {key: peer for key, peer in self._peers.items() if key[0] != name}
            self._send(tuple(peers), Out(address, reason, gone))
            self._from_store(self.store.handle(SpaceDropped(run_space(name)), 0.0))

    # -- runs and store ----------------------------------------------------------------------------------------

    def _run(self, run: str, event: RunEvent, now: float) -> None:
        machine = self.runs.get(run)
        if machine is None:
            machine = self.runs[run] = self._make_run(run, None, now)
        effects = machine.handle(event, now)
        if run in self.takeover.pending:
            effects += machine.confirm(now)  # workers may be back before the agents that they wait for
        self._hasten(run, machine, now)
        self._note_wakeup(run)
        self.takeover.plan(run, machine, now)
        self._carry_out(run, machine, effects, now)

    def _carry_out(self, run: str, machine: RunMachine, effects: list[RunEffect], now: float) -> None:
        for effect in effects:
            match effect:
                case Tell():
                    peers = [peer for node in effect.nodes if (peer := self._peers.get((run, node))) is not None]
                    self._send(tuple(peers), effect.message)
                    if isinstance(effect.message, Closed):
                        self._from_store(self.store.handle(SpaceDropped(run_space(run)), now))
                case Save():
                    self._out.append(SaveRun(run, effect.record))
                case Keep():
                    self._out.append(KeepSuccession(run, effect.succession))
                case DropRound():
                    self._from_store(self.store.handle(SpaceDropped(round_space(run, effect.round)), now))
                case WantSeal():
                    self._ask_seal(run, machine, effect.record, now)
                case Probe():
                    self._out.append(ProbeNode(run, effect.node, effect.address))
                case Confirmed():
                    self._on_confirmed(run, now)
                case Deposed():
                    self._step_down(run, "", effect.reason)
                case Note():
                    self._out.append(effect)

    def _make_run(self, run: str, record: RunRecord | None, now: float) -> RunMachine:
        return RunMachine(
            run,
            self._make_nonce,
            record,
            now,
            self._epoch,
            guarded=self._guarded,
            awaits_carrier=self._awaits_carrier,
        )

    def _note_wakeup(self, run: str) -> None:
        when = self.runs[run].wakeup()
        if when is None:
            self._wakeups.pop(run, None)
        else:
            self._wakeups[run] = when

    def _make_room(self) -> bool:
        """Return whether one more run may be held, forgetting the oldest that is closed or deserted if need be."""
        if len(self.runs) < RUNS_MAX:
            return True
        spent = next((name for name, run in self.runs.items() if run.closed is not None or not run.nodes), None)
        if spent is None:
            return False
        del self.runs[spent]
        self._wakeups.pop(spent, None)
        self._out.append(ForgetRun(spent))
        return True

    def _asked_for(self, run: str) -> list[RunMachine]:
        if not run:
            return list(self.runs.values())
        return [self.runs[run]] if run in self.runs else []

    def _ask_store(self, peer: Hashable, request: Any, now: float) -> None:
        self.sessions[peer].asked = True
        self._from_store(self.store.handle(Asked(peer, request), now))

    def _from_store(self, answers: list[Any]) -> None:
        for answer in answers:
            self._out.append(Send((answer.peer,), answer.reply))

    def _send(self, peers: tuple[Hashable, ...], message: Message) -> None:
        if peers:
            self._out.append(Send(peers, message))
