"""Private names of TorchElastic's launcher that launchers of others import."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.compat.elastic.rendezvous_utils import parse_rendezvous_endpoint
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.rendezvous import RendezvousParameters


def _get_entrypoint_name(entrypoint: Callable[..., Any] | str | None, args: list[Any]) -> str:
    """Name what workers run: a function, a program, or the script that Python is given."""
    if callable(entrypoint):
        return str(getattr(entrypoint, "__name__", entrypoint))
    if entrypoint == sys.executable:
        return next((str(word) for word in args if not str(word).startswith("-")), "")
    return entrypoint or ""


def _get_addr_and_port(rdzv_parameters: RendezvousParameters) -> tuple[str | None, int | None]:
    """Return where the workers meet with the static backend; nothing with others."""
    if rdzv_parameters.backend != "static":
        return None, None
    endpoint = rdzv_parameters.endpoint.strip()
    host, port = parse_rendezvous_endpoint(endpoint, default_port=-1) if endpoint else ("", -1)
    if not endpoint or port < 0:
        raise UsageError(f"the endpoint '{endpoint}' needs a host and a port: give --master-addr and --master-port")
    return host, port
