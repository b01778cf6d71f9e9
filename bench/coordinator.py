"""The coordinator's own limit: rounds of 10,000, 30,000 and 100,000 nodes without sockets, and what breaks first.

    python -m bench.coordinator             10,000 and 30,000 nodes
    python -m bench.coordinator --full      also 100,000
    python -m bench.coordinator --one N     one size, as JSON
    python -m bench.coordinator --leases    what the beats of 1,024 nodes cost, with leases of 300 ms to 10 s

Everything is done that a coordinator does for a message but reading and writing its socket: the frame is checked,
decoded, decided upon, and each answer is encoded and authenticated for its connection. Times are CPU time of the one
core that a coordinator has. `bench.rendezvous` measures the same with sockets.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bench.harness import Case, Results, number, save
from bench.rendezvous import measure
from holdfast.coordinator.machine import Connected, CoordinatorMachine, Received, SaveRun, Send
from holdfast.coordinator.messages import CODEC, Beat, Cause, Fail, Join, NodeSpec, Phase, RoundId, RunSettings, Sealed
from holdfast.rendezvous.machine import BEAT_S_MAX, BEATS_PER_LEASE
from holdfast.wire import descriptors
from holdfast.wire.frames import HEADER_BYTES
from holdfast.wire.session import MAC_BYTES, Seal

RESULTS = Path(__file__).with_name("results.json")
RUN = "bench"
SIZES, SIZES_FULL = (10_000, 30_000), (10_000, 30_000, 100_000)
CAP_S = 1200.0
#: What the beats of so many nodes cost is measured with each of these leases.
LEASE_NODES, LEASES_S = 1_024, (0.3, 1.0, 2.0, 5.0, 10.0)
#: Beats are taken so often, and the median counts.
BEAT_TRIALS = 9
#: A larger round takes longer; a limit is where it takes longer for each node.
GROWTH_MAX = 1.6


class Bench:
    """A coordinator and the frames that its nodes would send."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.machine = CoordinatorMachine(lambda: "nonce")
        self.settings = RunSettings(nodes, nodes, max_restarts=10)
        self.specs = [NodeSpec(f"node{each}", f"host{each}", "default", 8, 20_000) for each in range(nodes)]
        self.incoming = [Seal(each.to_bytes(32)) for each in range(nodes)]
        self.senders = [Seal(each.to_bytes(32)) for each in range(nodes)]
        self.outgoing = [Seal(each.to_bytes(32)) for each in range(nodes)]
        self.seqs = [0] * nodes
        self.places: dict[int, Any] = {}
        self.now = 0.0
        self.sent = self.sent_bytes = self.record_bytes = 0

    def connect(self) -> None:
        """Let every node connect."""
        for node in range(self.nodes):
            self.machine.handle(
                Connected(node, f"10.{node >> 16}.{node >> 8 & 255}.{node & 255}", "10.9.9.9"), self.now
            )

    def join(self, node: int, ask: int) -> bytes:
        """Return a node's frame that asks for a round."""
        place = self.places.get(node)
        return self._frame(node, Join(self._seq(node), RUN, self.specs[node], self.settings, Phase.WAITING, ask, place))

    def beat(self, node: int, round_id: RoundId) -> bytes:
        """Return a node's frame that says it lives."""
        return self._frame(node, Beat(self._seq(node), Phase.RUNNING, 1, round_id))

    def fail(self, node: int, round_id: RoundId) -> bytes:
        """Return a node's frame that says that a worker failed."""
        return self._frame(node, Fail(self._seq(node), round_id, Cause("a worker failed", victim=False)))

    def take(self, frames: Iterable[tuple[int, bytes]]) -> float:
        """Handle frames as the driver does; returns the CPU seconds."""
        begun = time.process_time()
        for node, frame in frames:
            mac = frame[-MAC_BYTES:]
            body = memoryview(frame)[:-MAC_BYTES]
            self.incoming[node].check(body, mac)
            self._handle(node, CODEC.decode(bytes(body[HEADER_BYTES:])))
        return time.process_time() - begun

    def _handle(self, node: int, message: Any) -> None:
        for effect in self.machine.handle(Received(node, message), self.now):
            if type(effect) is Send:
                frame = CODEC.encode(effect.message)
                for peer in effect.peers:
                    self.outgoing[peer].mac(frame)  # type: ignore[call-overload]
                self.sent += len(effect.peers)
                self.sent_bytes += len(effect.peers) * (len(frame) + MAC_BYTES)
                if type(effect.message) is Sealed:
                    self.places[effect.peers[0]] = effect.message.place  # type: ignore[index]
            elif type(effect) is SaveRun:
                self.record_bytes = len(msgspec.json.encode(effect.record))

    def _seq(self, node: int) -> int:
        self.seqs[node] += 1
        return self.seqs[node]

    def _frame(self, node: int, message: Any) -> bytes:
        frame = CODEC.encode(message)
        return frame + self.senders[node].mac(frame)


