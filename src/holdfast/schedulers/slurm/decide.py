"""What the batch program does when a step has ended: end, run another step, or give the job back to the queue. Pure."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.schedulers.cluster import Ended
from holdfast.schedulers.slurm.render import SlurmRequest
from holdfast.specs.states import AppState


class Move(enum.StrEnum):
    """What comes after a step."""

    END = "end"
    AGAIN = "again"  #: another step, at once, on the nodes that are left
    REQUEUE = "requeue"  #: back to the queue, for as many nodes as the job has asked for


@dataclass(frozen=True, slots=True)
class After:
    """What is known when a step has ended."""

    ended: Ended
    #: Why workers were told to leave before their time: Slurm's notice before the time limit or a preemption.
    notice: str = ""
    #: Whether Slurm ends the job: it was cancelled or preempted, or its time is over.
    ending: bool = False
    may_requeue: bool = True
    #: Why it may not, where it is not the user who said so.
    why_not: str = "the job may not be requeued"
    #: How many retries were used up, and how many there are.
    failures: int = 0
    max_retries: int = 0
    #: Whether nodes were lost, and whether those that are left are enough for another step.
    lost_nodes: bool = False
    enough_nodes: bool = True


def decide(after: After) -> tuple[Move, str]:
    """Return what comes next, and why in a sentence."""
    if after.ended.state is AppState.SUCCEEDED:
        return Move.END, after.ended.msg
    if after.ending:
        return Move.END, "Slurm ended the job"
    if after.notice and after.may_requeue:
        return Move.REQUEUE, f"{after.notice}; the job goes back to the queue and goes on from its last checkpoint"
    if after.notice:
        return Move.END, f"{after.notice}, and {after.why_not}"
    if after.lost_nodes and not after.enough_nodes and after.may_requeue:
        return Move.REQUEUE, f"{after.ended.msg}; too few nodes are left, so the job goes back to the queue"
    if after.lost_nodes and not after.enough_nodes:
        return Move.END, f"{after.ended.msg}; too few nodes are left, and {after.why_not}"
    if after.failures < after.max_retries:
        return Move.AGAIN, f"{after.ended.msg}; started again, retry {after.failures + 1} of {after.max_retries}"
    spent = f" (after {after.max_retries} retries)" if after.max_retries else ""
    return Move.END, f"{after.ended.msg}{spent}"


def outlives_first(request: SlurmRequest, sizes: Mapping[str, int], *, by_default: bool) -> bool:
    """Whether the replicas can do without the first one: enough are left, and one of them can carry the coordinator.

    `by_default` says whether agents do that where their flags do not say.
    """
    for plan in request.job.replicas:
        words = " ".join(plan.argv)
        chosen = re.search(r"\btakeover=(\w+)", words)
        moves = chosen[1].lower() in ("true", "1", "yes", "on") if chosen is not None else by_default
        if "holdfast launch" not in words or not moves:
            return False
    first = request.groups[0]
    return sizes.get(first.role, first.nodes_max) > first.nodes_min
