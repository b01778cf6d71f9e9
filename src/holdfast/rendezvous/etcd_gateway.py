"""A small part of etcd's v3 API, over the JSON gateway that every server has."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.errors import UnavailableError
from holdfast.wire.address import Endpoint

DEFAULT_PORT = 2379
TIMEOUT_S = 5.0

T = TypeVar("T")


class Gateway:
    """A client of one etcd server. Blocking; raises `UnavailableError`, also if the answer is not etcd's."""

    def __init__(self, endpoint: Endpoint, timeout_s: float = TIMEOUT_S) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s

    def get(self, key: str) -> str | None:
        """Return a key's value, or None."""
        found = self.read(key)
        return found[0].decode(errors="backslashreplace") if found is not None else None

    def read(self, key: str) -> tuple[bytes, int] | None:
        """Return a key's value and its revision, or None."""

        def first(answer: dict[str, Any]) -> tuple[bytes, int] | None:
            found = answer.get("kvs", [])
            return (base64.b64decode(found[0].get("value", "")), int(found[0]["mod_revision"])) if found else None

        return self._ask("kv/range", {"key": _b64(key)}, first)

    def create(self, key: str, value: str, lease: int) -> bool:
        """Set a key that does not exist; return whether that was so."""
        return self.write_if(key, value.encode(), 0, lease) is not None

    def write(self, key: str, value: bytes) -> None:
        """Set a key, whatever it was before."""
        self._ask("kv/put", {"key": _b64(key), "value": base64.b64encode(value).decode()}, _nothing)

    def write_if(self, key: str, value: bytes, revision: int, lease: int = 0) -> int | None:
        """Set a key that still has this revision, 0 for none; returns the new one, or None if it had another."""
        compare = {"key": _b64(key), "target": "MOD", "mod_revision": str(revision)}
        text = base64.b64encode(value).decode()
        put = {"request_put": {"key": _b64(key), "value": text, "lease": str(lease)}}
        return self._ask(
            "kv/txn",
            {"compare": [compare], "success": [put]},
            lambda answer: int(answer["header"]["revision"]) if answer.get("succeeded") else None,
        )

    def delete_if(self, key: str, value: str) -> None:
        """Remove a key that still has this value."""
        compare = {"key": _b64(key), "target": "VALUE", "value": _b64(value)}
        delete = {"request_delete_range": {"key": _b64(key)}}
        self._ask("kv/txn", {"compare": [compare], "success": [delete]}, _nothing)

    def grant(self, seconds: int) -> int:
        """Make a lease."""
        return self._ask("lease/grant", {"TTL": str(seconds)}, lambda answer: int(answer["ID"]))

    def keep_alive(self, lease: int) -> int:
        """Renew a lease; returns for how many seconds, 0 if it has run out."""
        return self._ask("lease/keepalive", {"ID": str(lease)}, lambda answer: int(answer["result"].get("TTL", 0)))

    def revoke(self, lease: int) -> None:
        """End a lease, and the keys that are tied to it."""
        self._ask("lease/revoke", {"ID": str(lease)}, _nothing)

    def own_address(self) -> str:
        """Return the address by which this host reaches etcd, and so may be reached by others that do."""
        try:
            with socket.create_connection((self.endpoint.host, self.endpoint.port), self._timeout_s) as connection:
                return str(connection.getsockname()[0])
        except OSError as error:
            raise UnavailableError(f"no etcd at {self.endpoint}: {error}") from error

    def _ask(self, what: str, body: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        connection = http.client.HTTPConnection(self.endpoint.host, self.endpoint.port, timeout=self._timeout_s)
        try:
            connection.request("POST", f"/v3/{what}", json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read()
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"no etcd at {self.endpoint}: {error}") from error
        finally:
            connection.close()
        shown = text[:200].decode(errors="backslashreplace")
        if reply.status != http.client.OK:
            raise UnavailableError(f"etcd at {self.endpoint} refused {what}: {shown}")
        try:
            return read(json.loads(text))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            raise UnavailableError(
                f"{self.endpoint} does not answer like etcd: {what} gave '{shown}' ({error!r}); check the address"
            ) from error


def _nothing(answer: dict[str, Any]) -> None:
    if not isinstance(answer, dict):
        raise TypeError(f"{type(answer).__name__} is no answer")


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
