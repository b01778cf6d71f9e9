"""How nodes that share only one changing text agree on a round. Pure.

The text is the `Gathering`: the nodes of the round, those that wait for the next one, those that stand by. A node reads
it, decides here what it should become, and writes it if no other node has written in between; otherwise it reads again.
The rules:

- A round is complete when `max_nodes` have come, or when at least `min_nodes` have and the last call is over. After the
  first round there is no last call once all nodes that live are back.
- A node that comes to a complete round waits; nodes of the round see it and leave; the last to leave opens the next.
- A round that lost a node is broken, which its nodes see as well.
- A node proves that it lives by counting up its beat. Whether another one lives is judged by this node's own clock: by
  how long its beat has stood still, as seen from here. No two clocks are ever compared.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.errors import RendezvousClosedError, RendezvousStateError

VERSION = 1


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """A node by name; ranks follow the order of these."""

    addr: str
    pid: int
    local_id: int

    def __str__(self) -> str:
        return f"{self.addr}_{self.pid}_{self.local_id}"

    @staticmethod
    def parse(text: str) -> Node:
        """Read a node's name."""
        addr, pid, local_id = text.rsplit("_", 2)
        return Node(addr, int(pid), int(local_id))


@dataclass(slots=True)
class Gathering:
    """What all nodes share. Ranks are -1 until the round is complete; `size` is how many were in it then."""

    round: int = 0
    complete: bool = False
    closed: bool = False
    size: int = 0
    participants: dict[str, int] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    spares: list[str] = field(default_factory=list)
    beats: dict[str, int] = field(default_factory=dict)

    @property
    def is_broken(self) -> bool:
        """Whether a complete round has lost a node."""
        return self.complete and len(self.participants) < self.size

    def encode(self) -> bytes:
        """Write it as JSON."""
        return json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True).encode()

    @staticmethod
    def decode(data: bytes) -> Gathering:
        """Read what `encode` wrote; raises `RendezvousStateError` for anything else."""
        try:
            fields: dict[str, Any] = json.loads(data)
            if fields.pop("version") != VERSION:
                raise ValueError("another version")
            return Gathering(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RendezvousStateError(
                f"the shared state of the rendezvous is not ours ({error}); is the run id used by another launcher?"
            ) from error

    def remove(self, name: str) -> bool:
        """Take a node out of the round and the lists; return whether it was anywhere."""
        was = name in self.participants or name in self.waiting or name in self.spares
        self.participants.pop(name, None)
        self.waiting = [each for each in self.waiting if each != name]
        self.spares = [each for each in self.spares if each != name]
        if self.complete and not self.participants:
            self.round, self.complete, self.size = self.round + 1, False, 0
        return was


@dataclass(frozen=True, slots=True)
class Rules:
    """How nodes gather, in numbers; `lease_s` is how long a beat may stand still."""

    min_nodes: int
    max_nodes: int
    last_call_s: float
    lease_s: float


@dataclass(frozen=True, slots=True)
class Write:
    """The gathering should become this."""

    gathering: Gathering


@dataclass(frozen=True, slots=True)
class Wait:
    """There is nothing to do yet, for this reason."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Done:
    """What was wanted is so."""

    gathering: Gathering


Action = Write | Wait | Done


class GatheringMachine:
    """One node's decisions, and its memory of what it has seen and when."""

    def __init__(self, node: Node, rules: Rules) -> None:
        self.name = str(node)
        self.rules = rules
        #: How often this node has beaten.
        self._beat = 0
        #: Each node's beat, and since when it has been that, by this node's clock.
        self._seen: dict[str, tuple[int, float]] = {}
        #: The round in which enough nodes have come, and since when that has been so.
        self._enough: tuple[int, float] | None = None

    # -- what a node may want ----------------------------------------------------------------------------------------

    def join(self, gathering: Gathering, now: float) -> Action:
        """Be in a complete round."""
        if gathering.closed:
            raise RendezvousClosedError("the rendezvous is closed: the run is over")
        changed = self._bury(gathering, now)
        if self.name not in gathering.beats:
            gathering.beats[self.name] = self._beat
            changed = True
        if gathering.complete and self.name in gathering.participants:
            return Write(gathering) if changed else Done(gathering)
        if gathering.complete or len(gathering.participants) == self.rules.max_nodes:
            changed |= self._line_up(gathering)
        else:
            changed |= self._step_in(gathering)
            changed |= self._try_complete(gathering, now)
        return Write(gathering) if changed else Wait(self._sentence(gathering))

    def leave(self, gathering: Gathering, now: float, *, for_good: bool = False) -> Action:
        """Be in no round, and for good also not among the live nodes."""
        del now
        changed = gathering.remove(self.name)
        if for_good:
            changed |= gathering.beats.pop(self.name, None) is not None
        return Write(gathering) if changed else Done(gathering)

    def beat(self) -> None:
        """Count one more beat; `keep_alive` publishes it."""
        self._beat += 1

    def keep_alive(self, gathering: Gathering, now: float) -> Action:
        """Have told the latest beat, and those whose beat stands still taken out."""
        changed = self._bury(gathering, now)
        if gathering.closed or (gathering.beats.get(self.name) == self._beat and not changed):
            return Done(gathering)
        gathering.beats[self.name] = self._beat
        return Write(gathering)

    def close(self, gathering: Gathering, now: float) -> Action:
        """Have the run be over for all nodes."""
        del now
        if gathering.closed:
            return Done(gathering)
        gathering.closed = True
        return Write(gathering)

    def nodes_waiting(self, gathering: Gathering) -> int:
        """How many reasons there are to form the round anew: nodes that wait, nodes that were lost, this one itself."""
        if not gathering.complete:
            return 0
        lost = gathering.size - len(gathering.participants)
        return len(gathering.waiting) + max(lost, int(self.name not in gathering.participants))

    # -- how it goes ---------------------------------------------------------------------------------------------------

    def _bury(self, gathering: Gathering, now: float) -> bool:
        """Take out the nodes whose beat has stood still for too long, as seen from here."""
        before, self._seen = self._seen, {}
        for name, beat in gathering.beats.items():
            known = before.get(name)
            self._seen[name] = known if known is not None and known[0] == beat else (beat, now)
        dead = [
            name for name, (_, since) in self._seen.items() if name != self.name and now - since > self.rules.lease_s
        ]
        for name in dead:
            gathering.remove(name)
            del gathering.beats[name]
        return bool(dead)

    def _line_up(self, gathering: Gathering) -> bool:
        """Wait for the next round, or stand by if this one has no room."""
        has_room = len(gathering.participants) < self.rules.max_nodes
        mine, other = (gathering.waiting, gathering.spares) if has_room else (gathering.spares, gathering.waiting)
        if self.name in mine:
            return False
        if self.name in other:
            other.remove(self.name)
        mine.append(self.name)
        return True

    def _step_in(self, gathering: Gathering) -> bool:
        if self.name in gathering.participants:
            return False
        gathering.remove(self.name)
        gathering.participants[self.name] = -1
        return True

    def _try_complete(self, gathering: Gathering, now: float) -> bool:
        count = len(gathering.participants)
        if count < self.rules.min_nodes:
            self._enough = None
            return False
        if self._enough is None or self._enough[0] != gathering.round:
            self._enough = (gathering.round, now)
        all_back = gathering.round > 0 and all(name in gathering.participants for name in gathering.beats)
        if not (count == self.rules.max_nodes or all_back or now - self._enough[1] >= self.rules.last_call_s):
            return False
        order = sorted(gathering.participants, key=Node.parse)
        gathering.participants = {name: rank for rank, name in enumerate(order)}
        gathering.complete, gathering.size = True, count
        return True

    def _sentence(self, gathering: Gathering) -> str:
        count = len(gathering.participants)
        if gathering.complete:
            which = "has no room" if self.name in gathering.spares else "is running; its nodes were told"
            return f"round {gathering.round} {which}"
        if count < self.rules.min_nodes:
            return f"{count} of at least {self.rules.min_nodes} nodes are here"
        return f"{count} of at most {self.rules.max_nodes} nodes are here; this is the last call"
