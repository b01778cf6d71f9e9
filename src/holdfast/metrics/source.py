"""The source of values: the run, host and rank that sinks put beside every value.

A worker reads it from the environment that its agent gave it; an agent sets it with `announce`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

METRICS_VARIABLE = "HOLDFAST_METRICS"
SOCKET_VARIABLE = "HOLDFAST_METRICS_SOCKET"


@dataclass(frozen=True, slots=True)
class Source:
    """One process of a run; `rank` is None for an agent."""

    run_id: str = ""
    host: str = ""
    role: str = ""
    node: str = ""
    rank: int | None = None


_announced: tuple[int, Source] | None = None


def announce(run_id: str = "", role: str = "", node: str = "") -> None:
    """Set the source of this process, an agent; processes that are forked from it do not inherit it."""
    global _announced
    _announced = (os.getpid(), Source(run_id, socket.gethostname(), role, node))


def current() -> Source:
    """Return the source of this process."""
    if _announced is not None and _announced[0] == os.getpid():
        return _announced[1]
    return of_worker(os.environ, socket.gethostname())


def current_rank() -> int | None:
    """Return this process's rank, which may change from round to round, or None for an agent."""
    if _announced is not None and _announced[0] == os.getpid():
        return None
    return _rank(os.environ)


def of_worker(environ: Mapping[str, str], host: str) -> Source:
    """Return the source of a worker, from the environment that its agent gave it."""
    return Source(
        run_id=environ.get("TORCHELASTIC_RUN_ID", ""),
        host=host,
        role=environ.get("ROLE_NAME", ""),
        node=environ.get("GROUP_RANK", ""),
        rank=_rank(environ),
    )


def is_worker(environ: Mapping[str, str]) -> bool:
    """Whether this is the environment of a worker whose launch chose sinks."""
    return bool(environ.get(METRICS_VARIABLE)) and _rank(environ) is not None


def _rank(environ: Mapping[str, str]) -> int | None:
    rank = environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else None
