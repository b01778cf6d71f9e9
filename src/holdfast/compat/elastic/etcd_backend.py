"""A rendezvous backend that keeps its state in etcd, by the v3 API, for programs that plug in a backend.

`--rdzv-backend etcd` and `etcd-v2` do not use it: there etcd only says which node carries the coordinator.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta

from holdfast.compat.elastic.dynamic import RendezvousBackend, Token
from holdfast.errors import RendezvousConnectionError, UnavailableError, UsageError
from holdfast.rendezvous.api import RendezvousParameters
from holdfast.rendezvous.etcd_gateway import DEFAULT_PORT, Gateway
from holdfast.store.etcd import EtcdStore
from holdfast.wire.address import parse_endpoint

#: How long the state is kept after it was last written.
TTL_S = 7200
KEY_PREFIX = "/torch/elastic/rendezvous"
STORE_PREFIX = "/torch/elastic/store"


class EtcdRendezvousBackend(RendezvousBackend):
    """Keeps the state under one key of etcd; the token is the key's revision."""

    def __init__(self, client: Gateway, run_id: str, key_prefix: str | None = None, ttl: int | None = None) -> None:
        if not run_id:
            raise UsageError("The run id must be a non-empty string.")
        self._client = client
        self._key = f"{(key_prefix or KEY_PREFIX).rstrip('/')}/{run_id}"
        self._ttl_s = ttl if ttl and ttl > 0 else TTL_S
        self._lease: int | None = None

    @property
    def name(self) -> str:
        """The backend's name."""
        return "etcd-v2"

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the state and its token, or None if there is none yet."""
        try:
            return self._client.read(self._key)
        except UnavailableError as error:
            raise RendezvousConnectionError(f"The connection to etcd has failed: {error}") from error

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Set the state if it still has this token."""
        if token is None or isinstance(token, int):
            try:
                written = self._client.write_if(self._key, state, token or 0, self._living_lease())
            except UnavailableError as error:
                raise RendezvousConnectionError(f"The connection to etcd has failed: {error}") from error
            if written is not None:
                return state, written, True
        found = self.get_state()
        return None if found is None else (*found, False)

    def _living_lease(self) -> int:
        if self._lease is not None:
            with contextlib.suppress(UnavailableError):
                if self._client.keep_alive(self._lease) > 0:  # otherwise it has run out
                    return self._lease
        self._lease = self._client.grant(self._ttl_s)
        return self._lease


def create_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, EtcdStore]:
    """Make a backend, and a store for the nodes of a round, both in the etcd at the endpoint."""
    client = Gateway(parse_endpoint(params.endpoint, DEFAULT_PORT))
    timeout_s = params.get_as_int("read_timeout", 60) or 0
    if timeout_s <= 0:
        raise UsageError("The read timeout must be a positive integer.")
    backend = EtcdRendezvousBackend(client, params.run_id)
    store = EtcdStore(client, f"{STORE_PREFIX}/{params.run_id}", timedelta(seconds=timeout_s))
    return backend, store
