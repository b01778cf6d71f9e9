"""The restart budget: what a broken round costs, and when the budget is spent. Pure.

Restarts are counted for the whole job. A round's failures are charged once, even if many nodes report them; those
that a lost node caused cost nothing, since losing a node is not the program's fault. A failure that no restart can mend
ends the run at once and costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.coordinator import sentences
from holdfast.coordinator.messages import Cause, RunSettings
from holdfast.coordinator.state import Round
from holdfast.quantities import count


@dataclass(frozen=True, slots=True)
class Spent:
    """What has been used: restarts, and failures in a row that came before the round had made progress."""

    restarts: int = 0
    failures_without_progress: int = 0


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a broken round costs; `end` says why the run is over, if it is."""

    spent: Spent
    end: str | None = None
    root: Cause | None = None
    crash_loop: bool = False


def charge(round_: Round, spent: Spent, settings: RunSettings) -> Ruling:
    """Charge a broken round, once all its survivors are back and all causes are known."""
    causes = list(round_.failures.values())
    real = [cause for cause in causes if not cause.victim]
    if not causes or (round_.losses and not real):
        return Ruling(spent)
    root = next((cause for cause in real if cause.ends_job), (real or causes)[0])
    return charge_failure(root, round_.broken_at - round_.sealed_at, spent, settings)


def charge_failure(root: Cause, lasted_s: float, spent: Spent, settings: RunSettings) -> Ruling:
    """Charge one failure in a round that had lasted so long, whether the round outlives it or not."""
    if root.ends_job:
        return Ruling(spent, f"{root.sentence}; {sentences.CANNOT_HELP}", root)
    progressed = 0 < settings.progress_s <= lasted_s
    restarts = 0 if progressed and settings.reset_restarts else spent.restarts
    in_a_row = 0 if progressed else spent.failures_without_progress + 1
    if 0 < settings.crash_loop <= in_a_row:
        sentence = f"{root.sentence}; a crash loop: {count(in_a_row, 'failure')} in a row without progress"
        return Ruling(Spent(restarts, in_a_row), sentence, root, crash_loop=True)
    if restarts >= settings.max_restarts:
        return Ruling(Spent(restarts, in_a_row), f"{root.sentence}; {sentences.spent(settings.max_restarts)}", root)
    return Ruling(Spent(restarts + 1, in_a_row), root=root)
