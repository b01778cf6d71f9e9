"""A small part of etcd's v3 API, over the JSON gateway that every server has.

With several endpoints, a server that does not answer, or has no leader, is passed over; the one that answered last is
asked first. What was asked may then have been carried out twice: every write here compares a revision, or may be.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from holdfast.errors import UnavailableError
from holdfast.rendezvous.etcd_access import DEFAULT_PORT, EtcdAccess
from holdfast.wire.address import Endpoint

__all__ = ["DEFAULT_PORT", "Gateway"]

TIMEOUT_S = 5.0
#: gRPC's codes of a server that cannot answer now, where another may: deadline exceeded, unavailable.
_PASSED_OVER = frozenset({4, 14})
_UNAUTHENTICATED = 16
#: gRPC's "out of range": etcd has dropped the history of the revision that was asked for.
_FORGOTTEN = 11
_TRIES = 5

T = TypeVar("T")


class _ForgottenError(UnavailableError):
    """etcd no longer knows the moment that a question is about."""


class Gateway:
    """A client of an etcd cluster. Blocking; raises `UnavailableError`, also if the answer is not etcd's."""

    def __init__(self, access: Endpoint | EtcdAccess, timeout_s: float = TIMEOUT_S) -> None:
        self.access = EtcdAccess((access,)) if isinstance(access, Endpoint) else access
        self._timeout_s = timeout_s
        self._context = self.access.context()
        #: The endpoint that answered last.
        self.endpoint = self.access.endpoints[0]
        self._token = ""
        self._logging_in = threading.Lock()

    def get(self, key: str) -> str | None:
        """Return a key's value, or None."""
        found = self.read(key)
        return found[0].decode(errors="backslashreplace") if found is not None else None

    def read(self, key: str) -> tuple[bytes, int] | None:
        """Return a key's value and its revision, or None."""
        return self._ask("kv/range", {"key": _b64(key)}, _first)

    def read_all(self, *keys: str) -> list[tuple[bytes, int] | None]:
        """Return the values and revisions of keys, all of one moment.

        Not as one transaction: a server of etcd before 3.5.5 or 3.4.21 ends when a client goes away while it carries
        out a transaction that only reads (etcd's issue 14110), and an agent may be killed at any moment.
        """
        for _ in range(_TRIES):
            with contextlib.suppress(_ForgottenError):
                first, now = self._ask(
                    "kv/range", {"key": _b64(keys[0])}, lambda answer: (_first(answer), _revision(answer))
                )
                others = [{"key": _b64(key), "revision": str(now)} for key in keys[1:]]
                return [first, *(self._ask("kv/range", each, _first) for each in others)]
        raise UnavailableError(f"etcd at {self.endpoint} drops its history faster than it can be read")

    def create(self, key: str, value: str, lease: int) -> bool:
        """Set a key that does not exist; return whether that was so."""
        return self.write_if(key, value.encode(), 0, lease) is not None

    def write(self, key: str, value: bytes) -> None:
        """Set a key, whatever it was before."""
        self._ask("kv/put", {"key": _b64(key), "value": base64.b64encode(value).decode()}, _nothing)

    def write_if(self, key: str, value: bytes, revision: int, lease: int = 0) -> int | None:
        """Set a key that still has this revision, 0 for none; returns the new one, or None if it had another."""
        found = self.transact({key: revision}, [put(key, value, lease)])
        return None if found is None else found[0]

    def transact(
        self, revisions: dict[str, int], writes: Sequence[dict[str, Any]], prefix: str = ""
    ) -> tuple[int, list[tuple[str, bytes]]] | None:
        """Do all writes if the keys still have these revisions; returns the new one, and the keys below a prefix.

        None if a key had another revision: then nothing was done.
        """
        compare = [{"key": _b64(key), "target": "MOD", "mod_revision": str(each)} for key, each in revisions.items()]
        success = [*writes]
        if prefix:
            success.append({"request_range": {"key": _b64(prefix), "range_end": _b64(_end(prefix))}})

        def read(answer: dict[str, Any]) -> tuple[int, list[tuple[str, bytes]]] | None:
            if not answer.get("succeeded"):
                return None
            found = answer["responses"][-1]["response_range"].get("kvs", []) if prefix else []
            pairs = [
                (base64.b64decode(each["key"]).decode(), base64.b64decode(each.get("value", ""))) for each in found
            ]
            return _revision(answer), pairs

        return self._ask("kv/txn", {"compare": compare, "success": success}, read)

    def delete_if(self, key: str, value: str) -> None:
        """Remove a key that still has this value."""
        compare = {"key": _b64(key), "target": "VALUE", "value": _b64(value)}
        self._ask("kv/txn", {"compare": [compare], "success": [delete(key)]}, _nothing)

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
        errors: list[str] = []
        for endpoint in self._in_order():
            try:
                with socket.create_connection((endpoint.host, endpoint.port), self._timeout_s) as connection:
                    return str(connection.getsockname()[0])
            except OSError as error:
                errors.append(f"no etcd at {endpoint}: {error}")
        raise UnavailableError(f"etcd cannot be reached: {'; '.join(errors)}")

    # -- questions -----------------------------------------------------------------------------------------------

    def _ask(self, what: str, body: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        errors: list[str] = []
        for endpoint in self._in_order():
            try:
                status, text = self._post_allowed(endpoint, what, body)
            except (OSError, http.client.HTTPException) as error:
                errors.append(f"no etcd at {endpoint}: {error}")
                continue
            shown = text[:200].decode(errors="backslashreplace")
            if status != http.client.OK:
                errors.append(f"etcd at {endpoint} refused {what}: {shown}")
                code = _code(text)
                if code in _PASSED_OVER:
                    continue
                if code == _FORGOTTEN:
                    raise _ForgottenError(errors[-1])
                break
            try:
                found = read(json.loads(text))
            except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
                raise UnavailableError(
                    f"{endpoint} does not answer like etcd: {what} gave '{shown}' ({error!r}); check the address"
                ) from error
            self.endpoint = endpoint
            return found
        raise UnavailableError(f"etcd cannot be used: {'; '.join(errors)}")

    def _in_order(self) -> list[Endpoint]:
        return sorted(self.access.endpoints, key=lambda each: each != self.endpoint)

    def _post_allowed(self, endpoint: Endpoint, what: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Ask as the user; a token that etcd does not know any more is replaced once."""
        if self.access.user is None:
            return self._post(endpoint, what, body)
        used = self._token or self._log_in(endpoint, "")
        status, text = self._post(endpoint, what, body, used)
        if status != http.client.OK and (_code(text) == _UNAUTHENTICATED or b"invalid auth token" in text):
            status, text = self._post(endpoint, what, body, self._log_in(endpoint, used))
        return status, text

    def _log_in(self, endpoint: Endpoint, used: str) -> str:
        with self._logging_in:
            if self._token == used:
                who = {"name": self.access.user, "password": self.access.password}
                status, text = self._post(endpoint, "auth/authenticate", who)
                if status != http.client.OK:
                    shown = text[:200].decode(errors="backslashreplace")
                    raise OSError(f"it does not let user '{self.access.user}' in: {shown}")
                self._token = str(json.loads(text).get("token", ""))
            return self._token

    def _post(self, endpoint: Endpoint, what: str, body: dict[str, Any], token: str = "") -> tuple[int, bytes]:
        connection = (
            http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=self._timeout_s)
            if self._context is None
            else http.client.HTTPSConnection(
                endpoint.host, endpoint.port, timeout=self._timeout_s, context=self._context
            )
        )
        headers = {"Content-Type": "application/json", **({"Authorization": token} if token else {})}
        try:
            connection.request("POST", f"/v3/{what}", json.dumps(body), headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()


def put(key: str, value: bytes, lease: int = 0) -> dict[str, Any]:
    """Return the part of a transaction that sets a key."""
    return {"request_put": {"key": _b64(key), "value": base64.b64encode(value).decode(), "lease": str(lease)}}


def delete(key: str) -> dict[str, Any]:
    """Return the part of a transaction that removes a key."""
    return {"request_delete_range": {"key": _b64(key)}}


def _first(answer: dict[str, Any]) -> tuple[bytes, int] | None:
    found = answer.get("kvs", [])
    return (base64.b64decode(found[0].get("value", "")), int(found[0]["mod_revision"])) if found else None


def _revision(answer: dict[str, Any]) -> int:
    return int(answer["header"]["revision"])


def _code(text: bytes) -> int | None:
    """Return gRPC's code of an error, if the text is one."""
    try:
        code = json.loads(text).get("code")
    except (ValueError, AttributeError):
        return None
    return code if isinstance(code, int) else None


def _nothing(answer: dict[str, Any]) -> None:
    if not isinstance(answer, dict):
        raise TypeError(f"{type(answer).__name__} is no answer")


def _end(prefix: str) -> str:
    """Return the first key after all that begin with a prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
