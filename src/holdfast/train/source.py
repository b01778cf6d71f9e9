"""Whose state all workers take when a round begins, from what each says that it holds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.train.events import Account


@dataclass(frozen=True, slots=True)
class Plan:
    """Whose state all workers take."""

    source: int
    #: Whether the source takes its newest checkpoint first.
    restores: bool
    #: The ranks that take the state from the source.
    to: tuple[int, ...]
    #: The step of that checkpoint, and the step that workers have without it; None if they have none.
    saved: int = -1
    after: int | None = None


def may_be_behind(accounts: Sequence[Account]) -> bool:
    """Whether there may be a checkpoint that is further than every worker, though none has looked for it.

    Workers that undid their last step are one behind a worker that counted it. If that one wrote a checkpoint of it
    and is not among them, only the checkpoint knows.
    """
    return any(account.straight for account in accounts) and not any(account.wrote for account in accounts)


def choose_source(accounts: Sequence[Account]) -> Plan | int:
    """Choose whose state all workers take, or return the step whose state is lost.

    The source is the most advanced whole state; of equals one that has trained with others, then the lowest rank. A
    checkpoint is taken where it is further than every whole state, unless a worker that can do without has tried to
    read it in vain. Where there are checkpoints the training may go back to an earlier step; without any it may not.
    """
    ranks = range(len(accounts))
    whole = [rank for rank in ranks if accounts[rank].whole]
    best = max((accounts[rank].step for rank in whole), default=-1)
    newest = max((accounts[rank].counted_in for rank in whole if accounts[rank].step == best), default=0)
    kept = any(accounts[rank].synced and accounts[rank].step == best for rank in whole)
    refused = max((account.refused for account in accounts), default=-1) if kept else -1
    # Of those that see the same checkpoint one that can go on without it reads it.
    saver = max(ranks, key=lambda rank: (accounts[rank].saved, accounts[rank].whole and accounts[rank].synced, -rank))
    saved = accounts[saver].saved
    if saved > max(best, refused):
        return Plan(saver, True, tuple(rank for rank in ranks if rank != saver), saved, best if kept else None)
    # A worker that comes back from an older round may have been further: the training went back without it.
    furthest = max((account.step for account in accounts if account.counted_in >= newest), default=best)
    if best < furthest and saved < 0:
        return furthest
    source = max(whole, key=lambda rank: (accounts[rank].step, accounts[rank].counted_in, accounts[rank].synced, -rank))
    return Plan(source, False, tuple(rank for rank in ranks if rank != source and _needs(accounts[rank], best, newest)))


def _needs(account: Account, step: int, counted_in: int) -> bool:
    return not account.whole or not account.synced or (account.step, account.counted_in) != (step, counted_in)
