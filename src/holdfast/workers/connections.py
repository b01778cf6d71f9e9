"""TCP connections of workers, as the kernel shows them: those that the other host does not answer. Decides nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import select
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
#: States of a connection, as the kernel numbers them.
_ESTABLISHED, _CONNECTING = 1, 2
#: A probe tries so many ports of a host, of those that kernels give to connections.
PROBE_PORTS, _PORTS = 4, (32_768, 60_999)


class Connection(NamedTuple):
    """One connection: addresses of both ends, how often the last data was sent again in vain, and its inode."""

    local: str
    remote: str
    retries: int
    inode: int


class SilentLink(NamedTuple):
    """A connection of a worker whose data another host does not acknowledge."""

    rank: int
    remote: str
    retries: int


def parse_connections(text: str) -> list[Connection]:
    """Read what `/proc/net/tcp` or `tcp6` shows: connections that are open or being opened."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and int(fields[3], 16) in (_ESTABLISHED, _CONNECTING):
            local, remote = (_address(field.partition(":")[0]) for field in fields[1:3])
            found.append(Connection(local, remote, int(fields[6], 16), int(fields[9])))
    return found


def silent_links(pids: Mapping[int, int], retries_min: int) -> list[SilentLink]:
    """Return the connections of workers, given by rank, whose last data was sent again at least so often."""
    found = []
    for rank, pid in pids.items():
        rows = [row for row in _connections(pid) if row.retries >= retries_min and not is_own(row.remote)]
        mine = _sockets(pid) if rows else frozenset[int]()  # to look for the owner takes longer, and is rarely needed
        found += [SilentLink(rank, row.remote, row.retries) for row in rows if row.inode in mine]
    return found


def own_addresses(pids: Iterable[int]) -> set[str]:
    """Return the addresses that this host's end of connections has, as these processes see the network."""
    return {row.local for pid in pids for row in _connections(pid) if not is_own(row.local)}


def is_own(address: str) -> bool:
    """Whether an address never leaves its host."""
    found = ip_address(address)
    return found.is_loopback or found.is_unspecified


def probe(addresses: Iterable[str], timeout_s: float) -> set[str]:
    """Return the hosts among these that answer a connection in time: one that is refused is an answer, too."""
    poll, waiting, answered = select.poll(), dict[int, tuple[socket.socket, str]](), set[str]()
    try:
        for address in addresses:
            for port in random.sample(range(*_PORTS), PROBE_PORTS):
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                end = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
                waiting[end.fileno()] = end, address
                with contextlib.suppress(BlockingIOError, OSError):
                    end.connect((address, port))
                poll.register(end, select.POLLOUT)
        deadline = time.monotonic() + timeout_s
        while len(answered) < len({address for _, address in waiting.values()}):
            ready = poll.poll(max(deadline - time.monotonic(), 0.0) * 1000)
            for fileno, _ in ready:
                end, address = waiting[fileno]
                poll.unregister(fileno)
                if end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (0, errno.ECONNREFUSED):
                    answered.add(address)
            if not ready:
                break
    finally:
        for end, _ in waiting.values():
            end.close()
    return answered


def _connections(pid: int) -> Iterator[Connection]:
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError, ValueError):  # it has just ended, or this kernel has no IPv6
            yield from parse_connections((_PROC / f"{pid}/net/{name}").read_text())


def _sockets(pid: int) -> frozenset[int]:
    """Return the inodes of the sockets that a process has open."""
    found, folder = set(), _PROC / f"{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - names are all we need, and there may be many
            with contextlib.suppress(OSError):
                target = str((folder / name).readlink())
                if target.startswith("socket:["):
                    found.add(int(target[8:-1]))
    return frozenset(found)


def _address(text: str) -> str:
    """Read an address that the kernel has written as words in the order of bytes of this machine."""
    words = [int(text[start : start + 8], 16).to_bytes(4, sys.byteorder) for start in range(0, len(text), 8)]
    found = ip_address(b"".join(words))
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)
