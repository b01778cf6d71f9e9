"""N lightweight agents as connections of this one process: the real member driver, without workers.

python -m bench._agents gather 10000       each prints its figures as JSON
python -m bench._agents idle 1024 15
python -m bench._agents break 1024 5
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from bench._served import Served
from bench.harness import raise_file_limit
from holdfast.coordinator.messages import Cause, NodeSpec, Place, RunSettings
from holdfast.rendezvous.driver import Member, jitter
from holdfast.rendezvous.machine import (
    Ask,
    AskFailed,
    Fail,
    LinkUp,
    MemberEffect,
    MemberEvent,
    MemberMachine,
    RoundBroken,
    RoundSealed,
    RunEnded,
)
from holdfast.wire.address import Endpoint
from holdfast.wire.loop import new_loop

#: How many connections are made at a time: the kernel queues 4,096 that are not accepted yet, and one more would wait a
#: second for its next try, which thousands of real hosts would not do in step.
CONNECTING_MAX = 2048
PATIENCE_S = 120.0
WORKERS_PER_NODE = 8


class Agent(Member):
    """One node's member on the loop that is running; it remembers what it was told."""

    def __init__(
        self,
        number: int,
        run: str,
        settings: RunSettings,
        endpoint: Endpoint,
        secret: bytes,
        on_change: Callable[[], None],
        lease_s: float = 5.0,
    ) -> None:
        spec = NodeSpec(f"node-{number}", f"host-{number}", "default", WORKERS_PER_NODE, 1000, lease_s=lease_s)
        super().__init__(MemberMachine(run, spec, settings, jitter), endpoint, secret, self._told)
        self._on_change = on_change
        self.round: Place | None = None
        self.links = 0
        self.rounds = 0
        self.breaks = 0
        self.end: RunEnded | AskFailed | None = None

    def ask(self) -> None:
        """Ask for a round."""
        self.handle(Ask(1000, time.monotonic() + PATIENCE_S))

    def handle(self, event: MemberEvent) -> None:
        """Count the connections that were made."""
        super().handle(event)
        if type(event) is LinkUp:
            self.links += 1
            self._on_change()

    def die(self) -> None:
        """End as a killed process does: the kernel closes its socket, and no message is sent."""
        link = self._link
        assert link is not None
        assert link._transport is not None
        self._link = None
        link._on_lost = lambda _: None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        link._transport.abort()

    def _told(self, effect: MemberEffect) -> None:
        match effect:
            case RoundSealed():
                self.round = effect.place
                self.rounds += 1
            case RoundBroken():
                self.round = None
                self.breaks += 1
            case RunEnded() | AskFailed():
                self.end = effect
        self._on_change()


