"""The names of pods and services in the tests' cluster: a small DNS server that asks the API server each time.

Every cluster has one; Debian has none that could be installed. It answers HOST.SERVICE.NAMESPACE.svc.cluster.local and
SERVICE.NAMESPACE.svc.cluster.local from the Endpoints of headless services, and nothing else.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
import sys
import urllib.error
import urllib.request
from pathlib import Path

ZONE = ".svc.cluster.local"


class Names:
    """What the API server knows of names."""

    def __init__(self, kubeconfig: Path) -> None:
        text = kubeconfig.read_text()
        self._server = re.search(r'server: "([^"]+)"', text)[1]
        self._token = re.search(r"token: ([^}\s]+)", text)[1]

    def find(self, name: str) -> list[str] | None:
        """Return the addresses of a name; None where there is no such name."""
        if not name.endswith(ZONE):
            return None
        words = name.removesuffix(ZONE).split(".")
        if len(words) not in (2, 3):
            return None
        host, service, namespace = words if len(words) == 3 else ("", *words)
        request = urllib.request.Request(
            f"{self._server}/api/v1/namespaces/{namespace}/endpoints/{service}",
            headers={"Authorization": f"Bearer {self._token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=5, context=ssl._create_unverified_context()) as answer:
                found = json.loads(answer.read())
        except urllib.error.HTTPError:
            return None
        addresses = [each for subset in found.get("subsets") or () for each in subset.get("addresses") or ()]
        matching = [each["ip"] for each in addresses if not host or each.get("hostname") == host]
        return matching or (None if host else [])


def answer(data: bytes, names: Names) -> bytes:
    """Answer one question."""
    number, _, _, _, _, _ = struct.unpack(">6H", data[:12])
    labels, at = [], 12
    while size := data[at]:
        labels.append(data[at + 1 : at + 1 + size].decode())
        at += size + 1
    kind, _ = struct.unpack(">2H", data[at + 1 : at + 5])
    question = data[12 : at + 5]
    found = names.find(".".join(labels).lower())
    addresses = (found or []) if kind == 1 else []
    code = 3 if found is None else 0
    head = struct.pack(">6H", number, 0x8580 | code, 1, len(addresses), 0, 0)
    records = b"".join(b"\xc0\x0c" + struct.pack(">2HIH", 1, 1, 1, 4) + socket.inet_aton(each) for each in addresses)
    return head + question + records


def main(kubeconfig: str, address: str) -> None:
    """Answer questions for ever."""
    names = Names(Path(kubeconfig))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        while True:
            data, client = server.recvfrom(4096)
            try:
                reply = answer(data, names)
            except (OSError, ValueError, IndexError, struct.error) as error:
                print(f"{client}: {error!r}", file=sys.stderr, flush=True)
                reply = data[:2] + struct.pack(">5H", 0x8182, 0, 0, 0, 0)
            server.sendto(reply, client)


if __name__ == "__main__":
    main(*sys.argv[1:])
