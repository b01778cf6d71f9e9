"""Hosts as network namespaces on one machine: links that can be cut, split and made to lose packets. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from types import TracebackType

HOSTS_MAX = 4
_TABLE = "holdfast_bench"


def why_not() -> str:
    """Return why there can be no such hosts here; empty if there can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    missing = [tool for tool in ("ip", "ss", "nft") if shutil.which(tool) is None]
    return f"needs {' and '.join(missing)}: install iproute2 and nftables" if missing else ""


class Hosts:
    """Hosts on one bridge, each also with a line of its own to this machine, where `serve` or etcd may be."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._name = f"hb{os.getpid() % 100000}"
        self._net = os.getpid() % 250
        self._undo: list[str] = []

    def __enter__(self) -> Hosts:
        try:
            self._open()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for command in reversed(self._undo):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(command)
        self._undo.clear()

    def prefix(self, host: int) -> list[str]:
        """Return what runs a command on a host."""
        return ["ip", "netns", "exec", self._netns(host)]

    def address(self, host: int) -> str:
        """Return the address by which the others reach a host."""
        return f"10.96.{self._net}.{host}"

    def way_out(self, host: int) -> str:
        """Return the address by which a host reaches this machine."""
        return f"10.95.{self._net}.{4 * host + 1}"

    # -- what can happen to the network ------------------------------------------------------------------------------

    def cut(self, host: int, *, line: bool = False) -> None:
        """Lose a host without a sound; with `line`, its own line to this machine too."""
        _ip(f"link set {self._name}v{host} down")
        if line:
            self.cut_line(host)

    def heal(self, host: int) -> None:
        """Bring a host back."""
        _ip(f"link set {self._name}v{host} up")
        self.heal_line(host)

    def cut_line(self, host: int) -> None:
        """Cut the line between a host and this machine."""
        _ip(f"link set {self._name}e{host} down")

    def heal_line(self, host: int) -> None:
        """Bring that line back."""
        _ip(f"link set {self._name}e{host} up")

    def move(self, hosts: list[int], side: str) -> None:
        """Put hosts on one side of a partition, a or b."""
        for host in hosts:
            _ip(f"link set {self._name}v{host} master {self._name}{side}")

    def lose(self, host: int, percent: int) -> None:
        """Drop so many of the packets that reach a host by the bridge."""
        self._filter(host, f'iifname "v0" numgen random mod 100 < {percent} drop')

    def deafen(self, host: int, to: int, ports: tuple[int, int]) -> None:
        """Drop what one host sends another, one way only, for a range of ports at either end."""
        low, high = ports
        source = f'iifname "v0" ip saddr {self.address(to)}'
        self._filter(host, f"{source} tcp dport {low}-{high} drop\n{source} tcp sport {low}-{high} drop")

    def unfilter(self, host: int) -> None:
        """Let all packets through again."""
        subprocess.run([*self.prefix(host), "nft", "delete", "table", "inet", _TABLE], check=False, capture_output=True)

    def _filter(self, host: int, rules: str) -> None:
        hook = "type filter hook input priority -300; policy accept;"
        script = f"table inet {_TABLE} {{ chain input {{ {hook}\n{rules}\n}}\n}}\n"
        subprocess.run([*self.prefix(host), "nft", "-f", "-"], input=script.encode(), check=True)

    # -- making ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        for side in ("a", "b"):
            self._add(f"link add {self._name}{side} type bridge", f"link del {self._name}{side}")
            _ip(f"link set {self._name}{side} up")
        for host in range(1, self.count + 1):
            netns = self._netns(host)
            self._add(f"netns add {netns}", f"netns del {netns}")
            _ip(f"-n {netns} link set lo up")
            self._wire(host, "v", f"{self.address(host)}/24")
            self._wire(host, "e", f"10.95.{self._net}.{4 * host + 2}/30")
            _ip(f"link set {self._name}v{host} master {self._name}a")
            _ip(f"addr add {self.way_out(host)}/30 dev {self._name}e{host}")

    def _wire(self, host: int, kind: str, inside: str) -> None:
        end, netns = f"{self._name}{kind}{host}", self._netns(host)
        self._add(f"link add {end} type veth peer name {kind}0 netns {netns}", f"link del {end}")
        _ip(f"link set {end} up")
        _ip(f"-n {netns} addr add {inside} dev {kind}0")
        _ip(f"-n {netns} link set {kind}0 up")

    def _add(self, command: str, undo: str) -> None:
        _ip(command)
        self._undo.append(undo)

    def _netns(self, host: int) -> str:
        return f"{self._name}n{host}"


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True)
