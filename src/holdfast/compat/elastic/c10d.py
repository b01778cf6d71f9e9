"""TorchElastic's `create_c10d_store` and `create_backend`: torch's own stores, for launchers that want to host one."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.errors import RendezvousConnectionError, UsageError
from holdfast.rendezvous.api import RendezvousParameters
from holdfast.rendezvous.driver import owns_address
from holdfast.wire.address import parse_endpoint
from holdfast.wire.ports import get_free_port

if TYPE_CHECKING:
    from holdfast.compat.elastic.store_backend import C10dRendezvousBackend

#: What torch says of a port that another program took in between; its versions differ in the first letter.
_TAKEN = "ddress already in use"


def create_c10d_store(
    is_server: bool,
    server_addr: str,
    server_port: int = -1,
    world_size: int = 1,
    timeout: float = 600,
    wait_for_workers: bool = True,
    retries: int = 3,
    use_libuv: bool | None = None,
) -> Any:
    """Make a TCPStore, or join one; a server with port -1 picks a free one, and tries again if that was taken."""
    if server_port == -1 and world_size > 1:
        raise UsageError(f"server_port must be specified when world_size > 1, got {server_port=}, {world_size=}")
    dist = _torch()
    attempts = retries if server_port == -1 else 1
    extra = {} if use_libuv is None else {"use_libuv": use_libuv}
    for attempt in range(1, attempts + 1):
        port = get_free_port() if server_port == -1 else server_port
        try:
            return dist.TCPStore(
                host_name=server_addr,
                port=port,
                world_size=world_size,
                is_master=is_server,
                timeout=timedelta(seconds=timeout),
                wait_for_workers=wait_for_workers,
                **extra,
            )
        except RuntimeError as error:
            if _TAKEN not in str(error) or attempt == attempts:
                raise
    raise UsageError(f"retries must be at least 1, not {retries}")


def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, Any]:
    """Make a rendezvous backend and the store it keeps its state in, of torch's `tcp` or `file` kind."""
    from holdfast.compat.elastic.store_backend import C10dRendezvousBackend

    kind = str(params.get("store_type", "tcp")).strip().lower()
    if kind not in _STORES:
        raise UsageError("Invalid store type given. Currently only supports file and tcp.")
    try:
        store = _STORES[kind](params)
    except (RuntimeError, TimeoutError) as error:
        raise RendezvousConnectionError(f"The connection to the C10d store has failed: {error}") from error
    return C10dRendezvousBackend(store, params.run_id), store


def _create_tcp_store(params: RendezvousParameters) -> Any:
    from holdfast.compat.elastic.store_backend import DEFAULT_PORT

    where = parse_endpoint(params.endpoint, DEFAULT_PORT)
    timeout_s = params.get_as_int("read_timeout", 60) or 0
    if timeout_s <= 0:
        raise UsageError("The read timeout must be a positive integer.")
    dist = _torch()
    said = params.get_as_bool("is_host")
    timeout = timedelta(seconds=timeout_s)
    if said or (said is None and owns_address(where.host)):
        try:
            return dist.TCPStore(where.host, where.port, is_master=True, multi_tenant=True, timeout=timeout)
        except RuntimeError:
            if said is not None:
                raise  # otherwise another process of this machine hosts it already
    return dist.TCPStore(where.host, where.port, is_master=False, multi_tenant=True, timeout=timeout)


def _create_file_store(params: RendezvousParameters) -> Any:
    path = params.endpoint
    if not path:
        with tempfile.NamedTemporaryFile(delete=False) as file:
            path = file.name
    return _torch().FileStore(path)


def _torch() -> Any:
    import torch.distributed

    return torch.distributed


_STORES = {"tcp": _create_tcp_store, "file": _create_file_store}