def one(nodes: int) -> dict[str, float]:
    """Measure one size."""
    bench = Bench(nodes)
    joins = [(node, bench.join(node, 1)) for node in range(nodes)]
    process = psutil.Process()
    before = process.memory_info().rss
    bench.connect()
    gather_s = bench.take(joins)
    memory = process.memory_info().rss - before
    sealed_bytes, sent = bench.sent_bytes, bench.sent
    round_ = bench.machine.runs[RUN].round
    assert round_ is not None, "no round was sealed"
    beats = [(node, bench.beat(node, round_.id)) for node in range(nodes)]
    bench.now = 1.0
    beat_s = bench.take(beats)
    fail_s = bench.take([(0, bench.fail(0, round_.id))])
    again = [(node, bench.join(node, 2)) for node in range(nodes)]
    regroup_s = bench.take(again)
    assert bench.machine.runs[RUN].last_number == 2, "no second round was sealed"
    bench.machine.check()
    return {
        "gather_s": gather_s,
        "fail_s": fail_s,
        "regroup_s": regroup_s,
        "beat_core_percent": 100 * beat_s / beat_every_s(5.0),
        "bytes_per_node": memory / nodes,
        "sealed_mb": sealed_bytes / 1e6,
        "sent": sent,
        "record_mb": bench.record_bytes / 1e6,
    }


def beat_every_s(lease_s: float) -> float:
    """Return how often a node with this lease says that it lives."""
    return min(lease_s / BEATS_PER_LEASE, BEAT_S_MAX)


def leases() -> Results:
    """Measure what the beats of idle nodes cost, by the length of their lease."""
    bench = Bench(LEASE_NODES)
    bench.connect()
    bench.take([(node, bench.join(node, 1)) for node in range(LEASE_NODES)])
    round_ = bench.machine.runs[RUN].round
    assert round_ is not None, "no round was sealed"
    taken = []
    for trial in range(BEAT_TRIALS):
        bench.now = 1.0 + trial
        taken.append(bench.take([(node, bench.beat(node, round_.id)) for node in range(LEASE_NODES)]))
    beats_s = statistics.median(taken)
    cases = [
        Case.seen(
            f"a lease of {lease_s:g} s",
            100 * beats_s / beat_every_s(lease_s),
            "% of a core",
            f"{number(round(LEASE_NODES / beat_every_s(lease_s)))} beats a second",
        )
        for lease_s in LEASES_S
    ]
    return Results(f"the beats of {LEASE_NODES:,} idle nodes, without sockets", cases)


def run(full: bool) -> Results:
    """Measure every size."""
    figures: dict[int, dict[str, float]] = {}
    for nodes in SIZES_FULL if full else SIZES:
        found = measure("bench.coordinator", "--one", str(nodes), cap_s=CAP_S)
        if found is not None:
            figures[nodes] = found
    cases = [case for nodes, each in figures.items() for case in cases_of(nodes, each)]
    return Results(
        "rounds of many nodes, without sockets: CPU time of the coordinator's core", [*cases, *limits(figures)]
    )


def cases_of(nodes: int, figures: dict[str, float]) -> list[Case]:
    """Return the rows of one size."""
    sent = f"{number(figures['sent'])} messages, {number(round(figures['sealed_mb'], 1))} MB"
    return [
        Case.seen(f"{nodes:,} nodes join and the first round is sealed", figures["gather_s"], "s", sent),
        Case.seen("... a failure is told to all", figures["fail_s"], "s"),
        Case.seen("... all are back and the next round is sealed", figures["regroup_s"], "s"),
        Case.seen("... beats of idle nodes", figures["beat_core_percent"], "% of a core", "leases of 5 s"),
        Case.seen("... memory", figures["bytes_per_node"] / 1000, "KB a node"),
        Case.seen("... a record on disk", figures["record_mb"], "MB", "written before a round is told"),
    ]


def limits(figures: dict[int, dict[str, float]]) -> list[Case]:
    """Say what breaks first, and what would break behind it."""
    cap = descriptors.CONNECTIONS_MAX
    wanted = descriptors.connections_within(descriptors.LIMIT_WANTED)
    cases = [
        Case.seen("connections that one coordinator takes", cap, "", "our own cap"),
        Case.seen("... within the open files that it asks for", wanted, "", f"{descriptors.LIMIT_WANTED:,} files"),
    ]
    if figures:
        largest = max(figures)
        busy = figures[largest]["beat_core_percent"] / largest
        cases.append(
            Case.seen(
                "... idle nodes that keep its core busy",
                round(100 / busy, -3),
                "",
                "beats alone, with leases of 5 s; longer ones make room",
            )
        )
    if len(figures) > 1:
        small, large = min(figures), max(figures)
        growth = (figures[large]["gather_s"] / large) / (figures[small]["gather_s"] / small)
        note = f"CPU time a node with {large:,} nodes, beside {small:,}"
        cases.append(Case.at_most("... growth of a round's time for each node", growth, "x", GROWTH_MAX, note))
    return cases


def main(argv: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.coordinator", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="also 100,000 nodes")
    parser.add_argument("--one", type=int, metavar="N", help="measure one size")
    parser.add_argument("--leases", action="store_true", help="what beats cost, by the length of a lease")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    options = parser.parse_args(argv)
    if options.one:
        print(json.dumps(one(options.one)))
        return 0
    if options.leases:
        print(leases())
        return 0
    results = run(options.full)
    print(results)
    if options.json:
        save(options.json, {"coordinator": results})
    return 0 if results.ok else 1


if __name__ == "__main__":
    sys.exit(main())
