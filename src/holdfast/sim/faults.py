"""Faults: how each is brought about, and how all are ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.sim.process import Process
from holdfast.sim.scenario import Fault, FaultKind, How

if TYPE_CHECKING:
    from holdfast.sim.nodes import SimNode
    from holdfast.sim.simulation import Simulation

_SLOW_S = 0.4
#: How often it is looked whether a node that is leaving has gone.
_LEAVE_LOOK_S = 0.2


class Faults:
    """Brings faults about and remembers how to end those that last."""

    def __init__(self, simulation: Simulation) -> None:
        self.counts: dict[str, int] = {}
        self._sim = simulation
        self._ends: dict[int, Callable[[], None]] = {}
        self._begun = 0

    def inject(self, fault: Fault) -> None:
        """Let one fault happen now."""
        kind = f"{fault.kind} ({fault.how})" if fault.how else str(fault.kind)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self._sim.story:
            self._sim.story.tell("world", f"fault: {fault}")
        for name in fault.nodes:
            if (node := self._sim.current.get(name)) is not None:
                self._inject_node(fault, node)
        if not fault.nodes:
            self._inject_all(fault)

    def end_all(self) -> None:
        """End everything that lasts."""
        self._sim.coordinator.dies_midway = None
        ends, self._ends = self._ends, {}
        for end in ends.values():
            end()

    def _inject_node(self, fault: Fault, node: SimNode) -> None:
        match fault.kind:
            case FaultKind.CRASH if node.plan.hosts_coordinator:
                self._down(fault)
            case FaultKind.CRASH:
                node.crash(silent=fault.how is How.SILENT)
                self._come_back(fault, node)
            case FaultKind.PAUSE:
                node.pause()
                self._end_after(fault.seconds, node.resume)
            case FaultKind.SLOW:
                node.slow_s = _SLOW_S
                self._end_after(fault.seconds, lambda: _speed_up(node))
            case FaultKind.CUT:
                up, down = fault.how is not How.DOWN, fault.how is not How.UP
                self._sim.network.cut(node.name, up=up, down=down)
                self._end_after(fault.seconds, lambda: self._sim.network.mend(node.name, up=up, down=down))
            case FaultKind.BREAK:
                if node.link is not None:
                    self._sim.network.break_off(node.link)
            case FaultKind.FAIL:
                victim = fault.how is How.VICTIM
                node.worker_fails("lost its peer" if victim else "exit code 1", victim=victim)
            case FaultKind.LEAVE:
                node.leave()
                self._come_back(fault, node)
            case FaultKind.CLOSE:
                node.close("asked to end")
            case FaultKind.CUT_RING:
                node.cut_ring()
            case FaultKind.CRASH_WORKER:
                node.crash_worker()
            case FaultKind.CRASH_BOTH:
                node.crash_worker()
                self._down(fault)
            case _:
                raise AssertionError(f"{fault.kind} does not befall a node")

    def _inject_all(self, fault: Fault) -> None:
        coordinator = self._sim.coordinator
        match fault.kind:
            case FaultKind.FINISH:
                for node in self._sim.current.values():
                    self._sim.world.after(node.rng.random() * fault.seconds, node.finish)
            case FaultKind.PAUSE_COORDINATOR:
                coordinator.pause()
                self._end_after(fault.seconds, coordinator.resume)
            case FaultKind.SLOW_COORDINATOR:
                coordinator.slow_s = _SLOW_S
                self._end_after(fault.seconds, lambda: _speed_up(coordinator))
            case FaultKind.LOSE_CHECKPOINTS:
                self._sim.disk.readable = False
                self._end_after(fault.seconds, self._find_checkpoints)
            case FaultKind.RESTART_COORDINATOR:
                if fault.how is How.MIDWAY:
                    coordinator.dies_midway = lambda: self._down(fault)
                else:
                    self._down(fault)
            case _:
                raise AssertionError(f"{fault.kind} needs nodes")

    def _find_checkpoints(self) -> None:
        self._sim.disk.readable = True

    def _down(self, fault: Fault) -> None:
        """Let the coordinator die now and come back later."""
        coordinator = self._sim.coordinator
        if not coordinator.alive:
            return
        if self._sim.story:
            self._sim.story.tell(
                "coordinator", "dies" + (", and its disk with it" if fault.how is How.DISK_LOST else "")
            )
        coordinator.die(disk_lost=fault.how is How.DISK_LOST)
        # An agent that carries the coordinator inside it dies and comes back with it.
        host = next((node for node in self._sim.current.values() if node.plan.hosts_coordinator and node.alive), None)
        if host is not None:
            host.crash(silent=fault.how is How.SILENT)
        self._end_after(fault.seconds, lambda: self._boot(host))

    def _boot(self, host: SimNode | None) -> None:
        if self._sim.story:
            self._sim.story.tell("coordinator", "starts")
        self._sim.coordinator.boot()
        if host is not None:
            self._start_again(host)

    def _come_back(self, fault: Fault, node: SimNode) -> None:
        """Start a node's next life later, if it has one."""
        if fault.seconds:
            self._end_after(fault.seconds, lambda: self._start_again(node))

    def _start_again(self, node: SimNode) -> None:
        if self._sim.current[node.name] is not node:
            return
        if node.ended or not node.alive:
            self._sim.arrive(node.name)
        elif node.leaving:  # it still stops its workers
            self._sim.world.after(_LEAVE_LOOK_S, self._start_again, node)

    def _end_after(self, seconds: float, end: Callable[[], None]) -> None:
        self._begun += 1
        self._ends[self._begun] = end
        self._sim.world.after(seconds, self._end, self._begun)

    def _end(self, number: int) -> None:
        end = self._ends.pop(number, None)
        if end is not None:
            end()


def _speed_up(process: Process) -> None:
    process.slow_s = 0.0
