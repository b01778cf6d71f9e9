"""Which hosts a job may use, and which replica runs on which. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import UsageError
from holdfast.specs.app import AppDef


@dataclass(frozen=True)
class Placed:
    """One replica and its host."""

    role: str
    number: int
    host: str


def parse_hosts_file(text: str) -> list[str]:
    """Read a file of hosts: one on each line, behind which anything may stand, as slots in a file for MPI do."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return [words[0] for words in lines if words]


def check_hosts(hosts: Sequence[str]) -> list[str]:
    """Refuse hosts that ssh would take for something else; raises `UsageError`."""
    found = [host.strip() for host in hosts if host.strip()]
    for host in found:
        if host.startswith("-") or any(letter.isspace() for letter in host) or "/" in host:
            raise UsageError(f"'{host}' is not a host: write a name, an address or USER@HOST, as ssh takes it")
    doubled = {host for host in found if found.count(host) > 1}
    if doubled:
        raise UsageError(f"the host {sorted(doubled)[0]} is named twice: every host runs one replica")
    if not found:
        raise UsageError("name the hosts with --hosts a,b,c, or a file of them with -cfg hosts_file=FILE")
    return found


def place(app: AppDef, hosts: Sequence[str]) -> list[Placed]:
    """Give every replica a host of its own, in order; elastic roles share what the others leave.

    Raises `UsageError` where there are too few hosts.
    """
    least = [role.num_replicas if role.min_replicas is None else role.min_replicas for role in app.roles]
    if sum(least) > len(hosts):
        raise UsageError(
            f"the app '{app.name}' needs {sum(least)} hosts, one for each replica, and there are {len(hosts)}: "
            f"{', '.join(hosts)}"
        )
    spare = len(hosts) - sum(least)
    left = iter(hosts)
    placed: list[Placed] = []
    for role, count in zip(app.roles, least, strict=True):
        more = min(spare, role.num_replicas - count)
        spare -= more
        placed += [Placed(role.name, number, next(left)) for number in range(count + more)]
    return placed
