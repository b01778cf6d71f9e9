"""Where a run stands, from the lines of its journals. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.events.account import Account, Accountant, Steps
from holdfast.events.story import Told
from holdfast.quantities import ago, length

#: How many notable events are kept.
NOTABLE_MAX = 200
#: Facts that a person wants to see while a run goes on, besides warnings.
NOTABLE = frozenset(
    {
        "round_sealed",
        "round_broken",
        "worker_failed",
        "workers_replaced",
        "checkpoint_written",
        "agent_left",
        "run_closed",
        "run_ended",
    }
)

#: Warnings of the coordinator that an agent tells too.
SAID_TWICE = frozenset({"worker_replaced"})


@dataclass(slots=True)
class Worker:
    """One live worker: where it runs, and where its files are."""

    rank: int
    local_rank: int
    host: str
    pid: int
    #: The process id of its agent.
    agent: int = 0
    #: The file with its node's beats; empty where there is none.
    beats: str = ""
    #: The folder of the attempt that it belongs to.
    logs: str = ""


_ENDINGS = {
    "succeeded": "succeeded",
    "failed": "failed",
    "signalled": "was ended by a signal",
    "gone": "ended without a word from its agent",
}


@dataclass(frozen=True, slots=True)
class RunState:
    """Where a run stands."""

    run: str
    #: running, succeeded, failed, signalled, or gone where its agent died without a word.
    outcome: str
    reason: str
    begin: float
    end: float
    nodes: int
    world_size: int
    #: The number of the latest round, which is also how many there were.
    round: int
    restarts_used: int
    restarts_left: int | None
    waiting: str
    account: Account
    workers: Mapping[int, Worker]
    notable: tuple[Told, ...]
    #: The root cause as the agents wrote it down; None where the run has not failed.
    failure: Mapping[str, Any] | None

    @property
    def is_live(self) -> bool:
        """Whether it goes on."""
        return self.outcome == "running"

    def ending(self, now: float) -> str:
        """Say how a run that is over ended, and which commands tell more."""
        why = f": {self.reason.splitlines()[0]}" if self.outcome == "failed" and self.reason else ""
        return (
            f"run '{self.run}' {_ENDINGS[self.outcome]} {ago(now - self.end)}, after {length(self.end - self.begin)}"
            f"{why}; `holdfast runs {self.run}` says where its time went, `holdfast events {self.run}` what happened"
        )


@dataclass(slots=True)
class RunReader:
    """Takes the lines of a run in their order; `state` can be asked at any time."""

    accountant: Accountant = field(default_factory=Accountant)
    workers: dict[int, Worker] = field(default_factory=dict)
    _run: str = ""
    _begin: float | None = None
    _latest: float = 0.0
    #: The agents that have not been lost, each with the name by which the coordinator knows it.
    _agents: dict[tuple[str | None, int | None], str] = field(default_factory=dict)
    _ended: dict[tuple[str | None, int | None], str] = field(default_factory=dict)
    _closed: bool | None = None
    _reason: str = ""
    _nodes: int = 0
    _world_size: int = 0
    _round: int = 0
    _restarts_used: int = 0
    _restarts_left: int | None = None
    _waiting: str = ""
    _failure: Mapping[str, Any] | None = None
    _notable: deque[Told] = field(default_factory=lambda: deque(maxlen=NOTABLE_MAX))

    def take(self, told: Told) -> None:
        """Take the next line."""
        entry = told.entry
        self.accountant.take(entry)
        self._run = self._run or entry.run
        self._begin = entry.time if self._begin is None else self._begin
        self._latest = max(self._latest, entry.time)
        if entry.kind in NOTABLE or (entry.level in ("warning", "error") and entry.kind not in SAID_TWICE):
            self._notable.append(told)
        self._waiting = entry.sentence if entry.kind == "waiting" else self._waiting
        handle = _HANDLERS.get(entry.kind)
        if handle is not None:
            handle(self, entry.data, (entry.host, entry.pid))
        if entry.kind == "agent_started":
            self._agents[entry.host, entry.pid] = entry.node or ""

    def live_agents(self) -> list[tuple[str | None, int | None]]:
        """Return the agents that have neither ended nor been lost: host and process id of each."""
        return [agent for agent in self._agents if agent not in self._ended]

    def state(self, now: float, *, over: bool, live: Mapping[int, Steps] | None = None) -> RunState:
        """Return where the run stands at `now`; `over` means that nothing more can be written."""
        outcome = self._outcome(over)
        end = now if outcome == "running" else self._latest
        return RunState(
            run=self._run,
            outcome=outcome,
            reason=self._reason,
            begin=end if self._begin is None else self._begin,
            end=end,
            nodes=self._nodes or len(self._agents),
            world_size=self._world_size,
            round=self._round,
            restarts_used=self._restarts_used,
            restarts_left=self._restarts_left,
            waiting=self._waiting if outcome == "running" and not self.workers else "",
            account=self.accountant.account(end, live if outcome == "running" else None),
            workers=dict(self.workers) if outcome == "running" else {},
            notable=tuple(self._notable),
            failure=self._failure if outcome in ("failed", "running") else None,
        )

    def _outcome(self, over: bool) -> str:
        said = set(self._ended.values())
        if self._agents and not set(self._agents) - set(self._ended):
            worst = [each for each in ("failed", "signalled", "succeeded") if each in said]
            return worst[0] if worst else "failed"
        if not over:
            return "running"
        if self._closed is not None:
            return "failed" if self._closed else "succeeded"
        return "gone"

    # -- by kind -------------------------------------------------------------------------------------------------------

    def _begun(self, data: Mapping[str, Any], agent: tuple[str | None, int | None]) -> None:
        del data
        self._ended.pop(agent, None)

    def _sealed(self, data: Mapping[str, Any], agent: object) -> None:
        del agent
        self._nodes = int(data.get("nodes") or 0)
        self._world_size = int(data.get("world_size") or 0)
        self._round = int(data.get("round") or 0)

    def _regrouped(self, data: Mapping[str, Any], agent: object) -> None:
        """Workers that train in process have rounds that their agent does not tell."""
        del agent
        self._round = max(self._round, int(data.get("round") or 0))

    def _started(self, data: Mapping[str, Any], agent: tuple[str | None, int | None]) -> None:
        self._round = max(self._round, int(data.get("round") or 0))
        self._world_size = int(data.get("world_size") or 0)
        self._nodes = int(data.get("group_world_size") or 0)
        self._restarts_used = max(self._restarts_used, int(data.get("restarts_used") or 0))
        self._restarts_left = data.get("restarts_left")
        self._waiting = ""
        self._forget(agent)
        beats, logs = str(data.get("beats") or ""), str(data.get("logs") or "")
        for local_rank, (rank, pid) in enumerate(zip(data.get("ranks") or (), data.get("pids") or (), strict=False)):
            self.workers[rank] = Worker(rank, local_rank, agent[0] or "", pid, agent[1] or 0, beats, logs)

    def _forget(self, agent: tuple[str | None, int | None]) -> None:
        """Forget the workers of an agent; several may be on one host."""
        self.workers = {
            rank: worker
            for rank, worker in self.workers.items()
            if (worker.host, worker.agent) != (agent[0], agent[1] or 0)
        }

    def _replaced(self, data: Mapping[str, Any], agent: tuple[str | None, int | None]) -> None:
        """The place on its node says which worker it is: one that outlived a round may have another rank by now."""
        self._restarts_used += 1
        if self._restarts_left:
            self._restarts_left -= 1
        pids = data.get("pids") or ()
        for local_rank, pid in zip(data.get("local_ranks") or (), pids, strict=False):
            for worker in self.workers.values():
                if (worker.host, worker.agent, worker.local_rank) == (agent[0] or "", agent[1] or 0, local_rank):
                    worker.pid = pid

    def _stopped(self, data: object, agent: tuple[str | None, int | None]) -> None:
        del data
        self._forget(agent)

    def _gone(self, data: Mapping[str, Any], agent: object) -> None:
        """A node that was lost may have had no time to say so."""
        del agent
        for lost in [key for key, name in self._agents.items() if name and name == data.get("node")]:
            if lost not in self._ended:
                del self._agents[lost]
            self._forget(lost)

    def _broken(self, data: Mapping[str, Any], agent: object) -> None:
        del agent
        failure = data.get("failure")
        if isinstance(failure, Mapping):
            self._failure = failure

    def _closes(self, data: Mapping[str, Any], agent: object) -> None:
        del agent
        self._closed = bool(data.get("failed"))
        self._reason = str(data.get("reason") or "")

    def _ends(self, data: Mapping[str, Any], agent: tuple[str | None, int | None]) -> None:
        self._ended[agent] = str(data.get("outcome") or "failed")
        self._reason = str(data.get("reason") or self._reason)
        self._stopped(data, agent)


_HANDLERS = {
    "agent_started": RunReader._begun,
    "round_sealed": RunReader._sealed,
    "workers_started": RunReader._started,
    "regrouped": RunReader._regrouped,
    "workers_replaced": RunReader._replaced,
    "workers_stopped": RunReader._stopped,
    "node_gone": RunReader._gone,
    "round_broken": RunReader._broken,
    "run_closed": RunReader._closes,
    "run_ended": RunReader._ends,
}
