"""The commands for the other nodes, for a launch of several nodes without an endpoint. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from holdfast.wire.address import DEFAULT_PORT, Endpoint

_RANK_FLAGS = ("--node-rank", "--node_rank")


def invitation(
    flags: Sequence[str], entry: Sequence[str], where: Endpoint, host: str, ranks: range | None, rank: int
) -> str:
    """Say where the nodes meet, and the commands that bring another one there.

    `flags` and `entry` are the words of this launch before its script and from there on; `ranks` are those of all
    nodes if each needs its own, and `rank` is this node's.
    """
    plain = _without_rank(flags)
    if ranks is None:
        here = _command(plain, entry)
    else:
        others = [each for each in ranks if each != rank]
        here = _command(["--node-rank", str(others[0]), *plain], entry)
        if len(others) > 1:
            here += f" (and so on, with --node-rank up to {others[-1]})"
    there = _command(["--rdzv-endpoint", str(Endpoint(host, DEFAULT_PORT)), *plain], entry)
    return (
        f"no --rdzv-endpoint: the nodes meet at {where}, which only this machine can reach. "
        f"To start another node on this machine: {here}. "
        f"For nodes on several machines, start each of them, this one too, with: {there}"
    )


def _command(flags: Sequence[str], entry: Sequence[str]) -> str:
    return shlex.join(["holdfast", "launch", *flags, *entry])


def _without_rank(flags: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in flags:
        if not skip and not word.startswith(tuple(f"{flag}=" for flag in _RANK_FLAGS)) and word not in _RANK_FLAGS:
            kept.append(word)
        skip = word in _RANK_FLAGS
    return kept
