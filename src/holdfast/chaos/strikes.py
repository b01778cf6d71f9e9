"""Faults on live processes, and taking back those that last."""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil

from holdfast.chaos.packets import Cut
from holdfast.chaos.plan import TAKE_NODES, PlannedFault, Strike, Target
from holdfast.chaos.targets import Targets
from holdfast.errors import HoldfastError

#: The signal of each fault that is one: to the agent alone where it takes a node, else to all processes of the target.
_SIGNALS = {
    Strike.KILL_WORKER: signal.SIGKILL,
    Strike.KILL_AGENT: signal.SIGKILL,
    Strike.DRAIN: signal.SIGTERM,
    Strike.FREEZE: signal.SIGSTOP,
    Strike.FREEZE_NODE: signal.SIGSTOP,
}
KILLS = TAKE_NODES | {Strike.KILL_WORKER}


class Strikes:
    """Brings faults about; `undo` takes back what is still on, and must be called in the end."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._undo: list[Callable[[], None]] = []

    def strike(self, fault: PlannedFault, target: Target) -> frozenset[int]:
        """Bring a fault about; returns the processes that it kills. Raises `UnavailableError` where it cannot."""
        processes = [process for pid in target.pids if (process := self._targets.process(pid)) is not None]
        if fault.kind is Strike.CUT:
            self._undo.append(Cut(target.node.agent, processes).undo)
            return frozenset()
        chosen = [each for each in processes if each.pid == target.node.agent or fault.kind not in TAKE_NODES]
        for process in chosen:
            if _signal(process, _SIGNALS[fault.kind]) and fault.kind not in KILLS:
                self._undo.append(lambda process=process: _resume(process))  # type: ignore[misc]
        return frozenset(target.pids) if fault.kind in KILLS else frozenset()

    def undo(self) -> list[str]:
        """Take back everything that is still on; returns what could not be taken back."""
        failed = []
        while self._undo:
            try:
                self._undo.pop()()
            except (HoldfastError, OSError) as error:
                failed.append(str(error))
        return failed


def _signal(process: psutil.Process, number: signal.Signals) -> bool:
    """Signal this very process, not another one that has got its pid; returns whether it was still there."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True


def _resume(process: psutil.Process) -> None:
    _signal(process, signal.SIGCONT)
