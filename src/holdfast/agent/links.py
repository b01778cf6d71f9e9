"""Links: when the workers of two nodes cannot talk to each other, and which of the nodes stands apart for that. Pure.

A link that loses all packets one way, or a stuck switch, stops a training without a word: no process dies, and both
nodes still reach the coordinator. But the kernel shows it: data that a worker has sent is sent again and again, and not
acknowledged. A worker that is stopped, or slow, or dead shows something else: its host still acknowledges, or refuses.

The rules:

1. A link is silent while the kernel repeats data to that host, and no worker here makes a step. It counts from the
   first look that shows it. A step ends every silence: a link that loses some packets is slow, not silent. Of workers
   that never send a heartbeat no steps are known; for them a look without a repeated packet ends it.
2. A silence is told after `TOLD_S`. After `SILENT_S`, or sooner where a shorter limit for hangs was given, the other
   nodes are asked what they see, and the host at the other end is asked for an answer of any kind. A host that answers
   is within reach: then nothing is done.
3. Of every pair of nodes that cannot talk one stands apart. It is the one that has lost most of the others; of two
   alike it is not the one that carries the coordinator, and else the one with the higher rank. So if one node has lost
   all the others, it goes and the others stay.
4. No node is put apart if fewer than MIN nodes would be left, or if it is not clear which node an address belongs to.
5. Time in which this process did not run does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: How often the links are looked at.
LOOK_S = 1.0
#: A look that comes so much later than that was held up.
LATE_S = 3.0
#: How long a link may be silent before that is told, and before a node stands apart.
TOLD_S, SILENT_S = 6.0, 20.0
#: Where hangs have a limit, links have this share of it: they are found first, and say more.
HANG_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class LinksSeen:
    """The hosts to which a worker's data is repeated, each with the rank of a worker; and how far the workers are.

    `progress` is None if the workers have sent no heartbeat.
    """

    links: Mapping[str, int] = field(default_factory=dict)
    progress: int | None = None


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """What a node says: the addresses that it has, and the hosts to which its links are silent."""

    addresses: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodesTold:
    """What the nodes of the round see, by their rank, this one too; and which of the silent hosts have answered.

    `nodes` is how many nodes the round has, `carrier` the rank of the one that carries the coordinator, or -1.
    """

    told: Mapping[int, NodeLinks]
    answered: frozenset[str]
    mine: int
    nodes: int
    carrier: int = -1


LinkEvent = LinksSeen | NodesTold


@dataclass(frozen=True, slots=True)
class TellSilent:
    """Tell that a worker here gets no answer from a host."""

    rank: int
    host: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class AskNodes:
    """Ask the other nodes what they see, and these hosts for an answer; `NodesTold` brings it."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartNode:
    """Have this node stand apart until it can talk to the hosts in `lost` again."""

    node: int
    lost: tuple[str, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class CannotPart:
    """Tell why the nodes that cannot talk are not kept apart."""

    sentence: str


LinkEffect = TellSilent | AskNodes | PartNode | CannotPart


class LinkMachine:
    """Decides for the workers of one node in one round; see the module's opening."""

    def __init__(self, min_nodes: int, hang_limit_s: float | None = None) -> None:
        self._min_nodes = min_nodes
        self.limit_s = SILENT_S if hang_limit_s is None else min(SILENT_S, HANG_SHARE * hang_limit_s)
        #: Since when each host is silent, and to which of our ranks.
        self._since: dict[str, float] = {}
        self._ranks: dict[str, int] = {}
        self._progress: int | None = None
        self._told: set[str] = set()
        self._told_why = ""
        self._looked: float | None = None
        self._ask_from = 0.0

    def handle(self, event: LinkEvent, now: float) -> list[LinkEffect]:
        """Decide what one event means."""
        return self._look(event, now) if isinstance(event, LinksSeen) else self._judge(event, now)

    def wakeup(self) -> float | None:
        """Return when to look next."""
        return None if self._looked is None else self._looked + LOOK_S

    @property
    def silent(self) -> tuple[str, ...]:
        """The hosts to which the links of workers here are silent."""
        return tuple(sorted(self._since))

    def check(self) -> None:
        """Assert every invariant."""
        assert self._since.keys() == self._ranks.keys()
        assert self._told <= self._since.keys()

    def snapshot(self) -> dict[str, Any]:
        """Describe the machine as plain data."""
        return {"silent": dict(self._ranks), "told": sorted(self._told)}

    def _look(self, seen: LinksSeen, now: float) -> list[LinkEffect]:
        held_up = self._looked is not None and now - self._looked > LOOK_S + LATE_S
        moved, self._progress, self._looked = seen.progress != self._progress, seen.progress, now
        if moved or held_up:
            self._keep({})
        if moved:
            return []
        # A worker that trains in process closes its connections and opens others while it tries again.
        old = {host: since for host, since in self._since.items() if host in seen.links or seen.progress is not None}
        self._ranks |= seen.links
        self._keep({**dict.fromkeys(sorted(seen.links), now), **old})
        effects: list[LinkEffect] = []
        for host, since in self._since.items():
            if now - since >= min(TOLD_S, self.limit_s) and host not in self._told:
                self._told.add(host)
                effects.append(TellSilent(self._ranks[host], host, now - since))
        if (due := self._due(now)) and now >= self._ask_from:
            self._ask_from = now + self.limit_s
            effects.append(AskNodes(due))
        return effects

    def _judge(self, event: NodesTold, now: float) -> list[LinkEffect]:
        lost = [host for host in self._due(now) if host not in event.answered]
        pairs = pairs_of(event.told)
        theirs = {host for pair in pairs if event.mine in pair for node in pair for host in event.told[node].addresses}
        if theirs.isdisjoint(lost):
            return []  # it answers after all, or no node of the round has this address
        apart, named = choose_apart(pairs, event.carrier), _name(pairs, event.told)
        if event.nodes - len(apart) < self._min_nodes:
            why = f"{named} are lost; they cannot be kept apart, because MIN is {self._min_nodes} nodes"
            known, self._told_why = self._told_why, why
            return [] if known == why else [CannotPart(why)]
        silent_s = now - min(self._since[host] for host in lost)
        sentence = f"{named} have been lost for {silent_s:.0f} s"
        return [PartNode(node, _lost_by(node, pairs, event.told), sentence) for node in apart]

    def _due(self, now: float) -> tuple[str, ...]:
        return tuple(sorted(host for host, since in self._since.items() if now - since >= self.limit_s))

    def _keep(self, since: dict[str, float]) -> None:
        self._since = since
        self._ranks = {host: self._ranks[host] for host in since}
        self._told &= since.keys()


def pairs_of(told: Mapping[int, NodeLinks]) -> list[tuple[int, int]]:
    """Return the pairs of nodes that cannot talk, each once; an address of several nodes tells nothing."""
    owners: dict[str, set[int]] = {}
    for node, links in told.items():
        for address in links.addresses:
            owners.setdefault(address, set()).add(node)
    found = set()
    for node, links in told.items():
        for host in links.silent:
            others = owners.get(host, set())
            if len(others) == 1 and node not in others:
                found.add((min(node, *others), max(node, *others)))
    return sorted(found)


def choose_apart(pairs: Iterable[tuple[int, int]], carrier: int = -1) -> list[int]:
    """Return the nodes that stand apart so that no two are left that cannot talk, as few as are easily found."""
    left, apart = list(pairs), list[int]()
    while left:
        counts = Counter(node for pair in left for node in pair)
        node = max(counts, key=lambda each: (counts[each], each != carrier, each))
        apart.append(node)
        left = [pair for pair in left if node not in pair]
    return apart


def _lost_by(node: int, pairs: Iterable[tuple[int, int]], told: Mapping[int, NodeLinks]) -> tuple[str, ...]:
    """Return the hosts that a node cannot talk to: those that it found silent, and those that found it so."""
    others = {each for pair in pairs if node in pair for each in pair if each != node}
    silent = {host for host in told[node].silent for other in others if host in told[other].addresses}
    return tuple(sorted(silent)) or tuple(sorted({told[other].addresses[0] for other in others}))


def _name(pairs: Iterable[tuple[int, int]], told: Mapping[int, NodeLinks]) -> str:
    """Name the pairs of nodes, each with its address."""

    def node(number: int) -> str:
        return f"node {number} ({told[number].addresses[0]})"

    named = [f"{node(one)} and {node(other)}" for one, other in pairs]
    return f"{'; '.join(named)}: packets between their workers"