class Crowd:
    """N agents of one run."""

    def __init__(self, nodes: int, served: Served, *, restarts: int = 0, min_nodes: int | None = None) -> None:
        self._changed = asyncio.Event()
        wanted = min_nodes or nodes
        settings = RunSettings(wanted, max(wanted, nodes), max_restarts=restarts)
        self.agents = [
            Agent(number, "bench", settings, served.endpoint, served.secret, self._changed.set)
            for number in range(nodes)
        ]

    async def gather(self) -> float:
        """Have everybody connect and join; returns the seconds until the last one knows its place."""
        start = time.perf_counter()
        for first in range(0, len(self.agents), CONNECTING_MAX):
            batch = self.agents[first : first + CONNECTING_MAX]
            for agent in batch:
                agent.ask()
            # The last ones of a batch may still be on their way while the next one starts.
            await self.wait(batch[: len(batch) // 2 + 1], lambda agent: agent.links > 0)
        await self.wait(self.agents, lambda agent: agent.round is not None)
        end = time.perf_counter()
        self.check_ranks()
        return end - start

    async def wait(self, agents: Iterable[Agent], condition: Callable[[Agent], bool]) -> None:
        """Wait until every agent meets a condition."""
        missing = list(agents)
        async with asyncio.timeout(PATIENCE_S):
            while missing := [agent for agent in missing if not condition(agent)]:
                ended = [agent for agent in missing if agent.end is not None]
                assert not ended, f"{len(ended)} of {len(self.agents)} gave up: {ended[0].end}"
                self._changed.clear()
                await self._changed.wait()

    async def regroup(self) -> float:
        """Have everybody join again at once; returns the seconds until the last one knows its place."""
        start = time.perf_counter()
        for agent in self.agents:
            agent.ask()
        await self.wait(self.agents, lambda agent: agent.round is not None)
        end = time.perf_counter()
        self.check_ranks()
        return end - start

    async def fail_one(self) -> float:
        """Have one agent report a failure; returns the seconds until the last of the others knows."""
        failing, *others = self.agents
        start = time.perf_counter()
        failing.handle(Fail(Cause("worker 3 was killed by SIGKILL")))
        failing.round = None
        await self.wait(others, lambda agent: agent.round is None)
        return time.perf_counter() - start

    async def kill_one(self) -> float:
        """Close one agent's socket; returns the seconds until the last of the others knows."""
        killed = self.agents.pop(len(self.agents) // 2)
        start = time.perf_counter()
        killed.die()
        await self.wait(self.agents, lambda agent: agent.round is None)
        return time.perf_counter() - start

    def check_ranks(self) -> None:
        """Check that all agents agree on who they are."""
        places = [agent.round for agent in self.agents if agent.round is not None]
        assert len({place.round for place in places}) == 1
        assert sorted(place.group_rank for place in places) == list(range(len(self.agents)))


async def measure_gather(nodes: int) -> dict[str, Any]:
    """Gather once; how long it took and what each node costs the coordinator."""
    with Served("--quiet") as served:
        before = served.rss_bytes()
        crowd = Crowd(nodes, served)
        seconds = await crowd.gather()
        return {"gather_s": seconds, "bytes_per_node": (served.rss_bytes() - before) / nodes}


async def measure_idle(nodes: int, seconds: float) -> dict[str, Any]:
    """Let a sealed round idle, with every node proving its life; how busy the coordinator is."""
    with Served("--quiet") as served:
        crowd = Crowd(nodes, served)
        await crowd.gather()
        return await measure_share(crowd, served, seconds)


async def measure_waiting(nodes: int, seconds: float) -> dict[str, Any]:
    """Let nodes wait for one that does not come; how busy the coordinator is."""
    with Served("--quiet") as served:
        crowd = Crowd(nodes, served, min_nodes=nodes + 1)
        for agent in crowd.agents:
            agent.ask()
        await crowd.wait(crowd.agents, lambda agent: agent.links > 0)
        return await measure_share(crowd, served, seconds)


async def measure_share(crowd: Crowd, served: Served, seconds: float) -> dict[str, Any]:
    """Measure the coordinator's share of a core while nothing happens but beats."""
    await asyncio.sleep(2.0)  # the beats have begun, and the gathering is over and done with
    cpu_s, start = served.cpu_s(), time.perf_counter()
    await asyncio.sleep(seconds)
    share = (served.cpu_s() - cpu_s) / (time.perf_counter() - start)
    assert all(agent.links == 1 and agent.breaks == 0 for agent in crowd.agents), "an idle node was disturbed"
    return {"core_percent": 100 * share}


async def measure_break(nodes: int, repeats: int) -> dict[str, Any]:
    """Break rounds by a report and by a death, and form them anew."""
    with Served("--quiet") as served:
        crowd = Crowd(nodes, served, restarts=repeats, min_nodes=nodes // 2)
        await crowd.gather()
        figures: dict[str, list[float]] = {"fail_s": [], "regroup_s": [], "kill_s": [], "regroup_killed_s": []}
        for _ in range(repeats):
            figures["fail_s"].append(await crowd.fail_one())
            figures["regroup_s"].append(await crowd.regroup())
        for _ in range(repeats):
            figures["kill_s"].append(await crowd.kill_one())
            figures["regroup_killed_s"].append(await crowd.regroup())
        return figures


def main(what: str, *numbers: str) -> None:
    """Measure one thing in this fresh process."""
    raise_file_limit()
    nodes = int(numbers[0])
    work = {
        "gather": lambda: measure_gather(nodes),
        "idle": lambda: measure_idle(nodes, float(numbers[1])),
        "waiting": lambda: measure_waiting(nodes, float(numbers[1])),
        "break": lambda: measure_break(nodes, int(numbers[1])),
    }[what]()
    loop = new_loop()
    asyncio.set_event_loop(loop)
    print(json.dumps(loop.run_until_complete(work)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
