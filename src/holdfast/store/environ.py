"""The store of a worker, found through the environment that its agent gave it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.errors import UsageError
from holdfast.store.api import TIMEOUT_S
from holdfast.store.client import StoreClient
from holdfast.wire.address import parse_endpoint
from holdfast.wire.secret import find_secret
from holdfast.wire.tls import TlsFiles

if TYPE_CHECKING:
    from datetime import timedelta

ENDPOINT_VARIABLE, SPACE_VARIABLE = "HOLDFAST_ENDPOINT", "HOLDFAST_STORE_SPACE"
#: The etcd that elects the coordinator, if there is one: the address in `ENDPOINT_VARIABLE` may change then.
ETCD_VARIABLE = "HOLDFAST_ETCD"
#: Where this worker's agent listens, which knows where the coordinator is when it has moved.
STANDBY_VARIABLE = "HOLDFAST_STANDBY"
#: How many workers the run may have if all nodes come.
MAX_WORKERS_VARIABLE = "HOLDFAST_MAX_WORKERS"


def from_environ(environ: Mapping[str, str] | None = None, *, timeout: timedelta | float = TIMEOUT_S) -> StoreClient:
    """Return the store of this worker's round: only the workers of the round share its keys.

    A later round starts without keys. Raises `UsageError` if no agent of ours started this process.
    """
    environ = os.environ if environ is None else environ
    endpoint, space = environ.get(ENDPOINT_VARIABLE), environ.get(SPACE_VARIABLE)
    if not endpoint or not space:
        missing = SPACE_VARIABLE if endpoint else ENDPOINT_VARIABLE
        raise UsageError(
            f"this process has no round and so no store (${missing} is not set): "
            "start the script with `holdfast launch`, with --rdzv-backend holdfast where several nodes take part"
        )
    where = parse_endpoint(endpoint)
    tls = TlsFiles.from_environ(environ)
    return StoreClient.connect(
        where,
        space,
        secret=find_secret(environ=environ).key,
        tls=tls.client_context() if tls else None,
        timeout=timeout,
    )
