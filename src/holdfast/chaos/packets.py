"""A packet filter that cuts a node off: everything between it and the others is dropped, without a reset.

With `nft`, as root. A node that has a network namespace of its own (a container, `ip netns`) loses all packets but
those of its loopback. A node in the namespace of this command loses those from and to the hosts that its processes are
connected to, other than this one, and other than SSH. Nodes that share one host and one namespace cannot be told apart
by a packet filter, and cannot be cut.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable

import psutil

from holdfast.errors import UnavailableError, UsageError

NFT_TIMEOUT_S = 10.0
_OWN = "/proc/self/ns/net"


def check_can_cut() -> None:
    """Raise `UsageError` where packets cannot be dropped."""
    if os.geteuid() != 0:
        raise UsageError("cut drops packets, which needs root: try sudo -E holdfast chaos")
    missing = [tool for tool in ("nft", "nsenter") if shutil.which(tool) is None]
    if missing:
        raise UsageError(f"cut needs {' and '.join(missing)}: install nftables and util-linux")


class Cut:
    """A node that is cut off from now until `undo`."""

    def __init__(self, agent: int, processes: Iterable[psutil.Process]) -> None:
        self._table = f"holdfast_chaos_{os.getpid()}_{agent}"
        self._namespace = os.open(f"/proc/{agent}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            rules = _rules_of(agent, processes)
            self._nft(f"table inet {self._table} {{\n{rules}\n}}\n")
        except BaseException:
            os.close(self._namespace)
            raise

    def undo(self) -> None:
        """Let packets through again."""
        try:
            self._nft(f"delete table inet {self._table}\n")
        finally:
            os.close(self._namespace)

    def _nft(self, script: str) -> None:
        """Run nft in the node's namespace, which the descriptor keeps also after the node's death."""
        command = ["nsenter", f"--net=/proc/self/fd/{self._namespace}", "nft", "-f", "-"]
        try:
            done = subprocess.run(
                command,
                input=script,
                text=True,
                capture_output=True,
                pass_fds=(self._namespace,),
                start_new_session=True,  # Ctrl-C must not end it half-way
                timeout=NFT_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"nft did not answer within {NFT_TIMEOUT_S:g} s") from None
        if done.returncode != 0:
            raise UnavailableError(f"nft refused: {done.stderr.strip()[:300]}")


def _rules_of(agent: int, processes: Iterable[psutil.Process]) -> str:
    """Return the chains that cut a node off; raises `UnavailableError` for one that a filter cannot tell apart."""
    if os.stat(f"/proc/{agent}/ns/net").st_ino != os.stat(_OWN).st_ino:  # noqa: PTH116 - not a file
        drops = {"input": ['iifname != "lo" drop'], "output": ['oifname != "lo" drop']}
    else:
        peers = _peers(processes)
        if not peers:
            raise UnavailableError(
                "cut: this node shares its network with the others, so no filter can tell them apart; freeze-node "
                "silences it instead"
            )
        drops = {"input": [], "output": []}
        for peer in sorted(peers):
            family = "ip6" if ":" in peer else "ip"
            drops["input"].append(f"{family} saddr {peer} tcp dport != 22 tcp sport != 22 drop")
            drops["output"].append(f"{family} daddr {peer} tcp dport != 22 tcp sport != 22 drop")
    return "\n".join(
        f"chain {hook} {{ type filter hook {hook} priority -300; policy accept;\n{chr(10).join(rules)}\n}}"
        for hook, rules in drops.items()
    )


def _peers(processes: Iterable[psutil.Process]) -> set[str]:
    """The addresses of other hosts that these processes are connected to."""
    own = {address.address.partition("%")[0] for each in psutil.net_if_addrs().values() for address in each}
    found = set()
    for process in processes:
        try:
            connections = process.net_connections("tcp")
        except psutil.NoSuchProcess:
            continue
        found |= {_plain(connection.raddr.ip) for connection in connections if connection.raddr}
    return {peer for peer in found if peer not in own and not peer.startswith("127.") and peer != "::1"}


def _plain(address: str) -> str:
    """Return an IPv4 address as such also where a socket of both families has it."""
    return address.removeprefix("::ffff:").partition("%")[0]
