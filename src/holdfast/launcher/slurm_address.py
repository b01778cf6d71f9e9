"""The address of a node of Slurm: its name, where that can be looked up, else what Slurm knows."""

from __future__ import annotations

import re
import socket
import subprocess

#: How long Slurm's controller may take to answer.
TIMEOUT_S = 20.0


def reachable(node: str) -> str:
    """Return a name or address by which other nodes reach a node; the name itself where Slurm knows no better."""
    try:
        socket.getaddrinfo(node, None)
    except OSError:
        return _known_to_slurm(node) or node
    return node


def _known_to_slurm(node: str) -> str:
    words = ["scontrol", "show", "node", node, "-o"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""  # the launch then says that the name cannot be looked up
    found = re.search(r"\bNodeAddr=(\S+)", done.stdout)
    return found[1] if found else ""
