"""The agent's watch over its workers' links to other hosts: looks at the kernel's counters, asks, and reports.

All this happens in a thread of its own, because questions to other nodes take time. What follows from what it sees is
decided in `links`; the agent's loop only hears that this node stands apart, and later that it need not any more.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping

from holdfast.agent.inbox import Inbox
from holdfast.agent.links import (
    LOOK_S,
    AskNodes,
    CannotPart,
    LinkEffect,
    LinkMachine,
    LinksSeen,
    NodeLinks,
    NodesTold,
    PartNode,
    TellSilent,
)
from holdfast.agent.machine import AgentEvent, LinkMended, Parted
from holdfast.agent.peer_calls import PeerCalls
from holdfast.agent.round_source import Coordinated
from holdfast.coordinator.messages import Place
from holdfast.facts import WARNING, Fact, facts
from holdfast.failures.stacks import Stack, kept, merge, render
from holdfast.threads import start_thread
from holdfast.workers.connections import own_addresses, probe, silent_links

#: What nodes ask each other: which links are silent; and what they tell a node that is to stand apart.
LINKS_TOPIC, APART_TOPIC = "links", "apart"
#: Data that was sent again so often has been without an answer for half a second at least.
RETRIES_MIN = 2
ANSWER_TIMEOUT_S = 3.0
#: How long a host has to answer, and how long a node that stands apart waits before it asks again.
PROBE_S, PROBE_AGAIN_S = 2.0, 2.0


class LinkWatch:
    """Watches the links of one node's workers, in one round after the other."""

    def __init__(
        self,
        rounds: Coordinated,
        calls: PeerCalls,
        inbox: Inbox[AgentEvent],
        hang_limit_s: float | None,
        progress: Callable[[], int | None],
        take_stacks: Callable[[], dict[int, Stack]],
    ) -> None:
        self._rounds = rounds
        self._calls = calls
        self._inbox = inbox
        self._hang_limit_s = hang_limit_s
        self._progress = progress
        self._take_stacks = take_stacks
        self._changed = threading.Condition()
        self._place: Place | None = None
        self._machine = LinkMachine(1)
        #: The process of each worker by rank, as long as they are watched.
        self._pids: Mapping[int, int] = {}
        #: The hosts that this node has lost, while it stands apart for them.
        self._lost: tuple[str, ...] = ()
        self._awaits = self._closing = False
        self._thread: threading.Thread | None = None

    # -- for the agent's loop --------------------------------------------------------------------------------------

    def watch(self, place: Place, pids: Mapping[int, int]) -> None:
        """Watch the workers of a round, by rank; a round of one node has no links."""
        with self._changed:
            if self._place is None or place.round != self._place.round:
                self._machine = LinkMachine(self._rounds.min_nodes, self._hang_limit_s)
            self._place, self._pids = place, dict(pids) if place.group_world_size > 1 else {}
            if self._pids and self._thread is None:
                self._thread = start_thread(self._run, "holdfast links")
            self._changed.notify()

    def forget(self) -> None:
        """The workers have ended."""
        with self._changed:
            self._pids, self._place = {}, None

    def await_link(self) -> None:
        """Ask the hosts that this node has lost again and again; `LinkMended` comes when all of them answer."""
        with self._changed:
            self._awaits = True
            self._changed.notify()

    def close(self) -> None:
        """End the thread; it may still wait for an answer, and then ends by itself."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    # -- for other nodes -------------------------------------------------------------------------------------------

    def answers(self, topic: str) -> bool:
        """Whether a question is about links."""
        return topic in (LINKS_TOPIC, APART_TOPIC)

    def answer(self, topic: str, body: str) -> str:
        """Tell another node which links are silent here, or be told by it to stand apart."""
        if topic == LINKS_TOPIC:
            mine = self._mine()
            return json.dumps({"addresses": mine.addresses, "silent": mine.silent})
        told = json.loads(body)
        place = self._place
        if place is not None and (told["round"], told["node"]) == (place.round.number, place.group_rank):
            self._part(tuple(told["lost"]), told["sentence"])
        return "{}"

    def _mine(self) -> NodeLinks:
        with self._changed:
            place, pids, silent = self._place, dict(self._pids), self._machine.silent
        first = place.address if place is not None and place.address else ""
        others = sorted(own_addresses(pids.values()) - {first})
        return NodeLinks(tuple(filter(None, (first, *others))), silent)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(LOOK_S if self._pids else PROBE_AGAIN_S if self._awaits else None)
                if self._closing:
                    return
                pids, awaits = dict(self._pids), self._awaits
            if awaits:
                self._look_again()
            elif pids:
                self._look(pids)

    def _look(self, pids: Mapping[int, int]) -> None:
        progress = self._progress()
        found = {link.remote: link.rank for link in silent_links(pids, RETRIES_MIN)}
        with self._changed:
            effects = self._machine.handle(LinksSeen(found, progress), time.monotonic()) if self._pids else []
        for effect in effects:
            self._carry_out(effect)

    def _look_again(self) -> None:
        if probe(self._lost, PROBE_S) >= set(self._lost):
            with self._changed:
                self._awaits = False
            self._inbox.put(LinkMended())

    def _carry_out(self, effect: LinkEffect) -> None:
        match effect:
            case TellSilent():
                facts.warn(
                    "link_silent",
                    f"rank {effect.rank} gets no answer from {effect.host}: what it sends has been repeated for "
                    f"{effect.silent_s:.0f} s, and no step is made",
                    rank=effect.rank,
                    host=effect.host,
                )
            case AskNodes():
                self._ask(effect)
            case PartNode():
                self._tell_apart(effect)
            case CannotPart():
                facts.warn("link_stuck", effect.sentence)

    def _ask(self, ask: AskNodes) -> None:
        place = self._place
        if place is None:
            return
        told = {place.group_rank: self._mine()}
        for node, text in self._calls.call(LINKS_TOPIC, "", ANSWER_TIMEOUT_S).items():
            try:
                said = json.loads(text)
                told[node] = NodeLinks(tuple(said["addresses"]), tuple(said["silent"]))
            except (ValueError, KeyError, TypeError):  # a node of another version does not answer this
                continue
        told = {node: links for node, links in told.items() if links.addresses}
        answered = frozenset(probe(ask.hosts, PROBE_S))
        seen = NodesTold(told, answered, place.group_rank, place.group_world_size, place.coordinator_rank)
        with self._changed:
            effects = self._machine.handle(seen, time.monotonic()) if self._place is place else []
        for effect in effects:
            self._carry_out(effect)

    def _tell_apart(self, effect: PartNode) -> None:
        """Report where all ranks are, and tell the node that is to stand apart; that may be this one."""
        place = self._place
        if place is None:
            return
        groups = kept(merge(self._take_stacks()))
        if self._place is not place:  # another node was quicker
            return
        sentence = f"{effect.sentence}; node {effect.node} stands apart until they can talk"
        data = {"node": effect.node, "lost": list(effect.lost), "stacks": [group.to_json() for group in groups]}
        facts.publish(Fact("link_stuck", f"{sentence}\n{render(groups)}", data, WARNING))
        if effect.node == place.group_rank:
            self._part(effect.lost, effect.sentence)
            return
        body = {"round": place.round.number, "node": effect.node, "lost": effect.lost, "sentence": effect.sentence}
        self._calls.call(APART_TOPIC, json.dumps(body), ANSWER_TIMEOUT_S)

    def _part(self, lost: tuple[str, ...], sentence: str) -> None:
        with self._changed:
            self._lost = lost
        self._inbox.put(Parted(sentence))
