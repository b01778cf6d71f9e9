"""Ask a coordinator for the state of its runs, without taking part in one."""

from __future__ import annotations

import ssl
import time
from typing import Any

from holdfast.coordinator.messages import CODEC, Query, Report
from holdfast.errors import PeerError
from holdfast.wire.address import Endpoint
from holdfast.wire.channel import Channel

QUERY_TIMEOUT_S = 10.0


def ask_coordinator(
    endpoint: Endpoint,
    secret: bytes,
    run_id: str = "",
    tls: ssl.SSLContext | None = None,
    timeout_s: float = QUERY_TIMEOUT_S,
) -> list[dict[str, Any]]:
    """Return a description of every run, or of one; each has a `sentence` about its state."""
    channel = Channel.connect(endpoint, CODEC, secret, run=run_id, timeout_s=timeout_s, tls=tls)
    try:
        answer = channel.ask(Query(run_id), time.monotonic() + timeout_s)
    finally:
        channel.close()
    if not isinstance(answer, Report):
        raise PeerError(f"the coordinator answered a query with {type(answer).__name__}")
    return answer.runs
