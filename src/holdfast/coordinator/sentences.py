"""Descriptions of a run: a sentence for every wait, and plain data. Pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.coordinator.messages import Admit, Cause, Phase
from holdfast.coordinator.state import NAMES_TOLD_MAX, Hold, Node, Round, names
from holdfast.quantities import count

if TYPE_CHECKING:
    from holdfast.coordinator.rounds import Rounds

#: How long a lost node is mentioned.
LOSS_TOLD_S = 60.0


def describe(run: Rounds, now: float, node: str | None = None) -> str:
    """Describe the state of a run and, given a node, what that node waits for."""
    if run.closed is not None:
        return f"closed: {run.closed.reason}"
    round_ = run.round
    if run.recovery is not None and round_ is not None:
        left = max(run.recovery.ends_at - now, 0)
        return (
            f"the coordinator restarted; {len(round_.places)} of {round_.size} nodes of round {round_.id.number} "
            f"are back; the rest have {left:.1f} s"
        )
    if round_ is not None and round_.broken is None:
        return "; ".join(_running_clauses(run, now, node))
    return "; ".join(_gathering_clauses(run, now))


def said_by(host: str, cause: Cause) -> str:
    """Say what a node gives as its cause, with its host unless the cause names that already."""
    return cause.sentence if host in cause.sentence else f"{host}: {cause.sentence}"


def spent(max_restarts: int) -> str:
    """Say that a budget of restarts allows no more."""
    if not max_restarts:
        return "not restarting: --max-restarts is 0"
    used = "the only restart is used" if max_restarts == 1 else f"all {max_restarts} restarts are used"
    return f"not restarting: {used}"


#: What is said where the failure itself rules a restart out.
CANNOT_HELP = "not restarting: a restart cannot mend this"


def _running_clauses(run: Rounds, now: float, node: str | None) -> list[str]:
    round_, settings = run.round, run.settings
    assert round_ is not None
    clauses = [f"round {round_.id.number}: {count(round_.size, 'node')}"]
    if round_.done:
        clauses.append(f"{len(round_.done)} of {round_.size} done")
    if settings is None or not run.waiting:
        return clauses
    mine = node in run.nodes and run.nodes[node].phase is Phase.WAITING if node else False
    who = "this node" if mine else count(run.waiting, "node")
    if round_.size >= settings.max_nodes:
        clauses.append(f"{who} standing by as spare: the round is full")
    elif round_.done:
        clauses.append(f"{who} waiting, but the work is being finished")
    elif settings.admit is Admit.EVERY:
        left = max(round_.sealed_at + settings.admit_every_s - now, 0)
        clauses.append(f"{who} waiting to be admitted in {left:.1f} s")
    else:
        clauses.append(f"{who} waiting to be admitted at the next restart")
    return clauses


def _gathering_clauses(run: Rounds, now: float) -> list[str]:
    settings = run.settings
    if settings is None:
        return ["no node has come yet"]
    goal = settings.max_nodes if run.waiting >= settings.min_nodes else settings.min_nodes
    at_least = "at least " if goal < settings.max_nodes else ""
    clauses = [f"{run.waiting} of {at_least}{goal} nodes{_present(run)}"]
    clauses += [f"{host} lost {now - when:.1f} s ago" for when, host in run.lost if now - when < LOSS_TOLD_S]
    if (holdup := run.holdup(now)) is None:
        return clauses
    match holdup.why:
        case Hold.REJOIN:
            told = islice((node.name for node in run.nodes.values() if node.phase is not Phase.WAITING), NAMES_TOLD_MAX)
            clauses.append(f"waiting for {names(list(told), holdup.missing)} to stop workers and rejoin")
        case Hold.MORE:
            clauses.append(f"waiting for {holdup.missing} more")
        case Hold.PERMIT:
            clauses.append("waiting for etcd to confirm which node carries the coordinator")
        case Hold.QUORUM:
            clauses.append(no_quorum(run))
        case Hold.LAST_CALL:
            clauses.append(f"last call in {max(holdup.until - now, 0):.1f} s")
    return clauses


def no_quorum(run: Rounds) -> str:
    """Say why these nodes do not go on by themselves."""
    last = run.standing.ballots[-1] if run.standing is not None and run.standing.ballots else None
    size = last.size if last is not None else 0
    return f"they are no majority of the {size} nodes of the last round, so they wait for the others"


def _present(run: Rounds) -> str:
    """Name the nodes that are there while they are few; of many, a count says enough."""
    if not 0 < run.waiting <= NAMES_TOLD_MAX:
        return ""
    return f" ({names([node.name for node in run.nodes.values() if node.phase is Phase.WAITING])})"


# -- plain data --------------------------------------------------------------------------------------------


def snapshot(run: Rounds) -> dict[str, Any]:
    """Describe a run and its nodes as plain data."""
    round_, settings, closed = run.round, run.settings, run.closed
    return {
        "run": run.run,
        "stage": run.stage.value,
        "recovering": run.recovery is not None,
        "round": round_.id.number if round_ else 0,
        "broken": round_.broken if round_ else None,
        "restarts_used": run.restarts_used,
        "max_restarts": settings.max_restarts if settings else None,
        "min_nodes": settings.min_nodes if settings else None,
        "max_nodes": settings.max_nodes if settings else None,
        "closed": closed.reason if closed else None,
        "failed": closed.failed if closed else False,
        "nodes": [_describe_node(node, round_) for node in run.nodes.values()],
    }


def _describe_node(node: Node, round_: Round | None) -> dict[str, Any]:
    place = round_.places.get(node.spec.node) if round_ is not None else None
    return {
        "node": node.spec.node,
        "host": node.spec.host,
        "address": node.address,
        "role": node.spec.role,
        "workers": node.spec.local_world_size,
        "phase": node.phase.name.lower(),
        "rank": place.group_rank if place is not None and node.phase is not Phase.WAITING else None,
        "connected": node.dropped is None,
        "note": node.note,
    }
