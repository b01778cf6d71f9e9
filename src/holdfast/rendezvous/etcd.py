"""Meeting through etcd: it says which node carries the coordinator, and elects another when that one is gone.

Rounds, leases and the store are the coordinator's, as everywhere. What etcd adds is one key for each run, tied to a
lease: whoever creates it carries the coordinator, at an address that nobody had to know before. A node that finds the
key but nobody at the address takes the key away, only if it still says the same, and the next election begins.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import socket
from typing import Any

from holdfast.errors import Unavailable
from holdfast.facts import facts
from holdfast.rendezvous.api import RendezvousParameters
from holdfast.rendezvous.driver import Host
from holdfast.rendezvous.native import HoldfastRendezvousHandler
from holdfast.wire.address import Endpoint, parse_endpoint
from holdfast.wire.tls import TlsFiles

DEFAULT_PORT = 2379
#: The key goes away so long after its owner has, unless somebody finds out before.
LEASE_S = 10
TIMEOUT_S = 5.0
#: How long a knock at the coordinator's address may take.
KNOCK_S = 1.0
PREFIX = "/holdfast/coordinators/"


class EtcdHost(Host):
    """A coordinator that this process may be elected to carry."""

    def __init__(self, etcd: Endpoint, run: str, secret: bytes, tls: TlsFiles | None, address: str | None) -> None:
        super().__init__(Endpoint("", 0), secret, tls, required=True, owned=False)
        self._etcd = Gateway(etcd)
        self._key = f"{PREFIX}{run}"
        self._address = address
        self._lease: int | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def try_open(self) -> bool:
        """Find who carries the coordinator, or carry it; says whether this process does."""
        while not self.is_up:
            found = await asyncio.to_thread(self._etcd.get, self._key)
            if found is not None:
                self.endpoint = parse_endpoint(found)
                if await _answers(self.endpoint):
                    return False
                await asyncio.to_thread(self._etcd.delete_if, self._key, found)
                continue
            await self._stand_for_election()
        return True

    async def close(self, farewell_of: str = "") -> None:
        """Stop carrying the coordinator, and say so."""
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        if self._lease is not None:
            with contextlib.suppress(Unavailable):
                await asyncio.to_thread(self._etcd.revoke, self._lease)
            self._lease = None
        await super().close(farewell_of)

    async def _stand_for_election(self) -> None:
        await super().try_open()
        address = self._address
        if address is None:
            address = await asyncio.to_thread(self._etcd.own_address)
        self.endpoint = Endpoint(address, self.endpoint.port)
        lease = await asyncio.to_thread(self._etcd.grant, LEASE_S)
        if await asyncio.to_thread(self._etcd.create, self._key, str(self.endpoint), lease):
            self._lease = lease
            self._renewing = asyncio.get_running_loop().create_task(self._renew(lease))
            return
        await super().close()  # somebody else was quicker
        await asyncio.to_thread(self._etcd.revoke, lease)

    async def _renew(self, lease: int) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            try:
                await asyncio.to_thread(self._etcd.keep_alive, lease)
            except Unavailable as error:
                facts.warn("etcd_unreachable", f"etcd does not hear that this node carries the coordinator: {error}")


class EtcdRendezvousHandler(HoldfastRendezvousHandler):
    """A handler whose endpoint is etcd's."""

    def __init__(self, params: RendezvousParameters) -> None:
        self._params = params
        super().__init__(params)

    def _find_host(self, asked: Endpoint) -> Host:
        etcd = Endpoint(asked.host, asked.port or DEFAULT_PORT)
        return EtcdHost(etcd, self._run_id, self._secret.key, self._tls, self._params.local_addr)


def create_handler(params: RendezvousParameters) -> EtcdRendezvousHandler:
    """Make the handler; registered as `etcd` and, for TorchElastic's command lines, as `etcd-v2`."""
    if ":" not in params.endpoint.rpartition("]")[2]:
        params.endpoint = f"{params.endpoint or 'localhost'}:{DEFAULT_PORT}"
    return EtcdRendezvousHandler(params)


class Gateway:
    """A few words of etcd's v3 API, over the JSON gateway that every server has. Blocking; raises `Unavailable`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def get(self, key: str) -> str | None:
        """Return a key's value, or None."""
        found = self._ask("kv/range", {"key": _b64(key)}).get("kvs", [])
        return base64.b64decode(found[0].get("value", "")).decode() if found else None

    def create(self, key: str, value: str, lease: int) -> bool:
        """Set a key that does not exist; says whether that was so."""
        compare = {"key": _b64(key), "target": "CREATE", "create_revision": "0"}
        put = {"request_put": {"key": _b64(key), "value": _b64(value), "lease": str(lease)}}
        return bool(self._ask("kv/txn", {"compare": [compare], "success": [put]}).get("succeeded"))

    def read(self, key: str) -> tuple[bytes, int] | None:
        """Return a key's value and its revision, or None."""
        found = self._ask("kv/range", {"key": _b64(key)}).get("kvs", [])
        return (base64.b64decode(found[0].get("value", "")), int(found[0]["mod_revision"])) if found else None

    def write(self, key: str, value: bytes) -> None:
        """Set a key, whatever it was before."""
        self._ask("kv/put", {"key": _b64(key), "value": base64.b64encode(value).decode()})

    def write_if(self, key: str, value: bytes, revision: int, lease: int = 0) -> int | None:
        """Set a key that still has this revision, 0 for none; returns the new one, or None where it had another."""
        compare = {"key": _b64(key), "target": "MOD", "mod_revision": str(revision)}
        text = base64.b64encode(value).decode()
        put = {"request_put": {"key": _b64(key), "value": text, "lease": str(lease)}}
        answer = self._ask("kv/txn", {"compare": [compare], "success": [put]})
        return int(answer["header"]["revision"]) if answer.get("succeeded") else None

    def delete_if(self, key: str, value: str) -> None:
        """Remove a key that still has this value."""
        compare = {"key": _b64(key), "target": "VALUE", "value": _b64(value)}
        delete = {"request_delete_range": {"key": _b64(key)}}
        self._ask("kv/txn", {"compare": [compare], "success": [delete]})

    def grant(self, seconds: int) -> int:
        """Make a lease."""
        return int(self._ask("lease/grant", {"TTL": str(seconds)})["ID"])

    def keep_alive(self, lease: int) -> None:
        """Renew a lease."""
        self._ask("lease/keepalive", {"ID": str(lease)})

    def revoke(self, lease: int) -> None:
        """End a lease, and the keys that are tied to it."""
        self._ask("lease/revoke", {"ID": str(lease)})

    def own_address(self) -> str:
        """Return the address by which this host reaches etcd, and others will reach it."""
        try:
            with socket.create_connection((self._endpoint.host, self._endpoint.port), TIMEOUT_S) as sock:
                return str(sock.getsockname()[0])
        except OSError as error:
            raise Unavailable(f"no etcd at {self._endpoint}: {error}") from error

    def _ask(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._endpoint.host, self._endpoint.port, timeout=TIMEOUT_S)
        try:
            connection.request("POST", f"/v3/{what}", json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"no etcd at {self._endpoint}: {error}") from error
        finally:
            connection.close()
        if reply.status != http.client.OK:
            raise Unavailable(f"etcd at {self._endpoint} refused {what}: {text.decode(errors='replace')[:200]}")
        answer: dict[str, Any] = json.loads(text)
        return answer


async def _answers(endpoint: Endpoint) -> bool:
    """Whether anybody listens at an address."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(endpoint.host, endpoint.port), KNOCK_S)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
