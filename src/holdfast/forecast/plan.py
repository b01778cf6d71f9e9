"""What a forecast is made from, and what it says: a job, its machines and their failures; shares of time. Pure."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from holdfast.errors import UsageError

#: Of 419 interruptions of the training of Llama 3, so many needed a repair of the node (arXiv 2407.21783, table 5).
NEEDS_REPAIR = 0.78
DAY_S = 86_400.0


class Loss(enum.StrEnum):
    """What time is lost to."""

    CHECKPOINTS = "checkpoints"
    REDONE = "redone"
    RECOVERY = "recovery"
    ABSENT = "absent"  # replica groups that restart while the others train
    WAITING = "waiting"  # no spare was left


class Noticed(enum.StrEnum):
    """When a failure is noticed that happens during a recovery."""

    AT_ONCE = "at-once"  # the recovery begins again
    AT_END = "at-end"  # it is noticed when the recovery ends, and costs another one


@dataclass(frozen=True, slots=True)
class Plan:
    """A training job and the machines that it runs on; times are in seconds."""

    nodes: int
    #: The mean time between failures of one node.
    node_mtbf_s: float
    gpus_per_node: int = 8
    #: How long training pauses for a checkpoint, and how much training lies between two; 0 for none, or, where a
    #: checkpoint costs no pause, for one all the time.
    checkpoint_s: float = 60.0
    interval_s: float = 0.0
    #: From a failure until it is noticed, and from then until training goes on.
    detect_s: float = 5.0
    restart_s: float = 120.0
    #: Groups of nodes that each hold the whole model. With more than one, only the group that failed restarts; the
    #: others wait for `detect_s` and train on without it, and nothing is done again.
    groups: int = 1
    #: How many nodes stand by, how long the repair of a node takes, and which share of failures needs one.
    spares: int = 0
    repair_s: float = DAY_S
    needs_repair: float = NEEDS_REPAIR
    noticed: Noticed = Noticed.AT_ONCE

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.nodes < 1 or self.gpus_per_node < 1:
            raise UsageError("a job has one GPU or more, on one node or more")
        if not 1 <= self.groups <= self.nodes:
            raise UsageError(f"{self.groups} replica groups cannot be made of {self.nodes} nodes")
        if not (self.node_mtbf_s > 0 and math.isfinite(self.node_mtbf_s)):
            raise UsageError("the mean time between failures must be more than 0")
        if not 0 <= self.needs_repair <= 1:
            raise UsageError(f"a share lies between 0 and 1, or 0% and 100%; {self.needs_repair:g} does not")
        if self.spares < 0:
            raise UsageError("the number of spares is 0 or more")

    @property
    def rate(self) -> float:
        """How many failures the job sees in a second."""
        return self.nodes / self.node_mtbf_s

    @property
    def between_s(self) -> float:
        """The mean time between two failures of the job."""
        return 1 / self.rate

    @property
    def recovery_s(self) -> float:
        """From a failure until training goes on."""
        return self.detect_s + self.restart_s

    @property
    def out(self) -> float:
        """The mean number of nodes that are being repaired."""
        return self.rate * self.needs_repair * self.repair_s


@dataclass(frozen=True, slots=True)
class Shares:
    """What becomes of the time of the nodes that the job needs: shares that make 1 together."""

    goodput: float
    losses: dict[Loss, float] = field(default_factory=dict)


@dataclass(slots=True)
class Account:
    """Adds up what time was spent on."""

    useful_s: float = 0.0
    lost_s: dict[Loss, float] = field(default_factory=lambda: dict.fromkeys(Loss, 0.0))
    failures: int = 0

    def trained(self, seconds: float, plan: Plan, *, kept: bool) -> None:
        """Add a time of training since the last recovery; `kept`: it did not end in a failure."""
        if plan.interval_s <= 0:  # checkpoints that cost nothing are made all the time; others, never
            kept = kept or plan.checkpoint_s <= 0
            self.useful_s += seconds if kept else 0.0
            self.lost_s[Loss.REDONE] += 0.0 if kept else seconds
            return
        segment_s = plan.interval_s + plan.checkpoint_s
        whole = int(seconds / segment_s)
        rest_s = seconds - whole * segment_s
        self.useful_s += whole * plan.interval_s
        self.lost_s[Loss.CHECKPOINTS] += whole * plan.checkpoint_s
        if kept:
            self.useful_s += min(rest_s, plan.interval_s)
            self.lost_s[Loss.CHECKPOINTS] += max(0.0, rest_s - plan.interval_s)
        else:
            self.lost_s[Loss.REDONE] += rest_s

    def lose(self, loss: Loss, seconds: float) -> None:
        """Add time in which nothing was trained."""
        self.lost_s[loss] += seconds

    def shares(self) -> Shares:
        """Return what was added, as shares."""
        total_s = self.useful_s + sum(self.lost_s.values())
        if total_s <= 0:
            return Shares(0.0)
        return Shares(self.useful_s / total_s, {loss: lost / total_s for loss, lost in self.lost_s.items() if lost})
