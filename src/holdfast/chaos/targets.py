"""The agents and workers of a live run on this host, how they do, and which processes killed agents leave."""

from __future__ import annotations

import time

import psutil

from holdfast.chaos.owner import check_journals, check_process, own_uids
from holdfast.chaos.plan import Node
from holdfast.chaos.verdict import Look, RankSeen
from holdfast.view.reading import LiveRun

#: How long processes of a killed agent may take to end before they count as left behind.
ORPHAN_S = 10.0
LOOK_S = 0.1

_DEAD = frozenset({psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD})
_NOT_RUNNING = _DEAD | {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}


class Targets:
    """The processes of one run on this host; all of them belong to this user, or it raises `UsageError`."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._uids = own_uids()
        self._families: dict[psutil.Process, set[psutil.Process]] = {}
        state = run.look()
        self.name = state.run
        self.nodes_of_job = state.nodes
        check_journals(self.name, run.journals, self._uids)
        for node in self.nodes():
            for pid in (node.agent, *node.workers.values()):
                self.process(pid)

    def process(self, pid: int) -> psutil.Process | None:
        """Return a process that is about to be struck; None if it has ended, `UsageError` if it is of another user."""
        try:
            return check_process(self.name, pid, self._uids)
        except psutil.NoSuchProcess:
            return None

    def nodes(self) -> list[Node]:
        """Return the live nodes of this host as the last look has found them, and remember their processes."""
        pids = {worker.rank: worker.pid for worker in self._run.workers_here()}
        agents = self._run.agents_here()
        nodes = [Node(agent, {rank: pids[rank] for rank in sorted(ranks)}) for agent, ranks in agents.items()]
        return [node for node in sorted(nodes, key=lambda node: sorted(node.workers)) if self._remember(node)]

    def look(self) -> Look:
        """Look at the run once."""
        state = self._run.look()
        if state.is_live:
            self.nodes_of_job = state.nodes
        progress = self._run.progress() if state.is_live else {}
        # Journals may never say that an agent is gone: a coordinator that died with it cannot.
        agents = {pid: found for pid, found in self._run.agents_here().items() if _exists(pid)}
        ranks = {}
        for worker in self._run.workers_here() if state.is_live else ():
            if worker.agent not in agents:
                continue
            made = progress.get(worker.rank)
            made_so_far = () if made is None else (made.steps, made.last_at, made.first_step, made.last_step)
            ranks[worker.rank] = RankSeen(worker.pid, _is_running(worker.pid), *made_so_far)
        account = state.account
        return Look(
            at=time.time(),
            outcome=state.outcome,
            reason=state.reason,
            round=state.round,
            ranks=ranks,
            agents_waiting=sum(not found for found in agents.values()),
            steps=account.steps,
            steps_redone=account.steps_redone,
        )

    def wait_orphans(self) -> tuple[int, ...]:
        """Return the processes of dead agents that live on; waits a moment for those that are about to end."""
        until = time.monotonic() + ORPHAN_S
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(LOOK_S)
        return tuple(sorted(process.pid for process in left))

    def _left(self) -> list[psutil.Process]:
        dead = [family for agent, family in self._families.items() if not _lives(agent)]
        return [process for family in dead for process in family if _lives(process)]

    def _remember(self, node: Node) -> bool:
        """Note the processes of a node; returns whether its agent lives."""
        agent = self.process(node.agent)
        if agent is None or not _lives(agent):
            return False
        family = self._families.setdefault(agent, set())
        try:
            family.update(agent.children(recursive=True))
        except psutil.NoSuchProcess:
            return False
        family.update(process for pid in node.workers.values() if (process := self.process(pid)) is not None)
        return True


def _is_running(pid: int) -> bool:
    return _status(pid) not in _NOT_RUNNING


def _exists(pid: int) -> bool:
    return _status(pid) not in _DEAD


def _status(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_DEAD)


def _lives(process: psutil.Process) -> bool:
    """Whether this very process lives: another one may have its pid by now, and a zombie is dead."""
    try:
        return process.is_running() and process.status() not in _DEAD
    except psutil.NoSuchProcess:
        return False
