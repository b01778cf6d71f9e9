"""What must come about once faults have ended.

A round that all its members run, the end of the run, or a true reason why there is neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.coordinator.messages import Admit, Phase
from holdfast.coordinator.run import RunMachine
from holdfast.coordinator.state import Hold, Holdup, Stage
from holdfast.rendezvous.machine import State

if TYPE_CHECKING:
    from holdfast.sim.coordinator import CoordinatorHost
    from holdfast.sim.nodes import SimNode
    from holdfast.sim.training import TrainingSafety
    from holdfast.sim.workers import SimWorker


def unsettled(coordinator: CoordinatorHost, nodes: list[SimNode]) -> str | None:
    """Say what is still missing, or None when everything has come to rest rightly.

    `nodes` are those whose processes live and whose agents still want something.
    """
    busy = next((node.id for node in nodes if node.ended and node.workers is not None), None)
    if busy is not None:
        return f"{busy} still runs workers after the end"
    asking = [node for node in nodes if not node.ended]
    if not asking:
        return None
    run = coordinator.run
    if run is None:
        return "no node has joined the coordinator"
    if run.closed is not None:
        return f"the run is closed but {asking[0].id} does not know"
    closing = next((node.id for node in asking if node.closing), None)
    if closing is not None:
        return f"{closing} asked for the end of the run, but it goes on"
    if run.recovery is not None:
        return "the coordinator is still recovering"
    if run.stage is Stage.SEALED:
        return _unsettled_round(run, {node.id: node for node in asking})
    return _unsettled_wait(run, asking, coordinator.local())


def _unsettled_round(run: RunMachine, asking: dict[str, SimNode]) -> str | None:
    round_, settings = run.round, run.settings
    assert round_ is not None
    assert settings is not None
    for name in round_.places:
        node = asking.get(name)
        if name in round_.done:
            continue
        if node is None:
            return f"{name} is gone but its round goes on"
        if node.machine.state is not State.RUNNING or node.machine.place is None:
            return f"{name} is {node.machine.state} in round {round_.id}"
        if node.machine.place.round != round_.id or node.workers != round_.id:
            return f"{name} runs {node.workers}, not round {round_.id}"
    for name, node in asking.items():
        if name in round_.places:
            continue
        known = run.nodes.get(name)
        if node.machine.state is not State.WAITING or known is None or known.phase is not Phase.WAITING:
            return f"{name} is {node.machine.state} outside of round {round_.id}"
        if round_.size < settings.max_nodes and settings.admit is not Admit.RESTART and not round_.done:
            return f"{name} waits although there is room in round {round_.id}"
    for name in run.nodes:
        if name not in asking:
            return f"{name} is gone but still counted as live"
    return None


def _unsettled_wait(run: RunMachine, asking: list[SimNode], now: float) -> str | None:
    settings = run.settings
    assert settings is not None
    holdup, sentence = run.holdup(now), run.sentence(now)
    missing = settings.min_nodes - len(asking)
    if missing <= 0:
        return f"{len(asking)} nodes live, {settings.min_nodes} would do, but: {sentence}"
    if run.waiting != len(asking):
        return f"{len(asking)} nodes ask, {run.waiting} are counted: {sentence}"
    if holdup != Holdup(Hold.MORE, missing):
        return f"{missing} more nodes are needed, but the next round waits for {holdup}: {sentence}"
    return None


def unfinished(safety: TrainingSafety, workers: list[SimWorker], nodes: list[SimNode]) -> str | None:
    """Say what is missing until a training in process is done, or None when it is."""
    left = next((worker for worker in workers if worker.alive and not worker.ended), None)
    if left is not None:
        return f"{left.id} is {left.trainer.stage} at step {left.model.step} of {left.training.steps}"
    node = next((node for node in nodes if not node.ended), None)
    if node is not None:
        return f"all workers of {node.id} have ended, but its agent is {node.agent.stage}"
    steps = next((worker.training.steps for worker in workers), 0)
    if safety.failed_for is None and safety.steps_done < steps:
        return f"all workers have ended after {safety.steps_done} of {steps} steps"
    return None
