"""By which names the health server may be called.

A web page can have its own name resolve to a private address and then read what answers there: DNS rebinding. The
browser still sends that page's name as the host, so a server that answers only to its own names is safe from it. An
address in place of a name was not resolved by anything, so every address is answered.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

#: Further names, with commas between them; `*` stands for all.
HOSTS_VARIABLE = "HOLDFAST_HEALTH_HOSTS"
_HOSTS_FILE, _RESOLVER_FILE = Path("/etc/hosts"), Path("/etc/resolv.conf")


def known_names(bound: str, more: Iterable[str] = (), environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return all names of this host: what it calls itself, here and in its files, and what the user adds.

    No name server is asked: that may take long, and its answers are what an attacker controls.
    """
    own = {socket.gethostname().lower(), os.uname().nodename.lower()} - {""}
    names = {"localhost", bound.lower(), *own}
    for line in _lines(_HOSTS_FILE):
        listed = {name.lower() for name in line[1:]}
        if listed & own:
            names |= listed
    for line in _lines(_RESOLVER_FILE):
        if line[0] in ("search", "domain"):
            names |= {f"{name}.{domain.strip('.').lower()}" for name in own for domain in line[1:]}
    names |= {name.strip().lower() for name in (*more, *environ.get(HOSTS_VARIABLE, "").split(","))}
    return sorted(name.rstrip(".") for name in names if name)


def _lines(path: Path) -> list[list[str]]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    return [words for line in text.splitlines() if (words := line.partition("#")[0].split())]
